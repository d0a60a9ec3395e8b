"""The passages that the golden logits are computed for: written for this file, or in the public domain."""

CONSTITUTION = """We the People of the United States, in Order to form a more perfect Union, establish Justice, insure \
domestic Tranquility, provide for the common defence, promote the general Welfare, and secure the Blessings of Liberty \
to ourselves and our Posterity, do ordain and establish this Constitution for the United States of America.

All legislative Powers herein granted shall be vested in a Congress of the United States, which shall consist of a \
Senate and House of Representatives. The House of Representatives shall be composed of Members chosen every second \
Year by the People of the several States."""

CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Merge two sorted lists into one."""
    out, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            out.append(left[i])
            i += 1
        else:
            out.append(right[j])
            j += 1
    return out + left[i:] + right[j:]
'''

CHAT = (
    "<|im_start|>system\nYou are a patient teacher who answers in one short paragraph.<|im_end|>\n"
    "<|im_start|>user\nWhy does the moon look larger near the horizon?<|im_end|>\n"
    "<|im_start|>assistant\nThe moon is the same size all night. Near the horizon we see it beside trees and houses, "
    "and the mind compares it with them, so it seems larger than it does alone in a dark sky.<|im_end|>\n"
)

LANGUAGES = (
    "Le vent s'est levé ce matin, et les bateaux sont restés au port. "
    "Der Zug nach Köln fährt um 17:45 Uhr von Gleis 9 ab. "
    "¿Dónde está la estación más cercana? "
    "Сегодня идёт снег. 今天天气很好。🙂\n"
)

SHAKESPEARE = (
    "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n"
    "Rough winds do shake the darling buds of May,\nAnd summer's lease hath all too short a date;\n"
)

TEXTS = {
    "constitution": CONSTITUTION,
    "code": CODE,
    "chat": CHAT,
    "languages": LANGUAGES,
    "shakespeare": SHAKESPEARE,
}

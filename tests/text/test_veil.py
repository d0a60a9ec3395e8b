from __future__ import annotations

import re
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.text.literals import Literals
from pagoda.text.veil import ControlTexts, Veil

LITERALS = st.lists(st.text("<ab>", min_size=1, max_size=4), min_size=1, max_size=5, unique=True)
TEXT = st.text("<ab> ", max_size=12)
FRAGMENTS = st.lists(st.tuples(TEXT, st.booleans(), st.booleans()), max_size=5)


@settings(max_examples=500)
@given(LITERALS, st.text("<ab>", max_size=30))
def test_literals_are_found_leftmost_and_longest(literals: list[str], text: str) -> None:
    ids = {literal: index for index, literal in enumerate(literals)}
    pattern = re.compile("|".join(sorted(map(re.escape, literals), key=len, reverse=True)))
    expected: list[str | int] = []
    end = 0
    for match in pattern.finditer(text):
        expected += [text[end : match.start()]] if match.start() > end else []
        expected.append(ids[match[0]])
        end = match.end()
    expected += [text[end:]] if end < len(text) else []
    assert list(Literals(ids).split(text)) == expected


def test_literals_with_characters_that_patterns_know() -> None:
    ids = {"[a]": 0, "]^": 1, "\\d": 2, "-": 3, "\n\n": 4, "\n": 5}
    assert list(Literals(ids).split("d[a]]^\\d-x\n\n\n")) == ["d", 0, 1, 2, 3, "x", 4, 5]


def test_no_literals_cut_nothing() -> None:
    assert list(Literals({}).split("abc")) == ["abc"]
    assert list(Literals({}).split("")) == []


@settings(max_examples=1500)
@given(LITERALS, st.lists(st.tuples(TEXT, st.booleans(), st.booleans()), max_size=5))
def test_no_control_token_has_a_character_of_a_client(
    control: list[str], fragments: list[tuple[str, bool, bool]]
) -> None:
    """Fragments, a client's or the template's, trimmed or not, are put side by side as a template does."""
    veil = Veil(ControlTexts(control), [text for text, _, _ in fragments])
    prompt, plain, ours = "", "", []
    for text, client, trim in fragments:
        shown = veil.hide(text) if client else text
        assert len(shown) == len(text)
        prompt += shown.strip() if trim else shown
        plain += text.strip() if trim else text
        ours += [not client] * (len(prompt) - len(ours))
    assert veil.reveal(prompt) == plain
    finder, begin = Literals(dict.fromkeys(control, 0)), 0
    while (found := finder.find(prompt, begin)) is not None:
        assert all(ours[found[0] : found[1]])
        begin = found[0] + 1


@given(LITERALS, TEXT)
def test_what_the_template_writes_is_found_as_ever(control: list[str], text: str) -> None:
    """A client's text between two that could not join with it changes nothing outside itself."""
    finder = Literals({literal: index for index, literal in enumerate(control)})
    veil = Veil(ControlTexts(control), [text])
    before, after = control[0] + "|", "|" + control[-1]
    parts = list(finder.split(before + veil.hide(text) + after))
    edges = list(finder.split(before)), list(finder.split(after))
    ids = [part for part in parts if isinstance(part, int)]
    assert ids == [part for edge in edges for part in edge if isinstance(part, int)]


def test_texts_without_control_text_are_left_alone() -> None:
    control = ControlTexts(["<|im_start|>", "<|im_end|>"])
    for text in ("hello", "a < b > c", "<think>x</think> y", "x <| y |> z", ""):
        assert Veil(control, [text]).hide(text) is text


def test_importing_the_tokenizer_is_light() -> None:
    heavy = "{'jinja2', 'tokenizers', 'numpy', 'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    code = f"import sys, pagoda.text.tokenizer; print(sorted({heavy}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

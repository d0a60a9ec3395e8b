"""What a beginning shares with whatever follows on it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.errors import InvalidRequest
from pagoda.text.opening import chat_opening, shared_start, text_opening
from pagoda.text.template import FALLBACKS
from pagoda.text.tokenizer import Tokenizer
from tiny import TinyShape, metadata

SHAPE = TinyShape(vocabulary=512)
PLAIN = Tokenizer.from_metadata(metadata(SHAPE))
CHATML, GEMMA, LLAMA3 = (
    Tokenizer.from_metadata({**metadata(SHAPE), "tokenizer.chat_template": FALLBACKS[token]})
    for token in ("<|im_start|>", "<start_of_turn>", "<|start_header_id|>")
)
SYSTEM = [{"role": "system", "content": "You are the support desk of a small shop.\n"}]
TALK = [*SYSTEM, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]
ASKED = TALK[:2]


@settings(max_examples=60, deadline=None)
@given(content=st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=12), more=st.booleans())
@pytest.mark.parametrize("tokenizer", [CHATML, GEMMA, LLAMA3], ids=["chatml", "gemma", "llama3"])
@pytest.mark.parametrize("begun", [SYSTEM, ASKED, TALK], ids=["system", "asked", "talk"])
def test_every_conversation_that_begins_so_has_it(tokenizer, begun, content, more):
    opening = chat_opening(tokenizer, begun)
    following = "assistant" if begun is ASKED else "user"
    longer = [*begun, {"role": following, "content": content}]
    if more:
        longer += [{"role": "user" if following == "assistant" else "assistant", "content": "x"}]
    assert tokenizer.encode_chat(longer)[: len(opening)] == opening


@pytest.mark.parametrize("tokenizer", [CHATML, GEMMA, LLAMA3], ids=["chatml", "gemma", "llama3"])
def test_it_has_all_of_what_was_said_and_who_speaks_next(tokenizer):
    shown = b"".join(map(tokenizer.token_bytes, chat_opening(tokenizer, SYSTEM))).decode()
    assert "support desk of a small shop." in shown
    assert "user" in shown
    asked = chat_opening(tokenizer, ASKED)
    assert tokenizer.encode_chat(ASKED)[: len(asked)] == asked, "the answer's beginning is a continuation too"
    assert len(tokenizer.encode_chat(ASKED)) - len(asked) <= 1


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(alphabet=" aetion.\n\té☃", min_size=2, max_size=20), more=st.sampled_from([" more", "\nx", ". ", ""])
)
def test_every_prompt_that_begins_so_has_it(text, more):
    try:
        opening = text_opening(PLAIN, text)
    except InvalidRequest:
        return
    assert PLAIN.encode_prompt(text + more)[: len(opening)] == opening
    assert len(b"".join(map(PLAIN.token_bytes, opening))) >= len(text.rstrip().encode()) - 8


def test_a_token_that_what_follows_may_change_is_left_out():
    whole = PLAIN.encode_prompt("the end\n")
    assert PLAIN.encode_prompt("the end\n\n")[: len(whole)] in (whole, (*whole[:-1], PLAIN.encode_prompt("\n\n")[0]))
    assert shared_start([(1, 2, 3), (1, 2, 4), (1, 2)]) == (1, 2)
    assert shared_start([(1, 2), (3,)]) == ()


def test_what_the_template_refuses_is_refused():
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        chat_opening(GEMMA, [{"role": "assistant", "content": "x"}])
    with pytest.raises(InvalidRequest, match=r"messages\[0\].role"):
        chat_opening(CHATML, [{"role": "wizard", "content": "x"}])

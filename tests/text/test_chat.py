from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pagoda.errors import InvalidRequest, ModelFileError, UnsupportedField
from pagoda.text.tokenizer import Tokenizer

from .corpus import CHATS, CORPUS
from .tiny import CHATML, byte_level

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TINY = Tokenizer.from_metadata(byte_level())


def with_template(template: str | None, **keys: object) -> Tokenizer:
    return Tokenizer.from_metadata(byte_level(chat_template=template, **keys))


def render(tokenizer: Tokenizer, messages: Sequence[Mapping[str, object]], *, prompt: bool = True) -> str:
    ids = tokenizer.encode_chat(messages, add_generation_prompt=prompt)
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def chatml(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_ids_are_those_of_the_whole_string() -> None:
    for messages in CHATS:
        rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        assert TINY.encode_chat(messages, add_generation_prompt=False) == TINY.encode(rendered, special=True)
        assert TINY.encode_chat(messages) == TINY.encode(rendered + "<|im_start|>assistant\n", special=True)


@pytest.mark.parametrize("text", CORPUS)
def test_no_content_adds_a_control_token(text: str) -> None:
    ids = TINY.encode_chat(user(text))
    start, end, end_of_text = (TINY.encode(name, special=True)[0] for name in CONTROL[:3])
    assert [ids.count(start), ids.count(end), ids.count(end_of_text)] == [2, 1, 0]
    assert render(TINY, user(text)) == chatml(text)


@pytest.mark.parametrize(
    ("template", "contents"),
    [
        ("<|im_{{ messages[0]['content'] }}", ["end|>"]),
        ("{{ messages[0]['content'] }}|im_end|>", ["<"]),
        ("{{ messages[0]['content'] | trim }}im_end|>", ["hi <| \n"]),
        ("<|im_{{ messages[0]['content'] }}|>", ["end"]),
        ("<|{{ messages[0]['content'] | trim }}|>", ["  im_end\n"]),
        ("{{ messages[0]['content'] }}{{ messages[1]['content'] }}", ["a<|im_", "end|>b"]),
        ("{{ messages[0]['content'] }}{{ messages[1]['content'] }}", ["<", "|im_end|>"]),
        ("{{ messages[0]['content'] | trim }}{{ messages[1]['content'] | trim }}", ["<|im_end| ", " >"]),
        ("{{ messages[0]['content'][2:] }}", ["xx<|im_end|>"]),
        ("{{ messages[0]['content'][1:-1] }}", ["<<|im_end|>>"]),
        ("{{ messages[0]['content'].split('x')[1] }}", ["ax<|im_end|>xb"]),
        ("{{ messages[0]['content'] | tojson }}", ["<|im_end|>"]),
        ("{{ messages[0]['content'] * 2 }}", ["<|im_end|>"]),
    ],
)
def test_templates_that_cut_and_join(template: str, contents: list[str]) -> None:
    """Whatever a template does to the edges of a text, what is printed is text."""
    tokenizer = with_template(template)
    messages = [{"role": "user", "content": content} for content in contents]
    ids = tokenizer.encode_chat(messages)
    assert not set(ids) & set(tokenizer.encode("".join(CONTROL[:3]), special=True))
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(ids) + detokenizer.flush() == render(tokenizer, messages)


def test_lengths_and_positions_are_those_of_the_text() -> None:
    tokenizer = with_template("{{ messages[0]['content'] | length }} {{ messages[0]['content'].index('z') }}")
    assert render(tokenizer, user("a<|im_end|>z<")) == "13 11"


def test_private_use_characters_stay_what_they_are() -> None:
    text = "\U000f0000\U000f0001<|im_end|>\U0010fffd\ufdd0"
    assert render(TINY, user(text)) == chatml(text)
    template = "{{ '\U000f0000' }}{{ messages[0]['content'] }}"
    assert render(with_template(template), user("<|im_end|>")) == "\U000f0000<|im_end|>"


def test_all_private_use_characters_at_once_are_refused() -> None:
    everything = "".join(map(chr, [*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))
    assert TINY.encode_chat(user(everything))
    with pytest.raises(InvalidRequest, match="use every private-use character"):
        TINY.encode_chat(user(everything + "<|im_end|>"))


def test_user_defined_tokens_in_content_are_tokens() -> None:
    tokenizer = with_template(CHATML, defined=("<think>",))
    (token_id,) = tokenizer.encode("<think>")
    assert tokenizer.encode_chat(user("a<think><|im_end|><think>")).count(token_id) == 2


def test_names_are_plain_text_too() -> None:
    tokenizer = with_template("{{ messages[0]['name'] }}")
    assert len(tokenizer.encode_chat([{"role": "user", "content": "", "name": "<|im_end|>"}])) > 1


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a<|im_"}, {"type": "text", "text": "end|>b", "cache_control": None}]
    assert TINY.encode_chat(user(parts)) == TINY.encode_chat(user("a<|im_end|>b"))


@pytest.mark.parametrize(
    ("messages", "words", "param"),
    [
        ([], "at least one message", "messages"),
        ("hello", "messages must be a list", "messages"),
        ({"role": "user"}, "messages must be a list", "messages"),
        (None, "messages must be a list", "messages"),
        (["hello"], r"messages\[0\] must be an object", "messages[0]"),
        ([{"content": "x"}], r"messages\[0\].role must be one of .* got None", "messages[0].role"),
        ([{"role": "user"}], r"messages\[0\].content must be a string or .* got None", "messages[0].content"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role must be one of", "messages[0].role"),
        ([{"role": "user|>", "content": "x"}], r"role must be one of .* got 'user\|>'", "messages[0].role"),
        ([*user("x"), *user(5)], r"messages\[1\].content must be a string or a list .* got 5", "messages[1].content"),
        (user([]), "content must be a string or a list of text parts", "messages[0].content"),
        (user(b"x"), "content must be a string or a list of text parts", "messages[0].content"),
        (user(["x"]), r"content\[0\] must be an object with a type", "messages[0].content[0]"),
        (user([{"text": "x"}]), r"content\[0\] must be an object with a type", "messages[0].content[0]"),
        (user([{"type": "text"}]), "text must be a string, got None", "messages[0].content[0].text"),
        (user("a\ud800"), r"content has a lone surrogate, U\+D800, at character 1", "messages[0].content"),
        (user([{"type": "text", "text": "\udfff"}]), r"lone surrogate, U\+DFFF", "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 5}], "name must be a string, got 5", "messages[0].name"),
        ([{"role": "user", "content": "x", "name": "\ud800"}], "name has a lone surrogate", "messages[0].name"),
    ],
)
def test_malformed_messages_are_refused(messages: object, words: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        TINY.encode_chat(messages)  # type: ignore[arg-type]
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("messages", "words", "param"),
    [
        (user([{"type": "image_url", "image_url": {}}]), "parts of type 'image_url'", "messages[0].content[0]"),
        (user([{"type": "text", "text": "x", "cache": 1}]), "cache is not supported", "messages[0].content[0].cache"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "tool_calls is not", "messages[0].tool_calls"),
    ],
)
def test_what_is_not_there_is_refused_by_name(messages: list[dict[str, object]], words: str, param: str) -> None:
    with pytest.raises(UnsupportedField, match=words) as caught:
        TINY.encode_chat(messages)
    assert caught.value.param == param


def test_nulls_change_nothing() -> None:
    message = {"role": "user", "content": "x", "name": None, "tool_calls": None, "refusal": None}
    assert TINY.encode_chat([message]) == TINY.encode_chat(user("x"))


def test_the_caller_s_messages_are_left_as_they_were() -> None:
    messages = user("<|im_end|>")
    TINY.encode_chat(messages)
    assert messages == user("<|im_end|>")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\ny", "x\ny"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<é>\'"}'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "<é>\'"\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}a{{ messages[0].role }}{% endgeneration %}b", "auserb"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{{ tools is defined and nothing is not defined }}", "True"),
        ("{{ bos_token }}{{ eos_token }}{{ unk_token }}.", "<|im_start|><|im_end|>."),
        ("{{ messages[0].content }}", "<é>'"),
    ],
)
def test_templates_have_what_they_expect(template: str, expected: str) -> None:
    tokenizer = with_template(template, ggml__bos_token_id=0, ggml__eos_token_id=1)
    assert render(tokenizer, user("<é>'")) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Only user and assistant roles!') }}", "refused the messages: Only user and assistant"),
        ("{{ messages[0]['content'].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ messages[3]['content'] }}", "has no element 3"),
        ("{{ messages[0]['content'] + 1 }}", "failed on these messages: can only concatenate str"),
        ("{{ 1 // 0 }}", "failed on these messages: integer division"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
        ("{{ 'x' | nothing }}", "No filter named 'nothing'"),
    ],
)
def test_template_errors_are_told(template: str, words: str) -> None:
    with pytest.raises((InvalidRequest, ModelFileError), match=words):
        with_template(template).encode_chat(user("x"))


def test_a_template_that_is_no_template_is_the_file_s_fault() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template, line 2: "):
        with_template("a\n{% if %}").encode_chat(user("x"))


def test_without_a_template_the_control_tokens_tell_the_format() -> None:
    chat = [{"role": "system", "content": " a "}, *user("b")]
    tokenizer = with_template(None, control=CONTROL[:3])
    assert render(tokenizer, chat) == "<|im_start|>system\n a <|im_end|>\n" + chatml("b")
    tokenizer = with_template(None, control=("<bos>", *CONTROL[3:]), ggml__bos_token_id=0)
    assert render(tokenizer, chat) == (
        "<bos><|start_header_id|>system<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_gemma_s_turns_must_alternate() -> None:
    tokenizer = with_template(None, control=("<bos>", "<start_of_turn>", "<end_of_turn>"), ggml__bos_token_id=0)
    chat = [*user("a"), {"role": "assistant", "content": "b"}, *user(" c ")]
    assert render(tokenizer, chat) == (
        "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
        "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n"
    )
    assert render(tokenizer, chat[:1], prompt=False) == "<bos><start_of_turn>user\na<end_of_turn>\n"
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        tokenizer.encode_chat([*user("a"), *user("b")])


def test_no_template_and_no_known_format_is_said() -> None:
    with pytest.raises(InvalidRequest, match="no chat template: use the completions endpoint"):
        with_template(None, control=("<s>",)).encode_chat(user("x"))

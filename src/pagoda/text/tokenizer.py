"""The tokenizer: text to token ids and back, as one model file has it.

Knows which part of a text may become control tokens. Leaves the encoding of plain text to `bytelevel`,
`sentencepiece`, `unigram` or `wordpiece`, and the format of chats to `template`. Built once, immutable, usable from any
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from pagoda.errors import InvalidRequest, UnsupportedModel
from pagoda.text.bytelevel import ByteLevel
from pagoda.text.detokenizer import Detokenizer
from pagoda.text.literals import Literals
from pagoda.text.messages import check_text, normalize
from pagoda.text.sentencepiece import SentencePiece, spelled_byte
from pagoda.text.template import ChatTemplate, choose_template
from pagoda.text.unigram import Unigram
from pagoda.text.veil import ControlTexts, Veil
from pagoda.text.vocabulary import SILENT, Kind, Vocabulary, read_vocabulary
from pagoda.text.wordpiece import WordPiece


class Encoder(Protocol):
    """How plain text becomes ids: one implementation per `tokenizer.ggml.model`."""

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Encode each text by itself; nothing in it is special."""

    def spelled(self, token: str) -> bytes:
        """The bytes that a normal token stands for."""


class Tokenizer:
    """Text to token ids and back. `vocabulary` is how many ids there are; `stop_ids` end an answer."""

    def __init__(self, vocabulary: Vocabulary, template: str | None) -> None:
        self.vocabulary = len(vocabulary.tokens)
        self.stop_ids = vocabulary.stop_ids
        self._vocabulary = vocabulary
        self._encoder = _encoder(vocabulary)
        sentencepiece = isinstance(self._encoder, SentencePiece)
        default_bos = sentencepiece or (isinstance(self._encoder, ByteLevel) and self._encoder.words.add_bos)
        add_bos = default_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self._before = (vocabulary.bos,) if add_bos and vocabulary.bos is not None else ()
        self._after = (vocabulary.eos,) if vocabulary.add_eos and vocabulary.eos is not None else ()
        self._space_prefix = sentencepiece and vocabulary.space_prefix is not False
        self._plain = Literals(vocabulary.defined)
        self._special = Literals({**vocabulary.defined, **vocabulary.control})
        names = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos, "unk_token": vocabulary.unknown}
        spelled = {name: vocabulary.named(token_id) for name, token_id in names.items()}
        self._template = None if template is None else ChatTemplate(template, spelled)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made to answer conversations: without a template it can only continue a text."""
        return self._template is not None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build it from a model file's metadata: GGUF keys and their values.

        Raises:
            ModelFileError: the metadata contradicts itself.
            UnsupportedModel: a kind of tokenizer or pre-tokenizer that Pagoda does not have.
        """
        vocabulary = read_vocabulary(metadata)
        return cls(vocabulary, choose_template(metadata, vocabulary.control))

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Token ids of a text, with nothing added. `special`: the text of control tokens becomes these tokens.

        Raises:
            InvalidRequest: the text has a lone surrogate.
        """
        check_text(text, "text")
        return self._encode((self._special if special else self._plain).split(text))

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt to be continued: as `encode`, with BOS first (and EOS last) if the model wants it.

        Raises:
            InvalidRequest: the text has a lone surrogate.
        """
        check_text(text, "prompt")
        return (*self._before, *self._encode(self._plain.split(text)), *self._after)

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a conversation in the model's own format, with the beginning of an answer.

        The ids are those of the whole rendered string, control tokens included, except that no control token ever
        takes in a character of a message's content or name: typed there, its text is plain text.

        Raises:
            InvalidRequest: messages that are malformed, or that the model's template refuses.
        """
        chat = normalize(messages)
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use the completions endpoint", "messages")
        texts = [text for message in chat for text in message.values()]
        veil = Veil(self._control, [*texts, self._template.source])
        for message in chat:
            message.update({key: veil.hide(text) for key, text in message.items() if key != "role"})
        prompt = self._template.render(chat, add_generation_prompt)
        parts: list[str | int] = []
        for part in self._special.split(prompt):
            if isinstance(part, str) and (shown := veil.reveal(part)) != part:
                parts += self._plain.split(shown)
            else:
                parts.append(part)
        return self._encode(parts)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token as it would be printed, control tokens by their names: for log-probabilities."""
        token, kind = self._token(token_id)
        if kind == Kind.BYTE:
            return bytes([spelled_byte(token)])
        return self._encoder.spelled(token) if kind == Kind.NORMAL else token.encode()

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself; U+FFFD where its bytes are a part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def detokenizer(self) -> Detokenizer:
        """A new one, for one sequence's output: a continuation, so a blank before its first word is kept."""
        return Detokenizer(self._output)

    def _output(self, token_id: int) -> bytes:
        """What a token adds to the output: nothing, if it is a control token."""
        return b"" if self._vocabulary.kinds[token_id] in SILENT else self.token_bytes(token_id)

    def _token(self, token_id: int) -> tuple[str, int]:
        if not 0 <= token_id < self.vocabulary:
            raise IndexError(f"token ids run from 0 to {self.vocabulary - 1}, got {token_id}")
        return self._vocabulary.tokens[token_id], self._vocabulary.kinds[token_id]

    @cached_property
    def _control(self) -> ControlTexts:
        return ControlTexts(self._vocabulary.control)

    def _encode(self, parts: Iterable[str | int]) -> tuple[int, ...]:
        """Encode the runs of text among `parts`, all in one call; ids stay as they are."""
        cut = list(parts)
        texts = [(" " if self._space_prefix else "") + part for part in cut if isinstance(part, str)]
        runs = iter(self._encoder.encode(texts))
        ids: list[int] = []
        for part in cut:
            if isinstance(part, str):
                ids += next(runs)
            else:
                ids.append(part)
        return tuple(ids)


def _encoder(vocabulary: Vocabulary) -> Encoder:
    if vocabulary.model == "gpt2":
        return ByteLevel(vocabulary)
    if vocabulary.model == "llama":
        return SentencePiece(vocabulary)
    if vocabulary.model == "t5":
        return Unigram(vocabulary)
    if vocabulary.model == "bert":
        return WordPiece(vocabulary)
    raise UnsupportedModel(
        f"tokenizer.ggml.model is {vocabulary.model!r}, which Pagoda does not have; it has gpt2 (byte-level BPE), "
        "llama (SentencePiece BPE), t5 (unigram) and bert (WordPiece)"
    )

"""Chat templates: messages to the one string that the model was trained to continue.

Knows Jinja and the names that templates in circulation expect. A template comes with the model file and is trusted no
further than Jinja's immutable sandbox goes. Does not know tokens or who wrote the messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from pagoda.errors import InvalidRequest, ModelFileError

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# Gemma has no system turn: what the system says goes before the first user's words.
_GEMMA = (
    "{{ bos_token }}"
    "{% set system = namespace(text='') %}"
    "{% if messages[0]['role'] in ('system', 'developer') %}"
    "{% set system.text = messages[0]['content'] | trim + '\n\n' %}{% set messages = messages[1:] %}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('roles must alternate: user, assistant, user and so on') }}"
    "{% endif %}"
    "{{ '<start_of_turn>' + ('user' if message['role'] == 'user' else 'model') + '\n' }}"
    "{{ (system.text if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
FALLBACKS = {"<start_of_turn>": _GEMMA, "<|start_header_id|>": _LLAMA3, "<|im_start|>": _CHATML}
"""For model files without a template: the control token that tells the format, and a template of that format."""


class ChatTemplate:
    """One template and the variables that every use of it has. Immutable; compiled when first used."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """Write out a conversation, and the beginning of an answer if `add_generation_prompt`.

        Raises:
            InvalidRequest: the template refuses the messages; the message is the template's own.
            ModelFileError: the template is no Jinja.
        """
        template = self._template
        from jinja2 import TemplateError

        values = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return template.render(self._variables | values)
        except TemplateError as error:
            raise InvalidRequest(f"the model's chat template refused the messages: {error}", "messages") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidRequest(f"the model's chat template failed on these messages: {error}", "messages") from error

    @cached_property
    def _template(self) -> Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise ModelFileError(f"tokenizer.chat_template, line {error.lineno}: {error.message}") from error


def choose_template(metadata: Mapping[str, object], control: Mapping[str, int]) -> str | None:
    """The model file's own template, else one for the format that its control tokens show, else None."""
    own = metadata.get("tokenizer.chat_template")
    if isinstance(own, str) and own:
        return own
    return next((template for token, template in FALLBACKS.items() if token in control), None)


def _environment() -> Environment:
    """Jinja as templates expect it: the settings and helpers that the transformers library gives them."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant says, for training: here it prints its body."""

        tags = {"generation"}  # noqa: RUF012 (as in Jinja's own)

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)

"""`pagoda chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from pagoda.cli._options import (
    MODEL,
    MaxTokens,
    MinP,
    ModelArgument,
    PrefixCache,
    Quantize,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    open_llm,
    sampling,
    with_recommended,
)
from pagoda.errors import InvalidRequest, PromptTooLong
from pagoda.types import SamplingParams

if TYPE_CHECKING:
    from pagoda.llm import LLM

HELP = """/help   this
/reset  forget the conversation
/exit   leave, as does Ctrl-D
Ctrl-C  stops an answer"""


def chat(
    model: ModelArgument = MODEL.model,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    threads: Threads = None,
    quantize: Quantize = None,
    prefix_cache: PrefixCache = True,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D or /exit leaves, /reset forgets, /help helps.

    Example: [bold]pagoda chat --system "Answer in one sentence."[/bold]
    """
    given = sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() a history and line editing)
    with open_llm(model, threads=threads, quantize=quantize, max_num_seqs=1, prefix_cache=prefix_cache) as llm:
        if not llm.tokenizer.has_chat_template:
            raise InvalidRequest(f"{model} has no chat template: try pagoda generate --raw")
        Conversation(llm, with_recommended(llm, given), system).run()


@dataclass
class Conversation:
    """What was said so far, and the loop that adds to it."""

    llm: LLM
    params: SamplingParams
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def run(self) -> None:
        """Read lines and answer them until the user leaves."""
        interactive = sys.stdin.isatty()
        self.reset()
        if interactive:
            typer.echo("/help shows what there is besides talking.", err=True)
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except EOFError:
                if interactive:
                    typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo("\nCtrl-D or /exit leaves.", err=True)
                continue
            if line == "/exit":
                return
            self.take(line)

    def take(self, line: str) -> None:
        """One line: a command, or something to answer."""
        if line == "/reset":
            self.reset()
            typer.echo("Forgotten.", err=True)
        elif line == "/help":
            typer.echo(HELP, err=True)
        elif line.startswith("/"):
            typer.echo(f"There is no {line.split()[0]}; /help shows what there is.", err=True)
        elif line:
            self.answer(line)

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def answer(self, line: str) -> None:
        """Stream an answer; what was said before Ctrl-C stays in the conversation."""
        said: list[str] = []
        asked = [*self.messages, {"role": "user", "content": line}]
        try:
            with self.llm.stream(asked, self.params) as events:
                for event in events:
                    said.append(event.text)
                    typer.echo(event.text, nl=False)
        except PromptTooLong:
            typer.echo("The conversation is longer than the model can read: /reset begins a new one.", err=True)
            return
        except KeyboardInterrupt:
            typer.echo(" [stopped]", nl=False, err=True)
        typer.echo()
        self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]

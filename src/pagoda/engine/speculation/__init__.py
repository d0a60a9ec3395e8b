"""Speculation: guessing a sequence's next tokens, so that one step can verify several. Never changes an output.

A draft is right exactly if it is the token that plain decoding would have sampled at its place: noise is keyed by
position, so that is the same whether it was guessed or not. Leviathan et al. 2023, "Fast inference from transformers
via speculative decoding", without its rejection sampling.
"""

from pagoda.engine.speculation.controller import Controller
from pagoda.engine.speculation.guesser import GuessingDrafter
from pagoda.engine.speculation.ngram import NgramDrafter
from pagoda.engine.speculation.texts import Texts

__all__ = ["Controller", "GuessingDrafter", "NgramDrafter", "controller"]


def controller(speculate: str, texts: Texts) -> Controller:
    """As `SchedulerConfig.speculate` says; `texts` are the drafter's who looks for what was said before."""
    if speculate == "off":
        return Controller()
    kind, of, _ = speculate.partition(":")
    if of:
        return Controller((NgramDrafter(texts), GuessingDrafter(kind)))
    return Controller((NgramDrafter(texts),))

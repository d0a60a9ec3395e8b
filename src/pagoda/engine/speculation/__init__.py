"""Speculation: guessing a sequence's next tokens, so that one step can verify several. Never changes an output.

A draft is right exactly if it is the token that plain decoding would have sampled at its place: noise is keyed by
position, so that is the same whether it was guessed or not. Leviathan et al. 2023, "Fast inference from transformers
via speculative decoding", without its rejection sampling.
"""

from pagoda.engine.speculation.controller import Controller
from pagoda.engine.speculation.guesser import GuessingDrafter
from pagoda.engine.speculation.ngram import NgramDrafter

__all__ = ["Controller", "GuessingDrafter", "NgramDrafter", "controller"]


def controller(speculate: str) -> Controller:
    """As `SchedulerConfig.speculate` says."""
    if speculate == "off":
        return Controller()
    kind, of, _ = speculate.partition(":")
    if of:
        return Controller((NgramDrafter(), GuessingDrafter(kind)))
    return Controller((NgramDrafter(),))

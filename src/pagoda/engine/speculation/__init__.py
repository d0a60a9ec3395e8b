"""Speculation: guessing a sequence's next tokens, so that one step can verify several. Never changes an output.

A draft is right exactly if it is the token that plain decoding would have sampled at its place: noise is keyed by
position, so that is the same whether it was guessed or not. Leviathan et al. 2023, "Fast inference from transformers via
speculative decoding", without its rejection sampling.
"""

from pagoda.engine.speculation.controller import Controller
from pagoda.engine.speculation.ngram import NgramDrafter


def controller(speculate: str) -> Controller:
    """As `SchedulerConfig.speculate` says."""
    return Controller(() if speculate == "off" else (NgramDrafter(),))

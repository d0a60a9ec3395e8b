"""`victim`: who loses its pages when they run out. Knows page counts and lengths; nothing of plans.

Whoever may be chosen is younger than who needs the pages: so the oldest can have them all, and nobody starves. Among
those, the choice goes by what the loss costs: the tokens to be computed again if nothing of it stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagoda.engine.request import Sequence


def victim(younger: Iterable[Sequence], lack: int, alone: Callable[[int], int], page_size: int) -> Sequence | None:
    """The cheapest of those that give enough pages; if none does, the one that gives most. Of equals the youngest.

    Args:
        younger: whose pages may be taken.
        lack: pages wanted.
        alone: of a sequence's pages in one group, how many nobody else uses: so many it gives.
        page_size: tokens of a page.
    """
    enough: tuple[int, int, Sequence] | None = None
    most: tuple[int, int, Sequence] | None = None
    for sequence in younger:
        gives = alone(sequence.id)
        if gives >= lack:
            found = (min(sequence.computed, gives * page_size), -sequence.id, sequence)
            enough = found if enough is None else min(enough, found)
        most = max(most or (-1, 0, sequence), (gives, sequence.id, sequence))
    chosen = enough or most
    return None if chosen is None else chosen[2]

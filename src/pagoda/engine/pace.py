"""`Pace`: how long the next step may take, and so how many rows of prompts it has room for.

Knows predicted seconds and targets; no pages. Prompts in chunks between others' tokens after Agrawal et al. 2024,
"Sarathi-Serve", where the chunk is a constant; here it follows from the time that is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda.config import SchedulerConfig
from pagoda.engine.cost import StepCost, Work
from pagoda.engine.request import Sequence

MARGIN, DOUBT, LEAST_MARGIN = 0.9, 2.5, 0.6
"""Of a TPOT target, what a step is planned to take if predictions are right; how many of their mean relative errors a
step may be late, so that the slowest of a hundred keeps it too; and the least of a target that is planned for.
"""
STALL = 2.0
"""Without a target: how much longer a step may take for the prompts in it."""
SMOOTH_S = 0.05
"""Without a target: what a step may take at any rate, 20 tokens a second."""
FEW = 8
"""Without a target: if so many wait to come in, or as many as run, a step may take longer: a larger batch gives
all of them more tokens per second, and the queue would not get shorter otherwise.
"""
PRESSED_S = 0.16
"""What a step may take then."""
LONGEST_S = 0.25
"""What a step may take when nobody waits for a token: a newcomer waits for those in flight."""
LEAST_ROWS = 16
"""Rows of a prompt that any step has, however late it is: prompts must get on."""
PANEL = 8
"""A step's rows come in eights, which is what the kernels take at a time, but at a prompt's end."""


@dataclass(frozen=True, slots=True)
class Load:
    """What runs, as of a plan."""

    running: int = 0
    """Sequences that hold pages."""
    singles: int = 0
    """Sequences with one token due."""
    attended: int = 0
    """Sum of the positions they attend to."""
    tpot: float | None = None
    """The shortest TPOT to keep for any of them, in seconds."""
    begun: int = 0
    """Tokens still due of prompts that were begun."""
    waiting: int = 0
    """Sequences that hold none, if all are one tenant's: another one shall be let in quickly."""
    crowded: bool = False
    """Whether somebody waits for pages."""


class Pace:
    """The time of one step: `open` it, then `take` rows."""

    def __init__(self, config: SchedulerConfig, cost: StepCost) -> None:
        self._fixed = config.chunk is not None
        self._cost = cost
        self._target = None if config.tpot_target_ms is None else config.tpot_target_ms / 1000
        self._left = self._more = 0.0
        self.seconds = math.inf
        """What the step may take, drafts included."""
        self._any = False
        self._rows = 0

    def tpot(self, sequence: Sequence) -> float | None:
        """The TPOT to keep for a sequence, in seconds."""
        own = sequence.state.request.slo.tpot_ms
        return self._target if own is None else own / 1000

    def open(self, load: Load) -> None:
        """A new step, for those of the load with one token due."""
        self._any = False
        self._rows = load.singles
        if not self._fixed:
            calm = self._cost.predict(Work(load.singles, load.singles, load.attended))
            self.seconds = self.allowed(load, calm)
            self._left = self.seconds - calm
            self._more = LONGEST_S - self.seconds if load.tpot is None else 0.0

    def allowed(self, load: Load, calm: float) -> float:
        """Seconds that a step may take which without prompts takes `calm`; without end if the chunk is fixed."""
        if self._fixed:
            return math.inf
        if load.tpot is not None:
            return min(max(MARGIN / (1 + DOUBT * self._cost.error), LEAST_MARGIN) * load.tpot, LONGEST_S)
        if not load.singles:
            return LONGEST_S
        usual = min(max(STALL * calm, SMOOTH_S), LONGEST_S)
        return usual + min(load.waiting / max(load.singles, FEW), 1.0) * (max(usual, PRESSED_S) - usual)

    def rows(self, sequence: Sequence, due: int, most: int, favoured: bool = False) -> int:
        """Rows for a prompt, up to what is due and to `most`; 0 if the step is full. One that is favoured, because its
        tenant was served less than all who wait for a token, has the time up to `LONGEST_S`, if there is no target.
        """
        if self._fixed or due <= 0:
            return min(due, most)
        context = sequence.computed + min(due, most) / 2
        left = self._left + (self._more if favoured else 0.0)
        fit = int(max(left, 0.0) / self._cost.row(context))
        if not self._any:
            fit = max(fit, LEAST_ROWS)
        if fit < due:
            over = (self._rows + fit) % PANEL
            fit += PANEL - over if over > PANEL // 2 else -over
        return min(max(fit, 0), due, most)

    def take(self, sequence: Sequence, rows: int) -> None:
        """So many rows of a prompt are in the step."""
        self._any = True
        self._rows += rows
        if not self._fixed:
            self._left -= rows * self._cost.row(sequence.computed + rows / 2)

    def room(self, due: int, most: int, favoured: bool = False) -> bool:
        """Whether the step has rows for a prompt that has so many tokens due, of which it may have `most`."""
        if self._fixed or not self._any:
            return most > 0
        left = self._left + (self._more if favoured else 0.0)
        fit = int(max(left, 0.0) / self._cost.row(0.0))
        return fit >= min(due, PANEL) and most > 0

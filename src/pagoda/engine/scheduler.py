"""`Scheduler`: what the next step computes. One rule: `computed` catches up with `known`; oldest sequences first.

Knows lengths and page counts; no text, no time, no threads. Counts are all it needs, so it plans on while the tokens
themselves are still in flight. Iteration-level scheduling after Yu et al. 2022, "Orca"; prompts in chunks between
others' tokens after Agrawal et al. 2024, "Sarathi-Serve".
"""

from __future__ import annotations

import logging

from pagoda.cache import Extension, KVCache, Match, NoDisk
from pagoda.config import SchedulerConfig
from pagoda.engine.outline import Outline
from pagoda.engine.request import Sequence
from pagoda.engine.roster import Roster
from pagoda.engine.speculation.controller import Controller
from pagoda.obs.observer import Observer
from pagoda.plan import PageMove, StepPlan

_NO_DISK = NoDisk()
_log = logging.getLogger(__name__)


class Scheduler:
    """Makes plans of a roster's sequences.

    Only a younger sequence loses its pages to an older one, and the oldest can have them all: so it always gets on.
    What could never fit was refused before (`admission`): so every sequence becomes the oldest, or ends earlier.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        cache: KVCache,
        observer: Observer,
        speculation: Controller | None = None,
        disk: NoDisk = _NO_DISK,
    ) -> None:
        self._roster = roster
        self._cache = cache
        self._observer = observer
        self._speculation = speculation or Controller()
        self._disk = disk
        self._rows = config.chunk
        self._slots = config.max_num_seqs
        self._steps = 0
        self._outline = Outline(0)
        self._younger = 0
        self._gates = (self._nobody_short, self._slot_free, self._rows_free, self._prompt_ready)
        self._limiters = (self._rows_left, self._up_to_fork)

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can be computed before a plan in flight is finished.

        A plan with drafts must be finished before: how long its sequences are depends on it.
        """
        running, waiting = self._roster.running, self._roster.waiting
        self._outline = outline = Outline(self._rows)
        outline.loads, back = self._disk.begin()
        self._roster.come_back(back)
        alone = not waiting and all(sequence.computed >= sequence.known - 1 for sequence in running)
        self._speculation.open(len(running), self._rows, alone)
        index = 0
        while index < len(running):  # preemption shortens the list at its end
            self._younger = len(running) - index - 1
            self._place(running[index])
            index += 1
        self._younger = 0
        while waiting and all(gate(waiting.head()) for gate in self._gates):
            head = waiting.head()
            match = self._roster.match(head)
            donor = self._roster.donor(head, match)
            if not (self._nobody_ahead(head, match, donor) and self._pages_free(head, match, donor)):
                break
            if donor is None and not head.sought and self._on_disk(head, match):
                self._roster.set_aside(head)
                continue
            self._admit(head, match, donor)
            self._place(head)
        outline.saves = self._disk.saves()
        if outline.empty:
            return None
        self._steps += 1
        return outline.close(self._steps, self._roster.ends())

    def saving(self, moves: tuple[PageMove, ...]) -> StepPlan:
        """A plan that saves pages and does nothing else."""
        self._steps += 1
        return StepPlan(self._steps, (), ends=self._roster.ends(), saves=moves)

    def commit(self, plan: StepPlan) -> None:
        """A plan is handed over: whole pages of tokens that are known may be shared by later ones."""
        page_size = self._cache.page_size
        for chunk in plan.chunks:
            sequence = self._roster.live.get(chunk.sequence)
            if sequence is not None and sequence.holds_pages:
                verified = min(sequence.computed, sequence.values) // page_size
                if self._cache.committed(sequence.id) // page_size < verified:
                    self._roster.commit(sequence)

    # A chunk: as much as is due, as every limiter allows, and as there are pages for.

    def _place(self, sequence: Sequence) -> None:
        size = sequence.due()
        for limiter in self._limiters:
            size = min(size, limiter(sequence))
        if size <= 0:
            return
        end = sequence.computed + size
        drafter, drafts = self._speculation.draft(sequence) if size == 1 and end == sequence.known else ("", ())
        if drafts:
            extension = self._cache.extend(sequence.id, sequence.computed, end + len(drafts))
            if extension.fits:  # nobody loses a page for a guess
                self._outline.add(sequence, size, extension, self._cache.table(sequence.id), drafter, drafts)
                return
        room = self._make_room(sequence, end)
        if room is not None:
            self._outline.add(sequence, size, room, self._cache.table(sequence.id))

    def _rows_left(self, _: Sequence) -> int:
        """One that comes back from the disk may have much due and be older than others: it leaves each of them a row.
        Else only the youngest that runs can have more than one token due, and it comes last.

        Drafts have the rows that are left over if everybody has one.
        """
        return min(self._outline.rows, max(self._outline.rows - self._younger, 1))

    def _up_to_fork(self, sequence: Sequence) -> int:
        """Choices part before the prompt's last token: stop there once, so that none ends before others share it."""
        left = sequence.fork_point - sequence.computed
        first = len(sequence.state.sequences) > 1 and sequence.known == sequence.fork_point + 1
        return left if first and left > 0 else self._rows

    def _make_room(self, sequence: Sequence, upto: int) -> Extension | None:
        """Slots for positions below `upto`, taken from younger sequences if need be; None if all others are older."""
        while not (extension := self._cache.extend(sequence.id, sequence.computed, upto)).fits:
            self._outline.short = True
            if self._roster.running[-1] is sequence:
                return None  # it keeps its pages and waits: an older one takes them if it must
            victim = self._roster.preempt()
            assert victim.id not in self._outline.placed, "a sequence loses pages that this step writes to"
            name, older = victim.state.request.id, sequence.state.request.id
            _log.info("request %s, choice %d, lost its pages to %s, which is older", name, victim.choice, older)
            self._observer.preempted(name)
        return extension

    # Admission: the head of the queue comes in if every gate lets it; nobody overtakes it.

    def _admit(self, head: Sequence, match: Match, donor: Sequence | None) -> None:
        first = head.state.cache is None
        self._roster.admit(head, match, donor)
        if donor is None:
            self._disk.found(match)
        if first:
            self._observer.matched(head.state.request, match.length, match.cause)

    def _nobody_short(self, _: Sequence) -> bool:
        """Whoever runs has got the pages it needs."""
        return not self._outline.short

    def _slot_free(self, _: Sequence) -> bool:
        return len(self._roster.running) < self._slots

    def _rows_free(self, _: Sequence) -> bool:
        return self._outline.rows > 0

    def _prompt_ready(self, head: Sequence) -> bool:
        """No other choice is computing the same prompt just now."""
        others = head.state.sequences
        return len(others) == 1 or not any(o.holds_pages and o.computed < o.fork_point for o in others)

    def _nobody_ahead(self, head: Sequence, match: Match, donor: Sequence | None) -> bool:
        """Nobody computes a page or more of what it knows beyond what was found: who does runs, so the wait ends."""
        return donor is not None or not self._roster.computes(head, match)

    def _on_disk(self, head: Sequence, match: Match) -> bool:
        """Whether more of what it knows than was found is being read."""
        return self._disk.fetch(head, head.key, head.tokens(0, head.values), match)

    def _pages_free(self, head: Sequence, match: Match, donor: Sequence | None) -> bool:
        """Pages for all it knows, and one in hand for each that runs: or it would soon be thrown out again."""
        if not self._roster.running:
            return True
        if donor is not None:
            wanted = self._cache.pages_for(head.known) - head.fork_point // self._cache.page_size
        else:
            wanted = self._cache.wanted(match, head.known)
        return wanted + len(self._roster.running) <= self._cache.available

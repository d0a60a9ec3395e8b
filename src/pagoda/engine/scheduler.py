"""`Scheduler`: what the next step computes. One rule: `computed` catches up with `known`.

Knows lengths, ranks and page counts; no text, no clock, no threads. Counts are all it needs, so it plans on while the
tokens themselves are still in flight. Iteration-level scheduling after Yu et al. 2022, "Orca". Whoever has one token
due gets its row; the time that is left (`pace`) goes to prompts, the most urgent of the tenant served least first.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from enum import Enum

from pagoda.cache import Extension, KVCache, Match, NoDisk, PathStart
from pagoda.config import SchedulerConfig
from pagoda.engine import pressure
from pagoda.engine.outline import Outline
from pagoda.engine.pace import Load, Pace
from pagoda.engine.request import Sequence
from pagoda.engine.roster import Roster
from pagoda.engine.shares import OUTPUT_WEIGHT
from pagoda.engine.speculation.controller import Controller
from pagoda.engine.speculation.drafter import NO_GUESS
from pagoda.obs.observer import Observer
from pagoda.plan import PageMove, StepPlan, TreePath, tree_paths

_NO_DISK = NoDisk()
_log = logging.getLogger(__name__)
MOST_PASSED = 8
"""Waiting sequences that wait for what another computes, and that others may pass, in one step."""


class _Gate(Enum):
    """Whether a waiting sequence comes in."""

    OPEN = 0
    PASS = 1
    """Not it, but those behind it may."""
    AWAY = 3
    """It left the queue until what the disk has of it was read."""
    SHUT = 2
    """Nobody."""


class Scheduler:
    """Makes plans of a roster's sequences.

    Only a younger sequence (`pressure` says which) loses its pages to an older one. If one was short of pages although
    younger ones have some, the next step serves all in order of age, and so the oldest can have them all: it always
    gets on. What could never fit was refused before (`admission`): so every sequence becomes the oldest, or ends
    earlier.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        cache: KVCache,
        observer: Observer,
        pace: Pace,
        speculation: Controller | None = None,
        disk: NoDisk = _NO_DISK,
    ) -> None:
        self._roster = roster
        self._cache = cache
        self._observer = observer
        self._rows = config.rows
        self._slots = min(config.max_num_seqs, self._rows)
        self._pace = pace
        self._speculation = speculation or Controller()
        self._disk = disk
        self._drafts = bool(self._speculation.drafters)
        self._steps = 0
        self._outline = Outline(0)
        self._by_age = False
        self.load = Load()
        """What runs, as of the last plan."""
        self._crowded = False
        self._singles_of = set[str]()
        self._unfinished: list[Sequence] = []

    def schedule(self) -> StepPlan | None:
        """The next step, or None if nothing can be computed before a plan in flight is finished.

        A plan with drafts must be finished before: how long its sequences are depends on it. And sometimes it is better
        to wait for the tokens in flight, because they tell which drafts are likely to be right.
        """
        singles, prompts = self._due()
        alone = not (self._roster.waiting or prompts or self._by_age)
        if not self._speculation.open(singles, self._rows, alone, self._pace.seconds):
            return None
        self._outline = outline = Outline(self._rows)
        outline.loads, back = self._disk.begin()
        self._roster.come_back(back)
        self._crowded = False
        outline.kept = len(singles)
        if self._by_age:
            for sequence in sorted([*singles, *prompts], key=_age):
                self._place_prompt(sequence) if sequence.due() > 1 else self._place_single(sequence)
            prompts.clear()
        else:
            for sequence in singles:
                self._place_single(sequence)
        self._fill(deque(sorted(prompts, key=self._order)))
        self._by_age = outline.short
        outline.saves = self._disk.saves()
        if outline.empty:
            return None
        self._steps += 1
        begun = sum(s.values - s.computed for s in self._unfinished if s.holds_pages) - outline.prompt_rows
        self.load = replace(self.load, running=len(self._roster.running), begun=begun, crowded=self._crowded)
        return outline.close(self._steps, self._roster.ends())

    def saving(self, moves: tuple[PageMove, ...]) -> StepPlan:
        """A plan that saves pages and does nothing else."""
        self._steps += 1
        return StepPlan(self._steps, (), ends=self._roster.ends(), saves=moves)

    def commit(self, plan: StepPlan) -> None:
        """A plan is handed over: whole pages of tokens that are known may be shared by later ones."""
        page_size, shares = self._cache.page_size, self._roster.shares
        for chunk in plan.chunks:
            sequence = self._roster.live.get(chunk.sequence)
            if sequence is not None and sequence.holds_pages:
                output = chunk.start >= len(sequence.prompt)
                shares.charge(sequence.key, OUTPUT_WEIGHT if output else len(chunk.tokens))
                verified = sequence.verified // page_size
                if self._cache.committed(sequence.id) // page_size < verified:
                    self._roster.commit(sequence)
                    self._cache.slide(sequence.id)

    # Who has what due, and in which order.

    def _due(self) -> tuple[list[Sequence], list[Sequence]]:
        """Of those that run: who has one token due, and who more. The step's time follows from the former."""
        singles, prompts, attended, target = [], [], 0, None
        for sequence in self._roster.running:
            due = sequence.due()
            if due == 1:
                singles.append(sequence)
                attended += sequence.computed + 1
                tpot = self._pace.tpot(sequence)
                if tpot is not None and (target is None or tpot < target):
                    target = tpot
            elif due:
                prompts.append(sequence)
        self._unfinished = list(prompts)
        waiting = 0 if self._roster.shares.contended else len(self._roster.waiting)
        self.load = Load(0, len(singles), attended, target, waiting=waiting)
        self._singles_of = {s.key for s in singles} if self._roster.shares.tenants > 1 else set()
        self._pace.open(self.load)
        return singles, prompts

    def _favoured(self, sequence: Sequence) -> bool:
        """Whether its tenant was served less than every other tenant that waits for one token, and there are such."""
        level = self._roster.shares.level
        others = [level(key) for key in self._singles_of if key != sequence.key]
        return bool(others) and level(sequence.key) < min(others)

    def _order(self, sequence: Sequence) -> tuple[int, float, int]:
        return self._roster.shares.level(sequence.key), sequence.rank, sequence.id

    def _fill(self, prompts: deque[Sequence]) -> None:
        """Prompts, begun or waiting, the most urgent first, as long as there is room."""
        waiting, passed, shut = self._roster.waiting, list[Sequence](), False
        while self._outline.rows > self._outline.kept:
            head = None if shut else waiting.head()
            if prompts and (head is None or self._order(prompts[0]) <= self._order(head)):
                if not self._place_prompt(prompts.popleft()):
                    break
                continue
            if head is None:
                break
            gate = self._admit(head)
            if gate is _Gate.PASS:
                waiting.discard(head)
                passed.append(head)
            shut = gate is _Gate.SHUT or len(passed) >= MOST_PASSED
        for sequence in passed:
            waiting.push(sequence)

    # A chunk: as much as is due, as there is time for, and as there are pages for.

    def _place_single(self, sequence: Sequence) -> None:
        """The one row of a sequence that runs, unless an older one took its pages in this step."""
        self._outline.kept -= 1
        if not sequence.holds_pages or (self._drafts and self._place_drafts(sequence)):
            return
        tables = self._cache.next_slot(sequence.id, sequence.computed) if sequence.started else None
        if tables is not None:
            self._outline.add_one(sequence, tables)
        else:
            self._place(sequence, 1)

    def _place_drafts(self, sequence: Sequence) -> bool:
        """Its one row and drafts behind it, if it gets any; nobody loses a page for a guess."""
        end = sequence.computed + 1
        drafter, guess = self._speculation.draft(sequence) if end == sequence.known else ("", NO_GUESS)
        if not guess.tokens:
            return False
        paths = tree_paths(guess.parents)
        line = paths[0].end if paths else len(guess.tokens)
        extension = self._cache.extend(sequence.id, sequence.computed, end + line)
        if not extension.fits:
            return False
        if len(paths) < 2 or not (opened := self._open_paths(sequence, paths)).fits:
            table = self._cache.table(sequence.id)
            self._outline.add(sequence, 1, extension, table, drafter, guess.tokens[:line])
            return True
        tables = [self._cache.table(sequence.id, path) for path in range(len(paths))]
        both = replace(extension, copies=extension.copies + opened.copies)
        self._outline.add(sequence, 1, both, tables[0], drafter, guess.tokens, guess.parents, tuple(tables[1:]))
        return True

    def _open_paths(self, sequence: Sequence, paths: tuple[TreePath, ...]) -> Extension:
        """Pages for a tree's paths beside the first, if each that runs could still have one."""
        end = sequence.computed + 1
        starts = [PathStart(path.leaves, end + path.depth - 1, end + path.end_depth) for path in paths[1:]]
        return self._cache.open_paths(sequence.id, sequence.computed, starts, len(self._roster.running))

    def _place_prompt(self, sequence: Sequence) -> bool:
        """The next chunk of a prompt that was begun; False if the step is full."""
        if not sequence.holds_pages:
            return True
        size = self._size(sequence, sequence.due())
        if size > 0 and self._place(sequence, size):
            self._pace.take(sequence, size)
            self._outline.prompt_rows += size
        return size > 0

    def _place(self, sequence: Sequence, size: int) -> bool:
        """The next `size` tokens; False if there are no pages for them."""
        extension = self._make_room(sequence, sequence.computed + size)
        if extension is not None:
            self._outline.add(sequence, size, extension, self._cache.table(sequence.id))
        return extension is not None

    def _size(self, sequence: Sequence, due: int) -> int:
        """Rows of a prompt. Choices part before its last token: stop there once, so that none ends before others
        share it.
        """
        left = sequence.fork_point - sequence.computed
        state = sequence.state
        parts = len(state.sequences) > 1 and state.beams is None
        if left > 0 and parts and sequence.known == sequence.fork_point + 1:
            due = min(due, left)
        return self._pace.rows(sequence, due, self._outline.rows - self._outline.kept, self._favoured(sequence))

    def _make_room(self, sequence: Sequence, upto: int) -> Extension | None:
        """Slots for positions below `upto`, taken from younger sequences if need be; None if none has any to give."""
        while not (extension := self._cache.extend(sequence.id, sequence.computed, upto)).fits:
            self._outline.short = True
            victim = self._victim(sequence, extension)
            if victim is None:
                return None  # it keeps its pages and waits: an older one takes them if it must
            self._roster.preempt(victim)
            name, older = victim.state.request.id, sequence.state.request.id
            _log.info("request %s, choice %d, lost its pages to %s, which is older", name, victim.choice, older)
            self._observer.preempted(name)
        return extension

    def _victim(self, sequence: Sequence, short: Extension) -> Sequence | None:
        """Somebody younger than `sequence`; nobody loses pages that this step writes to."""
        placed = self._outline.placed
        younger = (other for other in self._roster.running if other.id > sequence.id and other.id not in placed)
        alone, group = self._cache.alone, short.group
        return pressure.victim(younger, short.lack, lambda other: alone(other, group), self._cache.page_size)

    # Admission.

    def _admit(self, head: Sequence) -> _Gate:
        """Let the head of the queue in, with its first chunk, if it may."""
        if self._outline.short or len(self._roster.running) >= self._slots:
            return _Gate.SHUT
        if not self._prompt_ready(head):
            return _Gate.PASS
        match = self._roster.match(head)
        donor = self._roster.donor(head, match)
        if donor is None and self._roster.computes(head, match):
            return _Gate.PASS  # one that runs computes what it knows beyond what was found: so the wait ends
        begun = head.fork_point if donor is not None else match.length
        if not self._pages_free(head, match, donor):
            self._crowded = True
            return _Gate.SHUT
        most = self._outline.rows - self._outline.kept
        if not self._pace.room(head.values - begun, most, self._favoured(head)):
            return _Gate.SHUT
        if donor is None and not head.sought and self._disk.fetch(head, head.key, head.tokens(0, head.values), match):
            self._roster.set_aside(head)
            return _Gate.AWAY
        first = head.state.cache is None
        self._roster.admit(head, match, donor)
        self._roster.shares.serve(head.key)
        if donor is None:
            self._disk.found(match)
        if first:
            self._observer.matched(head.state.request, match.length, match.cause)
        if head.due() > 1:
            self._unfinished.append(head)
            self._place_prompt(head)
        else:
            self._outline.kept += 1
            self._place_single(head)
        return _Gate.OPEN

    def _prompt_ready(self, head: Sequence) -> bool:
        """No other choice is computing the same prompt just now."""
        others = head.state.sequences
        return len(others) == 1 or not any(o.holds_pages and o.computed < o.fork_point for o in others)

    def _pages_free(self, head: Sequence, match: Match, donor: Sequence | None) -> bool:
        """Pages for all it knows, for the rest of those begun, and one in hand for each that runs: or it would soon be
        thrown out again.
        """
        cache, running = self._cache, len(self._roster.running)
        if not running:
            return True
        forked = donor is not None
        wanted = cache.wanted_by_fork(head.fork_point, head.known) if forked else cache.wanted(match, head.known)
        owed = [cache.owed(other.id, other.known) for other in self._unfinished if other.holds_pages]
        return cache.has([wanted, *owed], running)


def _age(sequence: Sequence) -> int:
    return sequence.id

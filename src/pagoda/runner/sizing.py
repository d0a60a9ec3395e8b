"""Every number that follows from a model's header, the configuration and the free memory: one place for boot and plan.

Reads no tensor and commits nothing. Knows what the backend makes of a tensor's shape; does not know the machine, which
tells its free memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from pagoda.backends.footprint import Footprint, Reads, footprint, packed_bytes, stand_in
from pagoda.backends.ops import KVGroup
from pagoda.config import EngineConfig, split_format
from pagoda.errors import InvalidConfig, MemoryLimit
from pagoda.models import Source, orders, outline, read_config, stored
from pagoda.plan import MOST_OF_STEP, most_pages
from pagoda.runner.runner import whole_model

KV_SHARE = 0.6
"""Of the memory that the weights leave free: most that KV pages may take."""
KV_AUTO = 2**30
"""Most bytes of KV that are committed unasked: a start should not take all of a machine, nor the time to touch it."""
TYPICAL = 1024
"""Tokens of a sequence, prompt and answer, as conversations mostly are."""
_ELEMENT = {"f32": 4, "f16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class WeightSize:
    """All tensors of one stored format."""

    format: str
    tensors: int
    numbers: int
    bytes: int
    """Once packed."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """What an engine of one model will hold. Sizes are bytes unless they say otherwise."""

    model: str
    weights: tuple[WeightSize, ...]
    reads: Reads
    """Weights read by a step."""
    kv_format: str
    groups: tuple[KVGroup, ...]
    page_size: int
    """Token slots of a page."""
    page_bytes: tuple[int, ...]
    """Of each group, all its layers."""
    max_model_len: int
    """Longest sequence that may be, in tokens, if there are pages for it."""
    max_num_seqs: int
    kv_asked: int | None
    """`kv_memory`."""
    free: int
    """Memory to be had before anything was loaded."""
    pages: tuple[int, ...]
    """Of each group."""
    windows_for: int
    """Sequences whose windows the groups that have one are made for: one that is as long as may be, the others
    `TYPICAL`. 0 if no group has one."""
    rows: int
    """Most rows of a step."""
    rope: int
    """Rotary angles, in Python and in the program."""
    step: int
    """Buffers of the largest step: they grow to it as steps ask for it."""
    drafter_weights: int = 0
    """Of the model that guesses drafts, packed."""
    drafter_groups: tuple[KVGroup, ...] = ()
    drafter_page_bytes: int = 0
    """Of one page of each of its groups: it has as many as the model's first."""

    @property
    def weight_bytes(self) -> int:
        """All weights, packed."""
        return sum(w.bytes for w in self.weights)

    @property
    def token_weights(self) -> int:
        """Weights read for one token of one sequence."""
        return self.reads.step(1)

    @property
    def token_bytes(self) -> int:
        """KV of one token in all layers of the model, rounded up."""
        return -(-sum(self.page_bytes) // self.page_size)

    @property
    def kv_bytes(self) -> int:
        """All pages, the drafter's too."""
        return _sum(self.pages, self.page_bytes) + self.pages[0] * self.drafter_page_bytes

    @property
    def kv_limit(self) -> int:
        """Most that KV may take here."""
        return _kv_limit(self.free, self.weight_bytes + self.drafter_weights)

    @property
    def longest(self) -> int:
        """Longest sequence in tokens, within `max_model_len` and the pages."""
        return _longest(self.groups, self.pages, self.max_model_len, self.rows, self.page_size)

    @property
    def started(self) -> int:
        """What a started engine has taken: weights, pages, rotary angles."""
        return self.weight_bytes + self.drafter_weights + self.kv_bytes + self.rope

    def sequences(self, tokens: int) -> int:
        """How many sequences of this length fit at once, however many may run."""
        tokens = min(tokens, self.longest)
        return min(
            pages // most_pages(group.window, tokens, 1, self.page_size)
            for group, pages in zip(self.groups, self.pages, strict=True)
            if group.layers
        )

    def token_read(self, context: int) -> int:
        """What decoding one token of a single sequence reads, after `context` tokens."""
        return self.step_read(1, context)

    def step_read(self, sequences: int, context: int) -> int:
        """What a step reads that decodes one token of each of so many sequences, after `context` tokens of each."""
        seen = (context if group.window is None else min(context, group.window) for group in self.groups)
        each = -(-_sum(seen, self.page_bytes) // self.page_size)
        return self.reads.step(sequences) + sequences * each


def page_bytes(group: KVGroup, page_size: int, kv_format: str | Sequence[str]) -> int:
    """Bytes of one page of all layers, in one format or one each: numbers, values padded to what the kernels load at
    once, and f16 scales.
    """
    formats = [kv_format] * group.layers if isinstance(kv_format, str) else kv_format
    return sum(_layer_page_bytes(group, page_size, each) for each in formats)


def _layer_page_bytes(group: KVGroup, page_size: int, kv_format: str) -> int:
    dim = group.head_dim
    if kv_format == "int4":
        blocks = -(-dim // 32)
        slot = -(-dim // 2) + 16 * blocks + 2 * blocks * 2 * 2  # scale and offset of each block, for key and value
    else:
        slot = (dim + -(-dim // 16) * 16) * _ELEMENT[kv_format] + (4 if kv_format == "int8" else 0)
    return group.heads * (-(-page_size * slot // 2) * 2)


def size(source: Source, config: EngineConfig, free: int, drafter: Source | None = None) -> Sizing:
    """Size an engine for a machine with `free` bytes; `drafter` is the model that guesses drafts, if there is one.

    Raises:
        ModelFileError, UnsupportedModel: the file.
        InvalidConfig: a setting does not fit the model.
        MemoryLimit: not even one page fits beside the weights.
    """
    shape = read_config(source)
    longest = config.model.max_model_len or shape.context
    if longest > shape.context:
        raise InvalidConfig(f"max_model_len is {longest}, and the model was trained for {shape.context} tokens")
    forms = stored(source, shape)
    packed = {name: packed_bytes(name, form, dims) for name, (form, dims) in forms.items()}
    ordered = orders(source, shape)
    model = outline(source, shape, cache(lambda name: stand_in(name, *forms[name], ordered.get(name))))
    counts = footprint(
        lambda ops: whole_model(model, ops), {n: form for n, (form, _) in forms.items()}, config.model.activations
    )
    rows, page_size = config.scheduler.rows, config.machine.page_size
    formats = model.kv_formats(config.model.kv_format)
    each = tuple(page_bytes(g, page_size, f) for g, f in zip(model.groups, formats, strict=True))
    drafter_weights, drafter_groups = _drafter(drafter, longest) if drafter else (0, ())
    drafter_each = sum(page_bytes(g, page_size, split_format(config.model.kv_format)[0]) for g in drafter_groups)
    budget = _budget(model.groups, each, drafter_each, config, longest, free, sum(packed.values()) + drafter_weights)
    pages, windows_for = _pages(model.groups, each, drafter_each, config, longest, budget)
    reach = _longest(model.groups, pages, longest, rows, page_size)
    return Sizing(
        model=source.architecture,
        weights=_by_format(forms, packed),
        reads=counts.reads,
        kv_format=config.model.kv_format,
        groups=model.groups,
        page_size=page_size,
        page_bytes=each,
        max_model_len=longest,
        max_num_seqs=config.scheduler.max_num_seqs,
        kv_asked=config.machine.kv_memory,
        free=free,
        pages=pages,
        windows_for=windows_for,
        rows=rows,
        rope=2 * 2 * 4 * reach * (sum(shape.table_dims) // 2),
        step=_step(counts, config),
        drafter_weights=drafter_weights,
        drafter_groups=drafter_groups,
        drafter_page_bytes=drafter_each,
    )


def _drafter(source: Source, longest: int) -> tuple[int, tuple[KVGroup, ...]]:
    """(bytes of its weights, its KV groups)."""
    shape = read_config(source)
    if shape.context < longest:
        raise InvalidConfig(
            f"{source.name} cannot draft for sequences of {longest} tokens, it was trained for {shape.context}: "
            f"set max_model_len to {shape.context} or less"
        )
    sizes = (packed_bytes(name, form, dims) for name, (form, dims) in stored(source, shape).items())
    return sum(sizes), shape.groups


def _by_format(forms: dict[str, tuple[str, tuple[int, ...]]], packed: dict[str, int]) -> tuple[WeightSize, ...]:
    tensors, numbers, total = Counter[str](), Counter[str](), Counter[str]()
    for name, (form, dims) in forms.items():
        tensors[form] += 1
        numbers[form] += _product(dims)
        total[form] += packed[name]
    return tuple(WeightSize(form, tensors[form], numbers[form], total[form]) for form in sorted(tensors))


def _product(dims: Iterable[int]) -> int:
    product = 1
    for n in dims:
        product *= n
    return product


def _step(counts: Footprint, config: EngineConfig) -> int:
    scheduler = config.scheduler
    drafts = 0 if scheduler.speculate == "off" else MOST_OF_STEP
    sampled = counts.sampled_row * min(scheduler.max_num_seqs + drafts, scheduler.rows)
    return counts.row * scheduler.rows + counts.fixed + sampled


def _sum(counts: Iterable[int], sizes: Iterable[int]) -> int:
    return sum(count * size for count, size in zip(counts, sizes, strict=True))


def _kv_limit(free: int, weights: int) -> int:
    return int(max(0, free - weights) * KV_SHARE)


def _budget(
    groups: tuple[KVGroup, ...], each: tuple[int, ...], beside: int, config: EngineConfig, longest: int, free: int,
    weights: int,
) -> int:  # fmt: skip
    """Bytes for pages: at least one of each group. `each` are the groups' bytes of a page, `beside` the drafter's."""
    machine, unit = config.machine, sum(each) + beside
    limit = _kv_limit(free, weights)
    if machine.kv_memory is None:
        pages = [most_pages(group.window, longest, config.scheduler.rows, machine.page_size) for group in groups]
        budget = min(limit, max(KV_AUTO, _sum(pages, each) + pages[0] * beside))
    elif machine.kv_memory > limit:
        raise MemoryLimit(
            f"kv_memory asks for {machine.kv_memory} bytes, and KV may take {limit}: {KV_SHARE:.0%} of what "
            f"{weights} bytes of weights leave of {free} free bytes"
        )
    else:
        budget = machine.kv_memory
    if budget < unit:
        raise MemoryLimit(
            f"a KV page of {machine.page_size} tokens takes {unit} bytes, and {budget} are to be had ({free} bytes "
            f"free, {weights} of them for weights, and KV may take {KV_SHARE:.0%} of the rest); "
            "free some memory or take a smaller page_size"
        )
    return budget


def _pages(
    groups: tuple[KVGroup, ...], each: tuple[int, ...], beside: int, config: EngineConfig, longest: int, budget: int
) -> tuple[tuple[int, ...], int]:
    """Pages of each group, and for how many sequences' windows there are some.

    Groups with a window get what n sequences hold there, and no more pages than if all groups had the same; the others
    get the rest. n is the largest for which n typical sequences fit in the rest, and the longest one too: that may cost
    windows all beyond half of the memory, not that half. And at most twice as many as may run: as many prefixes can be
    found again.
    """
    size, most = config.machine.page_size, config.scheduler.max_num_seqs
    needed, typical = -(-longest // size), -(-min(longest, TYPICAL) // size)
    same, first = budget // (sum(each) + beside), each[0] + beside

    def windows(n: int) -> list[int]:
        rows = config.scheduler.rows
        one = [most_pages(group.window, longest, rows, size) for group in groups[1:]]
        more = [most_pages(group.window, min(longest, TYPICAL), 1, size) for group in groups[1:]]
        return [min(same, a + (n - 1) * b) for a, b in zip(one, more, strict=True)]

    def taken(n: int) -> int:
        return _sum(windows(n), each[1:])

    def rest(n: int) -> int:
        left = budget - taken(n)
        return min(left // first, needed * most) if first else needed * most

    if len(groups) == 1:
        return (rest(1),), 0
    counts = range(2 * most, 1, -1)
    half = next((n for n in counts if 2 * taken(n) <= budget), 1)
    goal = min(needed, rest(half))
    n = next((n for n in counts if rest(n) >= max(goal, n * typical)), 1)
    return (rest(n), *(min(pages, rest(n)) for pages in windows(n))), n


def _longest(groups: tuple[KVGroup, ...], pages: tuple[int, ...], longest: int, rows: int, page_size: int) -> int:
    """Longest sequence that the pages hold, up to `longest`."""
    for group, count in zip(groups, pages, strict=True):
        if count < most_pages(group.window, longest, rows, page_size):
            longest = min(longest, count * page_size)
    return longest

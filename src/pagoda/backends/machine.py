"""What this process may use of the machine: cores and memory, as affinity, cgroup and the kernel allow.

Reads both versions of cgroups. Measures nothing: that is `bench.machine`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CACHES = Path("/sys/devices/system/cpu")


def _own_cgroups(controller: str) -> Iterator[Path]:
    """Of this process: the directories that may limit it by `controller`, and those above them."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/"]:
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            root = _CGROUP
        elif controller in names.split(","):
            root = _CGROUP / controller
        else:
            continue
        own = root / path.lstrip("/")
        yield from (p for p in (own, *own.parents) if p == root or root in p.parents)


def _numbers(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def affinity() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Cores' worth of time that the cgroup grants; None if it does not limit."""
    quotas = []
    for group in _own_cgroups("cpu"):
        match _numbers(group / "cpu.max") or [
            *_numbers(group / "cpu.cfs_quota_us"),
            *_numbers(group / "cpu.cfs_period_us"),
        ]:
            case [quota, period] if quota not in ("max", "-1"):
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cores() -> int:
    """Cores this process may use: its affinity, and its cgroup's CPU quota rounded up."""
    return max(1, math.ceil(min(affinity(), cpu_quota() or math.inf)))


def _meminfo(key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Of each cgroup that limits memory: its limit and what is used, in bytes, without file cache that can go."""
    total = _meminfo("MemTotal")
    for group in _own_cgroups("memory"):
        limit = _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
        used = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes")
        if not limit or not used or limit == ["max"] or int(limit[0]) >= total:
            continue
        stat = iter(_numbers(group / "memory.stat"))
        counts = dict(zip(stat, stat, strict=False))
        # File cache counts as used but is given back under pressure.
        idle = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
        yield int(limit[0]), int(used[0]) - idle


def memory_limit() -> int:
    """Bytes this process may have at most: the machine's memory, or its cgroup's limit, if less."""
    return min((limit for limit, _ in _memory_limits()), default=_meminfo("MemTotal"))


def free_memory() -> int:
    """Bytes this process may still take: available memory of the machine, or what its cgroup leaves, if less."""
    left = (limit - used for limit, used in _memory_limits())
    return max(0, min((_meminfo("MemAvailable"), *left)))


def last_level_cache() -> int:
    """Bytes of the largest cache level, all its parts on allowed cores together; 0 if the kernel does not say."""
    parts: dict[tuple[int, str], int] = {}
    for core in os.sched_getaffinity(0):
        for cache in _CACHES.glob(f"cpu{core}/cache/index*"):
            match [_numbers(cache / name) for name in ("level", "shared_cpu_list", "size")]:
                case [[level], [shared], [size]] if size.endswith("K"):
                    parts[int(level), shared] = int(size[:-1]) * 1024
    last = max((level for level, _ in parts), default=0)
    return sum(size for (level, _), size in parts.items() if level == last)

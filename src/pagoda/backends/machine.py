"""What this process may use of the machine: cores and memory, as affinity, cgroup and the kernel allow."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def _own_cgroups() -> list[Path]:
    """This process's cgroup directory (version 2) and those above it."""
    try:
        line = next(x for x in Path("/proc/self/cgroup").read_text().splitlines() if x.startswith("0::"))
    except (OSError, StopIteration):
        return [_CGROUP]
    own = _CGROUP / line[3:].lstrip("/")
    return [p for p in (own, *own.parents) if p == _CGROUP or _CGROUP in p.parents]


def _numbers(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def cores() -> int:
    """Cores this process may use: its affinity, and its cgroup's CPU quota rounded up."""
    found = float(len(os.sched_getaffinity(0)))
    for group in _own_cgroups():
        match _numbers(group / "cpu.max"):
            case [quota, period] if quota != "max":
                found = min(found, int(quota) / int(period))
    return max(1, math.ceil(found))


def free_memory() -> int:
    """Bytes this process may still take: available memory of the machine, or what its cgroup leaves, if less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    found = int(meminfo["MemAvailable"].split()[0]) * 1024
    for group in _own_cgroups():
        limit, used = _numbers(group / "memory.max"), _numbers(group / "memory.current")
        if limit and limit != ["max"] and used:
            # File cache counts as used but is given back under pressure.
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            found = min(found, int(limit[0]) - int(used[0]) + int(stat.get("inactive_file", 0)))
    return max(0, found)

"""What cgroups of both versions leave of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagoda.backends import machine


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree of cgroups that this process is in."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path / "fs")
    monkeypatch.setattr(machine, "_MEMBERSHIP", tmp_path / "self")
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_limits(cgroups: Path) -> None:
    assert machine.cpu_quota() is None
    assert machine.cores() == machine.affinity() == len(os.sched_getaffinity(0))
    assert 0 < machine.free_memory() < machine.memory_limit()


def test_version_2_limits_come_from_every_level(cgroups: Path) -> None:
    put(cgroups / "self", "0::/a/b\n")
    put(cgroups / "fs/a/cpu.max", "50000 100000\n")
    put(cgroups / "fs/a/b/cpu.max", "max 100000\n")
    put(cgroups / "fs/a/b/memory.max", "1000000\n")
    put(cgroups / "fs/a/b/memory.current", "900000\n")
    put(cgroups / "fs/a/b/memory.stat", "anon 1\ninactive_file 200000\n")
    put(cgroups / "fs/a/memory.max", "max\n")
    assert (machine.cpu_quota(), machine.cores()) == (0.5, 1)
    assert (machine.memory_limit(), machine.free_memory()) == (1000000, 300000)


def test_version_1(cgroups: Path) -> None:
    put(cgroups / "self", "4:memory:/m\n2:cpu,cpuacct:/c\n0::/\n")
    put(cgroups / "fs/cpu/c/cpu.cfs_quota_us", "-1\n")
    put(cgroups / "fs/cpu/c/cpu.cfs_period_us", "100000\n")
    put(cgroups / "fs/memory/m/memory.limit_in_bytes", "5000000\n")
    put(cgroups / "fs/memory/m/memory.usage_in_bytes", "1500000\n")
    put(cgroups / "fs/memory/m/memory.stat", "inactive_file 1\ntotal_inactive_file 500000\n")
    put(cgroups / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(cgroups / "fs/memory/memory.usage_in_bytes", "1\n")
    assert machine.cpu_quota() is None
    assert (machine.memory_limit(), machine.free_memory()) == (5000000, 4000000)
    put(cgroups / "fs/cpu/c/cpu.cfs_quota_us", "25000\n")
    assert machine.cpu_quota() == 0.25


def test_an_overdrawn_cgroup_leaves_nothing(cgroups: Path) -> None:
    put(cgroups / "fs/memory.max", "1000\n")
    put(cgroups / "fs/memory.current", "2000\n")
    assert machine.free_memory() == 0


def test_last_level_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert machine.last_level_cache() == 0
    for core, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, (level, cores, size) in enumerate([("1", str(core), "32K"), ("3", shared, "1024K")]):
            put(tmp_path / f"cpu{core}/cache/index{index}/level", level)
            put(tmp_path / f"cpu{core}/cache/index{index}/shared_cpu_list", cores)
            put(tmp_path / f"cpu{core}/cache/index{index}/size", size)
    assert machine.last_level_cache() == 2 * 1024 * 1024

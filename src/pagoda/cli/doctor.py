"""`pagoda doctor`: what this machine can do, and what each figure limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pagoda.bench.machine import Machine


def doctor(
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that measure; all allowed cores if none.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure this machine in a few seconds: cores, memory, bandwidth, arithmetic.

    Each figure is the best of several short windows: on a busy machine that is what the hardware can do.

    Example: [bold]pagoda doctor --json[/bold]
    """
    from pagoda.bench.machine import measure_machine

    machine = measure_machine(threads)
    if as_json:
        typer.echo(json.dumps(machine.as_dict()))
        return
    for line in _lines(machine):
        typer.echo(line)


def _lines(m: Machine) -> list[str]:
    quota = "no quota" if m.quota_cores is None else f"a quota of {m.quota_cores:g}"
    lines = [
        f"cores         {m.cores:10} of {m.affinity_cores} allowed, with {quota}",
        "              Pagoda runs one thread on each; more would only take turns.",
        f"memory        {m.memory_limit_bytes / 2**30:10.1f} GiB at most, {m.memory_free_bytes / 2**30:.1f} GiB free",
        "              Weights and KV pages must fit: it limits model size, context and sequences at once.",
        f"read, {m.threads} thr.  {m.read_gb_s:10.1f} GB/s",
        "              Decoding reads every weight once for each token: tokens/s of one sequence is at most this "
        "divided by the model's bytes.",
        f"read, 1 thr.  {m.read_one_thread_gb_s:10.1f} GB/s",
        "              What one thread gets by itself; if it is all there is, more threads speed up prefill only.",
        f"instructions  {m.isa:>10} in use; usable: {', '.join(m.isas)}",
        "              Results are the same bits with each; only speed differs.",
        *_self_tests(m),
        f"arithmetic, {m.threads} threads, 10^9 operations/s, a multiply-add being two:",
        "                     f32     int16      int8",
    ]
    lines += [
        f"  {name:10}{peak.f32_gflop_s:12.1f}{peak.int16_gop_s:10.1f}{peak.int8_gop_s:10.1f}"
        for name, peak in m.peaks.items()
    ]
    lines.append(
        "              Prefill and large batches take two operations for each weight and token: int16 is the peak of "
        "default activations, int8 and f32 of the others."
    )
    lines.append(f"measured in {m.seconds:.1f} s; reading on {m.buffer_bytes / 2**20:.0f} MiB")
    return lines


def _self_tests(m: Machine) -> list[str]:
    verdicts = ", ".join(f"{isa} differs in {what}" if what else f"{isa} passed" for isa, what in m.faults.items())
    return [
        f"self-test     {verdicts}",
        "              Some kernels, bit for bit against the scalar ones; an instruction set that differs is not used.",
    ]

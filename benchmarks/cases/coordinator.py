"""The coordinator alone: fsyncs per epoch, and the remaining time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.epochs import EpochDriver
from benchmarks.null_backend import null_sinks
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import Committable
from exactsink.protocol.votes import EpochPlan, Vote

__all__ = ["BENCHMARK", "run_epochs"]

_PARTITIONS = 2
_SINKS = 2
_SYNC_CALLS = "fsync,fdatasync,sync_file_range,sync,syncfs,msync"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    epochs = setting.scaled(2000, least=20)
    variants = [Variant("coordinator", lambda folder: _counted(folder, epochs))]
    bounds = [
        Bound("fsyncs_per_epoch", "coordinator", at_most=3),
        Bound("beside_fsync_ms_per_epoch", "coordinator", at_most=5),
        Bound("fsync_ms_per_epoch", "coordinator"),
    ]
    notes = [f"{epochs} epochs, {_SINKS} null sinks, {_PARTITIONS} participants each, local journal"]
    traced = min(epochs, 100)
    problem = _strace_problem(setting.folder)
    if problem is None:
        variants.append(Variant("strace", lambda folder: lambda: _traced(folder, traced)))
        bounds.append(Bound("fsyncs_per_epoch", "strace", at_most=3))
        notes.append(f"strace counts the process's {_SYNC_CALLS}: what {2 * traced} epochs have over {traced}")
    else:
        notes.append(f"no cross-check by strace: {problem}")
    yield Plan(variants, bounds, notes)


def run_epochs(driver: EpochDriver, epochs: int) -> None:
    """Run epochs with tasks that cost nothing."""
    schemas = {name: pa.schema([]) for name in driver.sinks}
    for _ in range(epochs):
        driver.epoch(schemas, _votes)


def _votes(plan: EpochPlan) -> Sequence[Vote]:
    return [
        Vote(sink, partition, 1, Committable(plan.txn(sink, partition, partition), 1, b"", digest=7))
        for sink in plan.sinks
        for partition in range(_PARTITIONS)
    ]


def _counted(folder: Path, epochs: int) -> Work:
    driver = EpochDriver(null_sinks(_SINKS), folder)

    def work() -> Metrics:
        started = time.perf_counter()
        with _counted_syncs() as syncs:
            run_epochs(driver, epochs)
        beside = time.perf_counter() - started - syncs.seconds
        return {
            "fsyncs_per_epoch": syncs.calls / epochs,
            "fsync_ms_per_epoch": syncs.seconds / epochs * 1000,
            "beside_fsync_ms_per_epoch": beside / epochs * 1000,
        }

    return work


@dataclass
class _Syncs:
    """How often, and for how long, this process synced."""

    calls: int = 0
    seconds: float = 0.0


@contextmanager
def _counted_syncs() -> Iterator[_Syncs]:
    """Count and time `os.fsync` and `os.fdatasync` in this process until the block ends."""
    syncs = _Syncs()
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def counted(name: str, handle: int) -> None:
        started = time.perf_counter()
        real[name](handle)
        syncs.seconds += time.perf_counter() - started
        syncs.calls += 1

    for name in real:
        setattr(os, name, partial(counted, name))
    try:
        yield syncs
    finally:
        for name, call in real.items():
            setattr(os, name, call)


def _traced(folder: Path, epochs: int) -> Metrics:
    """Count system calls from outside, once with so many epochs and once with twice as many."""
    once, twice = (_sync_calls(folder / str(count), count) for count in (epochs, 2 * epochs))
    return {"fsyncs_per_epoch": (twice - once) / epochs}


def _sync_calls(folder: Path, epochs: int) -> int:
    folder.mkdir()
    log = folder / "strace.log"
    strace = ["strace", "-f", "-qq", "-e", f"trace={_SYNC_CALLS}", "-e", "signal=none", "-o", str(log)]
    subprocess.run([*strace, sys.executable, "-m", __name__, str(folder), str(epochs)], check=True)
    return sum("= 0" in line for line in log.read_text().splitlines())


def _strace_problem(folder: Path) -> str | None:
    """Return why strace can't be used here: absent, or not allowed to trace."""
    if shutil.which("strace") is None:
        return "it is not installed"
    tried = subprocess.run(["strace", "-o", folder / "tried", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else None


BENCHMARK = Benchmark("coordinator", "The coordinator alone: fsyncs per epoch, and milliseconds beside them.", _open)

if __name__ == "__main__":
    run_epochs(EpochDriver(null_sinks(_SINKS), Path(sys.argv[1])), int(sys.argv[2]))

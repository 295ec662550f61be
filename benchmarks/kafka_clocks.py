"""Whose CPU time it was: the driver's, Spark's JVM's, the Python workers', or the broker's."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["shared_out"]

_PPID, _TIMES = 1, slice(11, 15)  # fields of /proc/PID/stat after the name: parent, and utime stime cutime cstime


def shared_out(broker: int, work: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Do the work, and add to its figures the seconds of CPU time of each; `broker` is a process id."""
    before = _shares(broker)
    reported = work()
    return {**reported, **{name: seconds - before[name] for name, seconds in _shares(broker).items()}}


def _shares(broker: int) -> Mapping[str, float]:
    names: dict[int, str] = {}
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            head, _, tail = Path("/proc", str(pid), "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        fields = tail.split()
        names[pid], ticks[pid] = head.partition("(")[2], sum(map(int, fields[_TIMES]))
        children[int(fields[_PPID])].append(pid)
    shares = dict.fromkeys(("driver_cpu_s", "jvm_cpu_s", "workers_cpu_s", "broker_cpu_s"), 0.0)
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting.extend(children[pid])
        shares[_whose(pid, names.get(pid, ""), broker)] += ticks.get(pid, 0) / os.sysconf("SC_CLK_TCK")
    return shares


def _whose(pid: int, name: str, broker: int) -> str:
    if pid in (os.getpid(), broker):
        return "driver_cpu_s" if pid == os.getpid() else "broker_cpu_s"
    return "jvm_cpu_s" if name == "java" else "workers_cpu_s"

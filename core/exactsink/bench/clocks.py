"""CPU time of this process and its descendants: the JVM, its Python workers, servers, tools."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processes", "cpu_reading", "cpu_seconds_since", "cpu_spent"]

_PPID, _OWN, _WAITED = 1, slice(11, 13), slice(13, 15)  # of /proc/PID/stat after the name; the last is of children


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    parent: int
    own: int
    waited: int
    """CPU time of the children that have ended, and that the process has waited for."""

    @property
    def ticks(self) -> int:
        return self.own + self.waited


Processes = Mapping[int, _Process]
"""A reading: processes by id, parents first."""


def cpu_spent(before: Processes, after: Processes, named: Mapping[int, str]) -> Mapping[str, float]:
    """Return the CPU seconds between two readings, by name. `driver` is this process, with the tools that it has run.

    `named` gives the names of processes by id; their descendants have the same name. Of all others, `jvm` is Java, and
    `workers` are the rest. A process that ended in between is counted if its parent waited for it. pyspark's daemon
    does not wait for its workers, and their earlier time is then not subtracted.
    """
    shares = dict.fromkeys(("driver", "jvm", "workers", *named.values()), 0.0)
    whose: dict[int, str] = {}
    for pid, one in after.items():
        above = whose.get(one.parent)
        inherited = above if above in named.values() else None
        default = "driver" if pid == os.getpid() else "jvm" if one.name == "java" else "workers"
        whose[pid] = named.get(pid) or inherited or default
        shares[whose[pid]] += _ticks_between(pid, before, after) / os.sysconf("SC_CLK_TCK")
    return shares


def cpu_seconds_since(before: Processes) -> float:
    """Return the CPU seconds of this process and its descendants since a reading."""
    return sum(cpu_spent(before, cpu_reading(), {}).values())


def _ticks_between(pid: int, before: Processes, after: Processes) -> int:
    one, old = after[pid], before.get(pid, _Process("", 0, 0, 0))
    waited = one.waited - old.waited
    for child, ended in before.items():
        if ended.parent == pid and child not in after and ended.ticks <= waited:
            waited -= ended.ticks
    return one.own - old.own + waited


def cpu_reading() -> Processes:
    """Read this process and its descendants.

    A process that is reaped during the reading is in no reading, neither its own nor its parent's. So it reads again
    until the set of processes stays the same.
    """
    family = _reading()
    while True:
        before = family
        family = _reading()
        if family.keys() == before.keys():
            return family


def _reading() -> Processes:
    found: dict[int, _Process] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            # The name, in parentheses, may itself contain blanks and parentheses.
            head, _, tail = Path("/proc", str(pid), "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # ended since the listing
            continue
        fields = tail.split()
        times = (sum(map(int, fields[part])) for part in (_OWN, _WAITED))
        found[pid] = _Process(head.partition("(")[2], int(fields[_PPID]), *times)
        children[found[pid].parent].append(pid)
    family: dict[int, _Process] = {}
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            family[pid] = found[pid]
            waiting.extend(children[pid])
    return family

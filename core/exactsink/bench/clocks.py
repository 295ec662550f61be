"""CPU time of this process and all below it: the JVM, the Python workers below that, servers, tools."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Processes", "cpu_reading", "cpu_seconds_since", "cpu_spent"]

_PPID, _OWN, _WAITED = 1, slice(11, 13), slice(13, 15)  # of /proc/PID/stat after the name: the last are of children


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    parent: int
    own: int
    waited: int
    """Of children that have ended, and that it has waited for."""

    @property
    def ticks(self) -> int:
        return self.own + self.waited


Processes = Mapping[int, _Process]
"""A reading: processes by id, parents first."""


def cpu_spent(before: Processes, after: Processes, named: Mapping[int, str]) -> Mapping[str, float]:
    """Return whose seconds lie between two readings: `driver` is this process, with the tools that it has run.

    `named` processes, by id, and those below them have a name given; of the others `jvm` is Java, `workers` the rest.
    Who was ended in between is counted where its parent waited for it; pyspark's daemon waits for none of its workers,
    and what they had before is then not taken off.
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
    """Return the seconds that this process and all below it have taken since a reading."""
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

    Who is reaped while it is read is in no reading, its own or its parent's: read again until the family stays.
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
            # The name, in parentheses, may hold blanks and parentheses itself.
            head, _, tail = Path("/proc", str(pid), "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
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

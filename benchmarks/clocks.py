"""CPU time of this process and all below it: the JVM, the Python workers below that, servers, tools."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["cpu_seconds", "cpu_shares"]

_PPID, _TIMES = 1, slice(11, 15)  # fields of /proc/PID/stat after the name: parent, and utime stime cutime cstime


@dataclass(frozen=True, slots=True)
class _Process:
    name: str
    parent: int
    ticks: int


def cpu_seconds() -> float:
    """Sum user and system seconds of this process and its descendants, ended and reaped ones included."""
    return sum(one.ticks for one in _family().values()) / os.sysconf("SC_CLK_TCK")


def cpu_shares(named: Mapping[int, str]) -> Mapping[str, float]:
    """Say whose those seconds are: `driver` is this process, with the tools that it has run and reaped.

    `named` processes, by id, and those below them have a name given; of the others `jvm` is Java, `workers` the rest.
    """
    shares = dict.fromkeys(("driver", "jvm", "workers", *named.values()), 0.0)
    whose = {os.getpid(): "driver"}
    for pid, one in _family().items():  # a parent comes before its children
        if pid not in whose:
            above = whose[one.parent] if whose[one.parent] in named.values() else None
            whose[pid] = named.get(pid) or above or ("jvm" if one.name == "java" else "workers")
        shares[whose[pid]] += one.ticks / os.sysconf("SC_CLK_TCK")
    return shares


def _family() -> Mapping[int, _Process]:
    """Read this process and its descendants, parents first.

    Who is reaped while it is read is in no reading, its own or its parent's: read again until the family stays.
    """
    family = _reading()
    while True:
        before = family
        family = _reading()
        if family.keys() == before.keys():
            return family


def _reading() -> Mapping[int, _Process]:
    found: dict[int, _Process] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            # The name, in parentheses, may hold blanks and parentheses itself.
            head, _, tail = Path("/proc", str(pid), "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        fields = tail.split()
        found[pid] = _Process(head.partition("(")[2], int(fields[_PPID]), sum(map(int, fields[_TIMES])))
        children[found[pid].parent].append(pid)
    family: dict[int, _Process] = {}
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            family[pid] = found[pid]
            waiting.extend(children[pid])
    return family

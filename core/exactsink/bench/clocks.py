"""CPU time of this process and all below it: the JVM, and the Python workers below that."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["cpu_seconds"]

_PPID, _TIMES = 1, slice(11, 15)  # fields of /proc/PID/stat after the name: parent, and utime stime cutime cstime


def cpu_seconds() -> float:
    """Sum user and system seconds of this process and its descendants, ended and reaped ones included.

    Who is reaped while it is read is in no reading, its own or its parent's: read again until the family stays.
    """
    family, seconds = _reading()
    while True:
        before = family
        family, seconds = _reading()
        if family == before:
            return seconds


def _reading() -> tuple[set[int], float]:
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            # The name, in parentheses, may hold blanks and parentheses itself.
            fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        ticks[pid] = sum(map(int, fields[_TIMES]))
        children[int(fields[_PPID])].append(pid)
    family: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        family.add(pid)
        waiting.extend(children[pid])
    return family, sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")

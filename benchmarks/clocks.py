"""CPU time of this process and all below it: the JVM, and the Python workers below that."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

__all__ = ["cpu_seconds"]

_PPID, _TIMES = 1, slice(11, 15)  # fields of /proc/PID/stat after the name: parent, and utime stime cutime cstime


def cpu_seconds() -> float:
    """Sum user and system seconds of this process and its descendants, ended and reaped ones included."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold blanks and parentheses itself.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        ticks[int(entry.name)] = sum(map(int, fields[_TIMES]))
        children[int(fields[_PPID])].append(int(entry.name))
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting.extend(children[pid])
    return total / os.sysconf("SC_CLK_TCK")

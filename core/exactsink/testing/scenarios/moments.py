"""Where inside a committer's call to interrupt it: the moments are counted first, then spread evenly over the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from exactsink.testing.context import Context
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.interrupt import Interruption
from exactsink.testing.processes import KILLED

__all__ = ["COUNTED", "evenly", "killed_inside_commits", "spread"]

COUNTED = 2
"""So many epochs at the start of a script are played whole, to count the moments of a commit."""


def spread(context: Context, script: Script, epochs: Iterable[int]) -> Mapping[int, int]:
    """Play the counted epochs, and give each of these epochs a moment of its commit, from the first to the last."""
    counting = Interruption("commit", "count", script.folder)
    pid = context.interrupted(script, counting, Fault("open_epoch", "before", "kill", COUNTED))
    context.ends(pid, KILLED, "a driver run whose commits are counted")
    count = int(counting.mark(COUNTED - 1).read_text())
    return evenly(list(epochs), count)


def killed_inside_commits(context: Context, script: Script, drivers: int) -> Iterator[int]:
    """Kill so many drivers inside their commits, each a little later in it; yield the epoch after each."""
    moments = spread(context, script, range(COUNTED, COUNTED + drivers))
    kills = Interruption("commit", "kill", script.folder, moments)
    for epoch, moment in moments.items():
        context.ends(context.interrupted(script, kills), KILLED, f"a driver inside the commit of epoch {epoch}")
        context.faults.append(f"kill-inside-commit-e{epoch}-at-{moment}")
        yield epoch


def evenly(numbers: Sequence[int], count: int) -> Mapping[int, int]:
    """Return each number a moment, from the first to the last of `count`."""
    steps = max(1, len(numbers) - 1)
    return {number: 1 + max(0, count - 1) * place // steps for place, number in enumerate(numbers)}

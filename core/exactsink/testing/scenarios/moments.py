"""The moments inside a committer's call at which to interrupt it: they are counted, then spread over the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from exactsink.testing.context import Context
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.interrupt import Interruption
from exactsink.testing.processes import KILLED

__all__ = ["COUNTED", "evenly", "killed_inside_commits", "spread"]

COUNTED = 2
"""The number of epochs at a script's start that are played without a fault, to count the moments of a commit."""


def spread(context: Context, script: Script, epochs: Iterable[int]) -> Mapping[int, int]:
    """Play the counted epochs, and return a moment of the commit for each of `epochs`, from the first to the last
    moment.
    """
    counting = Interruption("commit", "count", script.folder)
    pid = context.interrupted(script, counting, Fault("open_epoch", "before", "kill", COUNTED))
    context.ends(pid, KILLED, "a driver run whose commits are counted")
    count = int(counting.mark(COUNTED - 1).read_text())
    return evenly(list(epochs), count)


def killed_inside_commits(context: Context, script: Script, drivers: int) -> Iterator[int]:
    """Kill so many drivers inside their commits, each at a later moment. Yield the epoch after each."""
    moments = spread(context, script, range(COUNTED, COUNTED + drivers))
    kills = Interruption("commit", "kill", script.folder, moments)
    for epoch, moment in moments.items():
        context.ends(context.interrupted(script, kills), KILLED, f"a driver inside the commit of epoch {epoch}")
        context.faults.append(f"kill-inside-commit-e{epoch}-at-{moment}")
        yield epoch


def evenly(numbers: Sequence[int], count: int) -> Mapping[int, int]:
    """Return a moment for each number, spread from the first to the last of `count` moments."""
    steps = max(1, len(numbers) - 1)
    return {number: 1 + max(0, count - 1) * place // steps for place, number in enumerate(numbers)}

"""Scenarios about the rows themselves: none, many, in order, and invisible before their decision."""

from __future__ import annotations

from exactsink.testing.capabilities import Scenario
from exactsink.testing.context import Broken, Context
from exactsink.testing.faults import Fault
from exactsink.testing.interrupt import Interruption
from exactsink.testing.processes import ask, wake
from exactsink.testing.scenarios.moments import COUNTED, spread

__all__ = ["SCENARIOS"]

MANY = 100_000
EPOCHS = 12


def _empty(context: Context) -> None:
    """Epochs and partitions without rows come first, between others, and last."""
    script = context.script([0, 0], [10, 0], [0, 0], [0, 10], [0, 0])
    context.killed(script, Fault("complete", "before", "kill", 2))
    context.whole(script)
    context.whole(script)
    context.check_rows(range(20))
    context.check_nothing_in_doubt(script)


def _many(context: Context) -> None:
    """One epoch has rows by the hundred thousand."""
    script = context.script([MANY // 2, MANY // 2], [10, 10], chunk=10_000)
    context.whole(script)
    context.check_rows(range(MANY + 20))


def _order(context: Context) -> None:
    """Rows of a partition keep their order, if the target shows one."""
    counts = [[40, 60, 50], [30, 0, 40]]
    context.whole(context.script(*counts))
    context.check_rows(range(220))
    partition_of: dict[int, tuple[int, int]] = {}
    for batch, partitions in enumerate(counts):
        for number, count in enumerate(partitions):
            first = len(partition_of)
            partition_of |= dict.fromkeys(range(first, first + count), (batch, number))
    shown = set()
    for sequence in ask(lambda: [list(ids) for ids in context.target.order(context.place)]):
        last: dict[tuple[int, int], int] = {}
        for row in sequence:
            partition = partition_of[row]
            if row < last.get(partition, -1):
                raise Broken(f"row {row} comes after row {last[partition]} of the same partition")
            last[partition] = row
        shown.update(sequence)
    if shown != set(partition_of):
        raise Broken(f"order() shows {len(shown)} of {len(partition_of)} rows")


def _hidden(context: Context) -> None:
    """Readers look while a driver is stopped before its decision, after all participants have voted."""
    script = context.script([10, 10], [10, 10], [10, 10])
    stopped = context.stopped(script, Fault("vote", "before", "stall", 1))
    context.check_rows(range(20))
    successor = context.stopped(script, Fault("decide", "before", "stall", 1))
    context.check_rows(range(20))
    context.woken(stopped)
    context.check_rows(range(20))
    context.woken(successor)
    context.check_rows(range(60))
    context.check_nothing_in_doubt(script)


def _one_moment(context: Context) -> None:
    """Readers look while a driver is stopped inside its commits. They see all rows of the epoch, or none."""
    script = context.script(*([5, 5, 5, 5],) * EPOCHS)
    moments = spread(context, script, range(COUNTED, EPOCHS))
    stops = Interruption("commit", "stall", script.folder, moments)
    pid = context.interrupted(script, stops)
    for epoch, moment in moments.items():
        context.stops(pid, f"stall-inside-commit-e{epoch}-at-{moment}")
        context.faults.append(f"stall-inside-commit-e{epoch}-at-{moment}")
        found = context.read()
        seen = epoch + 1 if any(row in found for row in range(20 * epoch, 20 * epoch + 20)) else epoch
        context.check_read(found, range(20 * seen))
        wake(pid)
    context.ends(pid, 0, "a driver that was stopped inside its commits")
    context.check_rows(range(20 * EPOCHS))


SCENARIOS = (
    Scenario(
        "empty-epoch",
        "epochs without rows, and partitions without rows, are committed like all others",
        "a batch brings nothing for this sink",
        _empty,
    ),
    Scenario(
        "many-rows",
        "100,000 rows of one epoch are applied once",
        "a batch is larger than the writer's buffer",
        _many,
    ),
    Scenario(
        "order-kept",
        "rows of a partition keep their order",
        "a writer sends rows in parallel, and they arrive in another order",
        _order,
        ("order",),
    ),
    Scenario(
        "undecided-invisible",
        "no reader sees a row before its decision",
        "a dashboard reads while an epoch is written, and the epoch is aborted",
        _hidden,
        ("hidden_until_decided",),
    ),
    Scenario(
        "one-moment",
        "an epoch appears to readers at one moment",
        "a reader looks in the middle of a commit",
        _one_moment,
        ("atomic_visibility",),
    ),
)

"""Scenarios about rows that the target can't hold: they go to the kit's own quarantine in the same epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from exactsink.protocol.sinks import Sink
from exactsink.testing.capabilities import Capability, Scenario
from exactsink.testing.context import SINK, Broken, Context
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.kept_rows import KeptRows, KeptRowsOptions
from exactsink.testing.processes import ask
from exactsink.toolkit.row_json import row_json

__all__ = ["SCENARIOS"]

_BAD = "bad"
_EACH = 5
"""One row in so many is bad."""


def _quarantined(context: Context) -> tuple[Script, Counter[str], list[int]]:
    """Return a job of three epochs with a quarantine, its bad rows as JSON, and the ids of the other rows."""
    script = context.script([20, 20], [20, 20], [20, 20])
    apart: Counter[str] = Counter()

    def spoil(table: pa.Table) -> pa.Table:
        bad = pa.array([number % _EACH == 0 for number in range(table.num_rows)])
        spoiled = context.target.unfit(table.filter(bad)).cast(table.schema)
        rows = spoiled.combine_chunks().to_batches()[0]
        apart.update(row_json(rows.slice(place, 1)) for place in range(rows.num_rows))
        good = pa.array([number % _EACH != 0 for number in range(table.num_rows)])
        return pa.concat_tables([table.filter(good), spoiled]).combine_chunks()

    batches = [[spoil(table) for table in batch] for batch in script.batches]
    store = KeptRows(KeptRowsOptions(path=str(context.folder / "quarantine.json")))
    bad = Sink(_BAD, "conformance", store, str(context.folder / "staging-of-bad-rows"))
    out = replace(script.sinks[SINK], quarantine=_BAD)
    good = [row for row in range(120) if row % 20 % _EACH]
    return replace(script, sinks={SINK: out, _BAD: bad}, batches=batches), apart, good


def _check(context: Context, script: Script, apart: Counter[str], good: list[int]) -> None:
    context.whole(script)
    context.check_rows(good)
    context.check_nothing_in_doubt(script)
    store = script.sinks[_BAD].backend
    assert isinstance(store, KeptRows)
    rows = store.rows()
    found = Counter(row["row"] for row in rows)
    if found != apart or len({row["id"] for row in rows}) != len(rows):
        missing, odd = (apart - found).total(), (found - apart).total()
        raise Broken(f"of {apart.total()} bad rows the quarantine lacks {missing}, and has {odd} that are not expected")
    if not all(row["reason"] for row in rows):
        raise Broken("a quarantined row has no reason")


def _apart(context: Context) -> None:
    """The driver is killed between its decision and each of the two commits."""
    script, apart, good = _quarantined(context)
    for epoch, point in enumerate([f"commit:{SINK}", f"commit:{_BAD}"]):
        context.killed(script, Fault(point, "before", "kill", epoch))
    _check(context, script, apart, good)


def _replayed(lose: Callable[[Context, Script], None]) -> Callable[[Context], None]:
    def play(context: Context) -> None:
        script, apart, good = _quarantined(context)
        context.killed(script, Fault("decide", "after", "kill", 1))
        lose(context, script)
        _check(context, script, apart, good)

    return play


def _quarantines(context: Context, script: Script) -> None:
    for path in Path(script.sinks[_BAD].staging).glob("*.arrow"):
        path.unlink()
        context.faults.append(f"lost-{path.stem}")
    if not context.faults[1:]:
        raise Broken("the quarantine had nothing staged")


def _sinks(context: Context, script: Script) -> None:
    lost = context.decided(script)
    ask(lambda: context.target.lose_votes(context.place, lost))
    context.faults += [f"lost-{committable.txn.id}" for committable in lost]


_NEEDS: tuple[Capability, ...] = ("validates_rows", "unfit")
SCENARIOS = (
    Scenario(
        "bad-rows-apart",
        "every row is in the target or in its quarantine, once",
        "an epoch has a row that the target can't hold, and the driver dies while both sinks commit",
        _apart,
        _NEEDS,
    ),
    Scenario(
        "quarantine-replayed",
        "in a replay, each row is judged as it was the first time",
        "the quarantined rows' staged files are removed before they are committed",
        _replayed(_quarantines),
        _NEEDS,
    ),
    Scenario(
        "judged-again",
        "if lost rows are written again, the same rows go to the target and to its quarantine",
        "a store loses decided rows of an epoch with bad rows, and the job writes the epoch again",
        _replayed(_sinks),
        (*_NEEDS, "can_lose_votes"),
    ),
)

"""Compare a sink's columns with those of the last decision, and refuse a change before the first row is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exactsink.contract import Refused
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Columns
from exactsink.protocol.sinks import Sink, is_bound

__all__ = ["changed_columns", "check_columns"]

_NONE = "-"


def check_columns(sinks: Mapping[str, Sink], log: Log, epoch: int, now: Mapping[str, Columns]) -> None:
    """Refuse a new epoch if its columns differ from the last epoch's, and a sink's `on_schema_change` forbids that."""
    if log.decision is None or epoch <= log.decision.epoch:
        return
    for name, columns in now.items():
        if (refusal := changed_columns(sinks[name], log.decision, columns)) is not None:
            raise refusal


def changed_columns(sink: Sink, decision: Decision | None, now: Columns) -> Refused | None:
    """Return the refusal of a sink's columns, None if they may follow the last decision."""
    allowed = sink.backend.on_schema_change
    if allowed == "allow" or decision is None or sink.name not in decision.sinks:
        return None
    before = decision.sinks[sink.name].columns
    if before is None or not is_bound({sink.name: sink}, decision, sink.name):
        return None
    rows = list(_differences(dict(before), dict(now)))
    only_added = all(before == _NONE for _, before, _ in rows)
    if not rows or (only_added and allowed == "add_columns"):
        return None
    head = ("column", f"epoch {decision.epoch}", "now")
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(2)]
    lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in (head, *rows)]
    word = "add_columns" if only_added else "allow"
    return Refused(
        f"sink {sink.name}: its columns differ from those of epoch {decision.epoch}; no row of this epoch was written",
        why="readers of the target expect the earlier columns\n" + "\n".join(lines),
        next=f"give the sink these columns again, in the job's transform or by `columns`; or, once its readers are "
        f'ready for the change, set on_schema_change = "{word}" in [sinks.{sink.name}] and start the job again',
    )


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            yield name, before.get(name, _NONE), now.get(name, _NONE)

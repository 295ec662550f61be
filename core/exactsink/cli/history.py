"""`exactsink history`: the journal, record by record."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.protocol.journal.records import Action, Claim, Clean, Complete, Decide, Record, Redecide, Resolve
from exactsink.toolkit.waiting import backoff

__all__ = ["history"]


def history(path: str, run: str | None, last: int, as_json: bool) -> None:
    """Print the newest `last` records that stand: claims, decisions with their rows, what else is kept."""
    with closing(Opened.of(path, run).history.journal(backoff)) as journal:
        records = journal.history()
    lines = [_line(record) for record in records[max(0, len(records) - last) :]]
    if as_json:
        print(json.dumps(lines, indent=1))
        return
    rows = [[line["seq"], line["at"], line["kind"], _text(line["epoch"]), line["what"]] for line in lines]
    print_table(("seq", "at", "record", "epoch", "what"), rows, sys.stdout)


def _line(record: Record) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    epoch = record.epoch if isinstance(record, Decide | Redecide | Complete | Resolve) else None
    kind = type(record).__name__.lower()
    return {"seq": record.seq, "at": f"{at}Z", "kind": kind, "epoch": epoch, "what": _what(record)}


def _what(record: Record) -> str:
    if isinstance(record, Claim):
        return f"generation {record.generation} by {record.driver}, {record.query_id or 'the next query'}"
    if isinstance(record, Decide):
        return ", ".join(f"{name} {sink.rows} rows" for name, sink in record.sinks.items())
    if isinstance(record, Redecide):
        rows = sum(committable.rows for committable in record.committables)
        return f"{record.sink} {rows} rows, lost votes written again"
    if isinstance(record, Complete):
        return "complete in every sink"
    if isinstance(record, Clean):
        return "nothing is in doubt: sinks may change"
    if isinstance(record, Action):
        return f"{record.command} by {record.who}: {record.outcome}"
    if isinstance(record, Resolve):
        return f"{record.sink} resolved as {record.outcome} by {record.who}: {record.reason}"
    return record.text


def _text(value: object) -> str:
    return "-" if value is None else str(value)

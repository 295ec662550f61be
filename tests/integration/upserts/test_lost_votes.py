"""A database goes back to what it held before tasks voted, as by a failover to a replica that lags, after a decision.

The mark, of the epoch before, shows nothing of it: what strategy `direct` had written is gone, with its votes.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Event
from exactsink.protocol.sinks import Sink
from exactsink.testing.driver_run import Script, run_driver
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions

_TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT, exactsink_epoch BIGINT, exactsink_generation BIGINT)"
_READ = "SELECT id, v FROM t ORDER BY id"
_ROWS = 30


class PutBack:
    """Keeps what the database holds when an epoch is open, and puts it back once that epoch is decided."""

    def __init__(self, epoch: int, keep: Callable[[], object], put_back: Callable[[], object]) -> None:
        self.epoch = epoch
        self.calls = {("open_epoch", "after"): keep, ("commit:table", "before"): put_back}
        self.lost: list[Any] = []

    def __call__(self, event: Event) -> None:
        if event.name == "vote_lost":
            self.lost.append(event.fields)
        if event.epoch == self.epoch and (call := self.calls.pop((event.name, event.edge), None)) is not None:
            call()

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        """Leave tasks alone."""


def play(folder: Path, url: str, trigger: PutBack, read: Callable[[], Sequence[Any]]) -> None:
    given = {"url": url, "table": "t", "keys": ("id",), "strategy": "direct"}
    sink = Sink("table", "idempotent_upsert", UpsertBackend(UpsertOptions.model_validate(given)), str(folder), ())
    batches = [[_rows(epoch, part) for part in range(2)] for epoch in range(3)]
    assert run_driver(Script("lagging", folder, {"table": sink}, batches), trigger) == 0
    assert not trigger.calls
    expected = {row["id"]: row["v"] for batch in batches for part in batch for row in part.to_pylist()}
    assert read() == sorted(expected.items())
    assert len(trigger.lost) == 2


def _rows(epoch: int, part: int) -> pa.Table:
    """Return a part's rows: half of its keys come in every epoch, the others are new."""
    ids = [
        *range(part * 1000, part * 1000 + _ROWS),
        *range((epoch * 2 + part) * 10_000, (epoch * 2 + part) * 10_000 + 5),
    ]
    return pa.table({"id": ids, "v": [epoch] * len(ids)})


@pytest.mark.parametrize("epoch", [0, 1])
def test_rows_that_went_with_their_votes_are_written_again_into_sqlite(tmp_path: Path, epoch: int) -> None:
    file, copy = tmp_path / "shop.db", tmp_path / "copy"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(_TABLE)

    def put_back() -> None:
        for name in ("shop.db-wal", "shop.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        shutil.copy(copy, file)

    def read() -> list[Any]:
        with closing(sqlite3.connect(file)) as connection:
            return connection.execute(_READ).fetchall()

    play(tmp_path, f"sqlite:///{file}", PutBack(epoch, lambda: shutil.copy(file, copy), put_back), read)

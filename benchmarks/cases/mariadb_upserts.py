"""Upserts into MariaDB, half of them updates: apply staged rows, beside the driver's and the server's own means."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from tests.servers.mariadb import MariaDBServer, own_mariadb

from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import Committed, JobContext
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions

__all__ = ["LARGE", "SMALL"]

_SETTINGS = {"innodb-buffer-pool-size": "1G", "innodb-log-file-size": "2G", "local-infile": "1"}
_COLUMNS = "(id BIGINT PRIMARY KEY, name VARCHAR(20), text VARCHAR(200))"
_SET = "ON DUPLICATE KEY UPDATE name = VALUES(name), text = VALUES(text)"
_OURS, _MANY, _LOAD = "staged", "executemany", "LOAD DATA LOCAL"
_PARTS, _CHUNK = 4, 10_000


class _Target:
    """A table that has every second row before each run, with other values, and all rows after it."""

    def __init__(self, server: MariaDBServer, rows: int) -> None:
        self.rows, self._server = rows, server
        self.name = server.new_database("benchmark")
        server.execute(f"CREATE TABLE upserted {_COLUMNS}", database=self.name)

    @property
    def url(self) -> str:
        return self._server.url(self.name)

    def connect(self) -> pymysql.Connection[Any]:
        socket = str(self._server.socket)
        return pymysql.connect(
            unix_socket=socket, user="root", database=self.name, charset="utf8mb4", local_infile=True
        )

    def half(self) -> None:
        """Fill it, and write all dirty pages by a restart, which is InnoDB's only way."""
        fill = f"SELECT 2 * seq, 'before', REPEAT('-', 100) FROM seq_0_to_{self.rows // 2 - 1}"
        statements = ["TRUNCATE upserted", f"INSERT INTO upserted {fill}", "ANALYZE TABLE upserted"]
        self._server.execute(*statements, database=self.name)
        self._server.stop()
        self._server.start()

    def counted(self, folder: Path) -> int:
        [(found,)] = self._server.execute("SELECT count(*) FROM upserted WHERE name <> 'before'", database=self.name)
        return int(found)


def _rows(rows: int) -> pa.Table:
    numbers = [number * 7919 % rows for number in range(rows)]
    names = [f"name-{number % 1000}" for number in numbers]
    return pa.table({"id": numbers, "name": names, "text": [f"{number:0>100}" for number in numbers]})


@contextmanager
def _open(setting: Setting, rows_at_most: int) -> Iterator[Plan]:
    rows = setting.scaled(rows_at_most, least=2)
    table = _rows(rows)
    file = setting.folder / "rows.csv"
    _write_file(table, file)
    with own_mariadb(_SETTINGS) as server:
        target = _Target(server, rows)
        variants = [
            Variant(_OURS, _ours(target, table, setting.folder), target.counted),
            Variant(_MANY, _prepared(target, partial(_many, target, _tuples(table))), target.counted),
            Variant(_LOAD, _prepared(target, partial(_load, target, file)), target.counted),
        ]
        bounds = [
            Bound(metric, _OURS, other, at_least=0.9 if metric == "rows_per_s" else None)
            for other in (_MANY, _LOAD)
            for metric in ("rows_per_s", "rows_per_cpu_s")
        ]
        [(version,)] = server.execute("SELECT VERSION()")
        notes = [
            f"{rows:,} rows (long as primary key, in no order, string, 100 characters); every second key stands",
            f"{_OURS}: {_PARTS} votes are staged before the clock runs; their files are read, applied and marked",
            f"{_MANY}: PyMySQL's, of tuples that are in memory",
            f"{_LOAD}: a file that is there, into a temporary table, then INSERT .. SELECT",
            f"MariaDB {version}, private, the rest as it comes: {', '.join(f'{k} {v}' for k, v in _SETTINGS.items())}",
            "the server starts again before each run, not timed; cpu_s counts it, too",
        ]
        yield Plan(variants, bounds, notes)


def _prepared(target: _Target, work: Callable[[], None]) -> Callable[[Path], Work]:
    def prepare(scratch: Path) -> Work:
        target.half()

        def timed() -> Metrics:
            work()
            return {"rows": target.rows}

        return timed

    return prepare


def _ours(target: _Target, table: pa.Table, folder: Path) -> Callable[[Path], Work]:
    options = UpsertOptions.model_validate({"url": target.url, "table": "upserted", "keys": ("id",)})
    ctx = JobContext("benchmark", "table", str(folder / "staging"), 1, "L1")
    session, epochs = Session(UpsertBackend(options), ctx, "aa"), count(1)

    def prepare(scratch: Path) -> Work:
        target.half()
        epoch = next(epochs)
        ticket = session.open(epoch, table.schema)
        votes = [_vote(session, epoch, number, ticket, part) for number, part in enumerate(_parts(table))]

        def work() -> Metrics:
            assert session.commit(epoch, votes) == [Committed()] * _PARTS
            return {"rows": target.rows}

        return work

    return prepare


def _parts(table: pa.Table) -> Sequence[pa.Table]:
    ends = [table.num_rows * number // _PARTS for number in range(_PARTS + 1)]
    return [table.slice(first, end - first) for first, end in pairwise(ends)]


def _vote(session: Session, epoch: int, number: int, ticket: bytes, part: pa.Table) -> Any:
    writer = session.writer(epoch, number, part.schema, ticket)
    for batch in part.to_batches(max_chunksize=_CHUNK):
        writer.write(batch)
    return writer.pre_commit()


def _tuples(table: pa.Table) -> Sequence[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _write_file(table: pa.Table, file: Path) -> None:
    with open(file, "w", newline="") as out:
        csv.writer(out, delimiter="\t", lineterminator="\n").writerows(_tuples(table))


def _many(target: _Target, rows: Sequence[tuple[Any, ...]]) -> None:
    with closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO upserted (id, name, text) VALUES (%s, %s, %s) {_SET}", rows)
        connection.commit()


def _load(target: _Target, file: Path) -> None:
    with closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE by_hand {_COLUMNS.replace(' PRIMARY KEY', '')}")
        cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE by_hand")
        cursor.execute(f"INSERT INTO upserted SELECT * FROM by_hand {_SET}")
        connection.commit()


_SMALL = "Upserts into MariaDB, 200,000 rows an epoch, half of them updates, beside them by hand."
SMALL = Benchmark("mariadb_upsert", _SMALL, partial(_open, rows_at_most=200_000))
LARGE = Benchmark("mariadb_upsert_large", "The same with 2,000,000 rows.", partial(_open, rows_at_most=2_000_000))

"""Tables for `exactsink bench`: one per strategy, each in its own schema, beside a sink's own table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from exactsink.bench.target import BenchReader, BenchTarget, Place
from exactsink.contract import BackendOptions, ConfigError
from exactsink.toolkit.sql import quoted
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import Session

__all__ = ["TableTarget", "session_of", "targets"]

_TABLE = "bench_rows"
_FORM = "INCLUDING ALL EXCLUDING STATISTICS"
_SEQUENCES = """
    SELECT attname FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
    WHERE adrelid = to_regclass(%s) AND pg_get_expr(adbin, adrelid) LIKE '%%nextval(%%'
"""
_SIZE = """
    SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) FROM pg_class
    WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
"""
_HELD = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"


def targets(options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return both strategies. Raises ConfigError without a sink, and for a table that draws from a sequence."""
    if options is None:
        raise ConfigError("it needs a server", why="name a job that writes to one, with --job")
    assert isinstance(options, PostgresOptions)
    with session_of(options) as session:
        drawing = session.run(_SEQUENCES, options.name.sql).fetchall()
    if drawing:
        why = f"its column {drawing[0][0]} has a sequence of its own, which a copy would draw from"
        raise ConfigError(f"table {options.table} can't be copied", why=why)
    return {strategy: TableTarget(strategy, options) for strategy in ("two_phase", "staged")}


@dataclass(frozen=True)
class TableTarget(BenchTarget):
    """A table like the sink's own, with its indices and constraints. The tables beside it are in its schema."""

    strategy: str
    given: PostgresOptions

    @property
    def holds(self) -> str:
        since = "its tasks' begin" if self.strategy == "two_phase" else "the begin of the commit"
        return f"locks on rows, and dead rows that VACUUM may not remove, from {since}"

    def copy(self, place: Place) -> str:
        """Return the copy's name, quoted."""
        return quoted(place.identifier, _TABLE)

    def make(self, place: Place) -> Mapping[str, Any]:
        schema, own = quoted(place.identifier), self.given.name.sql
        here = {"table": self.copy(place), "strategy": self.strategy, "staging_schema": place.identifier}
        with session_of(self.given) as session:
            session.run(f"CREATE SCHEMA {schema}")
            [(there,)] = session.run("SELECT to_regclass(%s) IS NOT NULL", own).fetchall()
            if not there:
                return {**here, "create": True}
            session.run(f"CREATE TABLE {self.copy(place)} (LIKE {own} {_FORM})")
        return here

    def reader(self, place: Place) -> BenchReader:
        return _TableReader(self.given, self.copy(place))

    def size(self, place: Place) -> int | None:
        with session_of(self.given) as session:
            [(size,)] = session.run(_SIZE, place.identifier).fetchall()
        return int(size)

    def drop(self, place: Place) -> None:
        with session_of(self.given) as session:
            for (gid,) in session.run(_HELD, f"{place.name}.").fetchall():
                session.execute(b"ROLLBACK PREPARED '" + gid.encode() + b"'")  # an id of ours has no quote
            session.run(f"DROP SCHEMA IF EXISTS {quoted(place.identifier)} CASCADE")


class _TableReader(BenchReader):
    def __init__(self, options: PostgresOptions, table: str) -> None:
        self._table = table
        self._session = options.server.connect("exactsink bench: a reader")

    def rows(self) -> int:
        [(there,)] = self._session.run("SELECT to_regclass(%s) IS NOT NULL", self._table).fetchall()
        if not there:
            return 0
        [(count,)] = self._session.run(f"SELECT count(*) FROM {self._table}").fetchall()
        return int(count)

    def close(self) -> None:
        self._session.close()


@contextmanager
def session_of(options: PostgresOptions) -> Iterator[Session]:
    """Connect for the duration of the block."""
    session = options.server.connect("exactsink bench")
    try:
        yield session
    finally:
        session.close()

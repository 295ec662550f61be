"""Targets in PostgreSQL: for the kit a database per scenario, for `exactsink bench` a copy of a table.

The copies are those of the `postgres` backend, under the name that `set` uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import sqlalchemy.dialects.postgresql  # noqa: F401 - here once, not in each process that the kit forks
from psycopg.conninfo import conninfo_to_dict

from exactsink.bench.target import BenchTarget, Place
from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.postgres import database as postgres  # noqa: F401 - the same
from exactsink_idempotent_upsert.table import GUARD
from exactsink_postgres import bench
from exactsink_postgres.conformance import StagedTarget
from exactsink_postgres.public import PostgresOptions

__all__ = ["DirectTarget", "UpsertTarget", "UpsertedTable", "bench_targets", "kit_targets"]

_TABLES = """
    CREATE TABLE keyed (id bigint PRIMARY KEY, kind text, amount float8, times int DEFAULT 1);
    CREATE TABLE changes (id bigint);
    CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO changes VALUES (NEW.id); RETURN NULL; END $$;
    CREATE TRIGGER changed AFTER INSERT OR UPDATE ON keyed FOR EACH ROW EXECUTE FUNCTION log();
"""
_GONE = "DELETE FROM keyed USING exactsink_staged AS vote WHERE keyed.xmin = vote.xmin AND participant = ANY (%s)"


def kit_targets(conninfo: str) -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on this server."""
    return {"postgres_staged": UpsertTarget("staged", conninfo), "postgres_direct": DirectTarget("direct", conninfo)}


@dataclass(frozen=True)
class UpsertTarget(StagedTarget):
    """A table whose trigger logs every change. A row counts as applied each time it is inserted or updated."""

    order = ConformanceTarget.order  # keys are taken in theirs
    previous = ConformanceTarget.previous  # no release before had it

    def backend(self, folder: Path) -> Backend:
        StagedTarget("staged", self.conninfo).backend(folder)  # makes the database
        self.run(folder, _TABLES)
        place = conninfo_to_dict(self.there(folder))
        name = quote(str(place.pop("dbname")))
        url = f"postgresql:///{name}?{urlencode({key: str(value) for key, value in place.items()})}"
        # A driver that is stopped inside its transaction holds locks: don't wait for it.
        given = {"url": url, "table": "keyed", "keys": ["id"], "busy_timeout_seconds": 0.5}
        return UpsertBackend(UpsertOptions.model_validate({**given, **self.more}))

    @property
    def more(self) -> Mapping[str, object]:
        return {"set": {"times": "keyed.times + 1"}}

    def applied(self, folder: Path) -> Counter[int]:
        with psycopg.connect(self.there(folder)) as session:
            return Counter(row for (row,) in session.execute("SELECT id FROM changes"))


@dataclass(frozen=True)
class DirectTarget(UpsertTarget):
    """The target with strategy `direct`. A failover can lose its votes, together with their rows."""

    @property
    def more(self) -> Mapping[str, object]:
        return {"strategy": "direct", "create": True, "on_schema_change": "add_columns"}

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Let them be gone, with the rows of their transactions, as after a failover to a standby that lags behind."""
        with psycopg.connect(self.there(folder)) as session:
            ids = [committable.txn.id for committable in committables]
            session.execute(_GONE, [ids])
            session.execute("DELETE FROM exactsink_staged WHERE participant = ANY (%s)", [ids])
            session.execute("DELETE FROM changes WHERE id NOT IN (SELECT id FROM keyed)")

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Empty the marks and the registry."""
        self.run(folder, "TRUNCATE exactsink_epochs, exactsink_staged")


def bench_targets(options: UpsertOptions) -> Mapping[str, BenchTarget]:
    """Return both strategies. Raises ConfigError for a table that draws from a sequence."""
    own = PostgresOptions(conninfo=options.url, table=options.table)
    bench.targets(own)
    return {strategy: UpsertedTable(strategy, own, options.keys) for strategy in ("staged", "direct")}


@dataclass(frozen=True)
class UpsertedTable(bench.TableTarget):
    """A table of the sink's own name, with the columns that strategy `direct` needs."""

    by: tuple[str, ...]

    @property
    def holds(self) -> str:
        since = "while each task votes" if self.strategy == "direct" else "from the start of the commit"
        return f"locks on rows, {since}"

    @property
    def keys(self) -> tuple[str, ...]:
        return self.by

    def copy(self, place: Place) -> str:
        return quoted(place.identifier, self.given.name.name)

    def make(self, place: Place) -> Mapping[str, Any]:
        here = {**super().make(place), "keys": list(self.by)}
        if self.strategy != "direct":
            return here
        if "create" not in here:
            columns = ", ".join(f"ADD COLUMN IF NOT EXISTS {name} bigint" for name in GUARD)
            with bench.session_of(self.given) as session:
                session.run(f"ALTER TABLE {self.copy(place)} {columns}")
        return {**here, "staging_schema": None}

"""Copies for `exactsink bench` on PostgreSQL: those of the `postgres` backend, under the name that `set` knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exactsink.bench.target import BenchTarget, Place
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.table import GUARD
from exactsink_postgres import bench
from exactsink_postgres.public import PostgresOptions

__all__ = ["UpsertedTable", "targets_of"]


def targets_of(options: UpsertOptions) -> Mapping[str, BenchTarget]:
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
        since = "while each task votes" if self.strategy == "direct" else "from the begin of the commit"
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

"""Skeleton: staged rows, applied to a Postgres table in one transaction with the marker. Fits StagedBackend as is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import pyarrow as pa
from pydantic import SecretStr

from exactsink.contract import Applier, Backend, BackendOptions, Finding, Marker, StagedBackend, Traits


class StagedSqlOptions(BackendOptions):
    dsn: SecretStr
    server: str
    table: str
    keys: tuple[str, ...]
    strategy: Literal["staged"] = "staged"


class StagedSqlApplier(Applier):
    def __init__(self, options: StagedSqlOptions) -> None:
        self._options = options

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        raise NotImplementedError  # information_schema: the table, its columns, a unique index over the keys

    def open_epoch(self, schema: pa.Schema) -> None:
        raise NotImplementedError  # CREATE TABLE IF NOT EXISTS of the marker's table

    def last_applied(self, job: str, sink: str) -> Marker | None:
        raise NotImplementedError  # to_regclass, SELECT of the marker

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        # BEGIN; INSERT the marker's row ON CONFLICT DO NOTHING, SELECT .. FOR UPDATE; must_apply; CREATE TEMP TABLE,
        # COPY with the row's number, INSERT .. SELECT DISTINCT ON (keys) .. ON CONFLICT DO UPDATE; UPDATE the marker;
        # COMMIT
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError  # the connection


class StagedSqlBackend(StagedBackend):
    Options = StagedSqlOptions
    options: StagedSqlOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"postgres:{self.options.server}#{self.options.table}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=True, needs_shared_staging=True)

    def check_batch(self, batch: pa.RecordBatch) -> None:
        return None  # a NULL key, text with a zero byte

    def applier(self) -> Applier:
        return StagedSqlApplier(self.options)


SAMPLE: Backend = StagedSqlBackend(
    StagedSqlOptions.model_validate(
        {"dsn": "postgresql://localhost/shop", "server": "localhost/shop", "table": "orders", "keys": ["id"]}
    )
)

"""The `postgres` backend: the promises of its strategies, and the shape of rows before they become Arrow."""

from __future__ import annotations

import pyarrow as pa

from exactsink.contract import Backend, Committer, JobContext, Traits, Txn, Validator, Writer
from exactsink.toolkit.json_columns import json_expressions
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import place
from exactsink_postgres.staged import StagingCommitter, StagingWriter
from exactsink_postgres.two_phase import TwoPhaseCommitter, TwoPhaseWriter
from exactsink_postgres.validator import RowRules, TableValidator

__all__ = ["PostgresBackend", "PostgresOptions"]


class PostgresBackend(Backend):
    """Insert rows into one table, an epoch exactly once."""

    Options = PostgresOptions
    options: PostgresOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"{place(self.options.conninfo.get_secret_value())}#{self.options.name}"

    @property
    def traits(self) -> Traits:
        if self.options.strategy == "staged":
            # A failover may lose staged rows.
            return Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True, appends=True)
        # An administrator may roll a prepared transaction back.
        return Traits(can_lose_votes=True, marks=True, validates_rows=True, appends=True)

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Let the JVM make JSON of structs, maps and nested lists. Raises ConfigError for keys that JSON can't have."""
        return json_expressions(schema)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        kind = StagingWriter if self.options.strategy == "staged" else TwoPhaseWriter
        return kind(self.options, txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return TableValidator(RowRules.load(rules), schema)

    def committer(self, ctx: JobContext) -> Committer:
        kind = StagingCommitter if self.options.strategy == "staged" else TwoPhaseCommitter
        return kind(self.options, ctx)

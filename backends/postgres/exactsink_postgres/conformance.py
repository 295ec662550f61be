"""Targets of the `postgres` backend for the conformance kit: a database per scenario, one target per strategy.

The server is that of libpq's environment. Its role must be allowed to create databases, and max_prepared_transactions
must be set.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.conninfo import make_conninfo

from exactsink.contract import Backend, Committable, ConfigError
from exactsink.testing import ConformanceTarget
from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.options import PostgresOptions

if TYPE_CHECKING:
    from typing_extensions import LiteralString

__all__ = ["PostgresTarget", "StagedTarget", "TwoPhaseTarget", "targets", "targets_on"]

_SLOTS = 16
_USE = """
    SELECT rolcreatedb OR rolsuper, current_setting('max_prepared_transactions')::int
    FROM pg_roles WHERE rolname = current_user
"""
_A_SERVER = (
    "set PGHOST, PGUSER, PGDATABASE and the like to a server for tests, whose role may make databases, with "
    f"max_prepared_transactions = {_SLOTS} or more"
)
_TABLE = "CREATE TABLE flights (id bigint, kind text, amount float8, n bigserial)"
_HELD = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"


def targets() -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on the server of libpq's environment. Raises ConfigError when it is of no use."""
    try:
        with psycopg.connect() as session:
            row = session.execute(_USE).fetchone()
    except psycopg.OperationalError as error:
        raise ConfigError(
            "no PostgreSQL server for the kit", why=" ".join(str(error).split()), next=_A_SERVER
        ) from None
    if row is None or not row[0] or row[1] < _SLOTS:
        why = f"the role may make no databases, or max_prepared_transactions is below {_SLOTS}"
        raise ConfigError("the kit can't use this PostgreSQL server", why=why, next=_A_SERVER)
    return targets_on("")


def targets_on(conninfo: str) -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on this server."""
    return {"two_phase": TwoPhaseTarget("two_phase", conninfo), "staged": StagedTarget("staged", conninfo)}


@dataclass(frozen=True)
class PostgresTarget(ConformanceTarget):
    """A table without a key: each row of it is one application."""

    strategy: str
    conninfo: str

    def backend(self, folder: Path) -> Backend:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_database(folder))))
        self.run(folder, _TABLE)
        given = {"conninfo": self.there(folder), "table": "flights", "strategy": self.strategy}
        return PostgresBackend(PostgresOptions.model_validate({**given, "lock_timeout_seconds": 0.5}))

    def job_prefix(self, folder: Path) -> str:
        """The server takes the name of a prepared transaction once, whatever the database."""
        return f"{_database(folder).removeprefix('kit_')}-"

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        with psycopg.connect(self.there(folder)) as session:
            return [[row[0] for row in session.execute("SELECT id FROM flights ORDER BY n")]]

    def unfit(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(1, rows.field("kind"), pc.binary_join_element_wise(rows["kind"], "\0", ""))

    def foreign(self, folder: Path) -> None:
        self.run(folder, "CREATE TABLE theirs (n int)")
        for gid in _foreign(folder):
            with psycopg.connect(self.there(folder), autocommit=True) as session:
                session.execute("BEGIN")
                session.execute("INSERT INTO theirs VALUES (1)")
                session.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid)))

    def foreign_stands(self, folder: Path) -> bool:
        there = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND gid = ANY (%s)"
        with psycopg.connect(self.there(folder)) as session:
            return session.execute(there, (_foreign(folder),)).fetchone() == (len(_foreign(folder)),)

    def there(self, folder: Path) -> str:
        return make_conninfo(self.conninfo, dbname=_database(folder))

    def run(self, folder: Path, *statements: LiteralString) -> None:
        with psycopg.connect(self.there(folder), autocommit=True) as session:
            for statement in statements:
                session.execute(statement)


@dataclass(frozen=True)
class TwoPhaseTarget(PostgresTarget):
    """The target with strategy `two_phase`, whose prepared transactions an administrator can roll back."""

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        with psycopg.connect(self.there(folder), autocommit=True) as session:
            for committable in committables:
                session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(committable.txn.id)))

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Put another database in the place of this one."""
        name = sql.Identifier(_database(folder))
        with psycopg.connect(self.there(folder), autocommit=True) as session:
            for (gid,) in session.execute(_HELD).fetchall():
                session.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            session.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            session.execute(sql.SQL("CREATE DATABASE {}").format(name))
        self.run(folder, _TABLE)


@dataclass(frozen=True)
class StagedTarget(PostgresTarget):
    """The target with strategy `staged`, whose evidence, staging tables and marks, can get lost."""

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Let their rows be gone, as after a failover to a standby that lags behind."""
        with psycopg.connect(self.there(folder)) as session:
            for committable in committables:
                rows = sql.Identifier("exactsink_staging", json.loads(committable.payload)["rows_table"])
                session.execute(
                    sql.SQL("DELETE FROM {} WHERE exactsink_attempt = %s").format(rows), [committable.txn.attempt]
                )
                forget = "DELETE FROM exactsink_staging.exactsink_staged WHERE participant = %s"
                session.execute(forget, [committable.txn.id])

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Empty the marks; drop the registry and the staging tables."""
        self.run(folder, "TRUNCATE exactsink_epochs", "DROP SCHEMA exactsink_staging CASCADE")


def _foreign(folder: Path) -> list[str]:
    """Name transactions that are not exactsink's; the server takes a name once, whatever the database."""
    return [f"somebody's own {_database(folder)}", f"{_database(folder).removeprefix('kit_')}-kit.out.theirs"]


def _database(folder: Path) -> str:
    return "kit_" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]

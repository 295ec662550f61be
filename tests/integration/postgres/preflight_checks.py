"""Looking at a server before the first row, for the tests of preflight."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo

from exactsink.contract import Finding, JobContext, Txn
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import findings
from tests.integration.postgres.sinks import ROWS
from tests.servers.postgres import PostgresServer

SLOTS = 6


def context(**given: Any) -> JobContext:
    return JobContext("shop", "orders", "/nowhere", **given)


def check(
    server: PostgresServer,
    database: str = "shop",
    *,
    role: str = "postgres",
    conninfo: str = "",
    participants: int | None = 2,
    rows: pa.Schema = ROWS,
    ctx: JobContext | None = None,
    **options: Any,
) -> list[Finding]:
    given = make_conninfo(server.conninfo(database, role), **dict(pair.split("=", 1) for pair in [conninfo] if pair))
    made = PostgresOptions.model_validate({"conninfo": given, "table": "flights", **options})
    with made.server.connect("preflight") as connection:
        return list(findings(made, ctx or context(), connection, rows, participants))


def reported(found: list[Finding]) -> str:
    return "\n".join(f"{finding.severity}: {finding.message}\n  {finding.fix}" for finding in found)


def prepare(server: PostgresServer, gid: str, database: str = "shop", role: str = "postgres") -> None:
    with psycopg.connect(server.conninfo(database, role), autocommit=True) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO flights (id) VALUES (1)")
        session.execute(f"PREPARE TRANSACTION '{gid}'".encode())


def participant(partition: int, job: str = "shop", sink: str = "orders") -> str:
    return Txn(job, 7, sink, 3, "ab12", partition, partition).id

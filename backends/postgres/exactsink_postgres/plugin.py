"""Announce the backend `postgres` without importing it."""

from __future__ import annotations

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Return the one backend of this package."""
    two_phase = "tasks COPY rows into the table and PREPARE TRANSACTION; the driver commits these transactions"
    staged = "tasks COPY rows into a staging table; the commit moves all rows in one transaction, with the mark"
    return [
        BackendSpec(
            "postgres",
            load="exactsink_postgres.backend:PostgresBackend",
            install="pip install 'exactsink[postgres]'",
            strategies={"two_phase": two_phase, "staged": staged},
            conformance="exactsink_postgres.conformance:targets",
            bench="exactsink_postgres.bench:targets",
            drivers=("pgpq", "psycopg"),
        )
    ]

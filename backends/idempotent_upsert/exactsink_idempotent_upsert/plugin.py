"""Announce the backend `idempotent_upsert` without importing it."""

from __future__ import annotations

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Return the one backend of this package."""
    staged = "rows wait in files (Postgres: tables) for the decision; then one transaction upserts them, with the mark"
    direct = "tasks upsert rows before the decision, never over rows of newer epochs: effectively once, no deletes"
    return [
        BackendSpec(
            "idempotent_upsert",
            load="exactsink_idempotent_upsert.backend:UpsertBackend",
            install="pip install 'exactsink[idempotent-upsert]'",
            strategies={"staged": staged, "direct": direct},
            conformance="exactsink_idempotent_upsert.conformance:targets",
            bench="exactsink_idempotent_upsert.bench:targets",
            drivers=("sqlalchemy",),
        )
    ]

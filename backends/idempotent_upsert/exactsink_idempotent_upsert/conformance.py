"""Targets of the `idempotent_upsert` backend for the conformance kit, of every database."""

from __future__ import annotations

import os
from collections.abc import Mapping

from exactsink.testing import ConformanceTarget
from exactsink_idempotent_upsert.sqlite.conformance import DirectTarget, StagedTarget

__all__ = ["targets"]

_MYSQL, _POSTGRES = "EXACTSINK_MYSQL_URL", "EXACTSINK_POSTGRES_URL"


def targets() -> Mapping[str, ConformanceTarget]:
    """Return the targets by name; those on PostgreSQL, MariaDB and MySQL, too, where the environment names a server."""
    found: dict[str, ConformanceTarget] = {"staged": StagedTarget("staged"), "direct": DirectTarget("direct")}
    if url := os.environ.get(_MYSQL):
        from exactsink_idempotent_upsert.mysql import conformance as mysql

        found |= mysql.targets_on(url)
    if url := os.environ.get(_POSTGRES):
        from exactsink_idempotent_upsert.postgres import conformance as postgres

        found |= postgres.targets_on(url)
    return found

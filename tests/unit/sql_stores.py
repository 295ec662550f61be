"""What tests of the journal in SQL share: its job, its decisions, and statements beside the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from exactsink.contract import Committable, Txn
from exactsink.protocol.journal.records import Decide, DecidedSink

JOB = "a-job"


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements beside the store; give the last one's rows."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(exist_ok=True)
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        results = [connection.exec_driver_sql(statement) for statement in statements]
        return list(results[-1]) if results[-1].returns_rows else []


@contextmanager
def at_commit(query: str) -> Iterator[list[str]]:
    """Collect what a query gives inside each transaction, just before it is committed."""
    seen: list[str] = []

    def look(connection: sa.Connection) -> None:
        seen.append(str(connection.exec_driver_sql(query).scalar()))

    sa.event.listen(Engine, "commit", look)
    try:
        yield seen
    finally:
        sa.event.remove(Engine, "commit", look)


def decided(epoch: int) -> Decide:
    committable = Committable(Txn(JOB, epoch, "lake", 1, "ab", 0, 0), 5, b"payload")
    return Decide(epoch, 1, f"input-{epoch}", {"lake": DecidedSink("files", "rename", "/lake", (committable,))})

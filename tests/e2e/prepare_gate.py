"""Holds tasks in their `pre_commit`: in PREPARE TRANSACTION of the sink `db`, when the sinks before it have voted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.e2e.postgres_job import Database

__all__ = ["Gate", "gate_of"]

_KEY = 6
_SETUP = (
    "CREATE TABLE db (id bigint, kind text, amount float8, tags jsonb)",
    f"""CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_lock_shared({_KEY}); PERFORM pg_advisory_unlock_shared({_KEY}); RETURN NULL; END $$""",
    """CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON db DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION gate()""",
)
_WAITING = """SELECT pid FROM pg_stat_activity
    WHERE wait_event = 'advisory' AND datname = current_database()"""


class Gate:
    """Closed from `shut` on, until it is opened; who comes meanwhile waits, and goes on even if its process is dead."""

    def __init__(self, database: Database, session: psycopg.Connection) -> None:
        self._database = database
        self._session = session

    def shut(self) -> None:
        self._session.execute(f"SELECT pg_advisory_lock({_KEY})")

    @property
    def waiting(self) -> int:
        """Return how many tasks stand before it."""
        return len(self._database.execute(_WAITING))

    def open(self) -> None:
        """Let them through, and all who come later."""
        self._session.execute(f"SELECT pg_advisory_unlock({_KEY})")


@contextmanager
def gate_of(database: Database) -> Iterator[Gate]:
    """Make the table of the sink `db`, with a gate that stands open."""
    for statement in _SETUP:
        database.execute(statement)
    with psycopg.connect(database.server.conninfo(database.name), autocommit=True) as session:
        yield Gate(database, session)

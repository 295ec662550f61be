"""What a sink still holds in its database, begun or prepared, and its rollback. Nobody else's is ever touched."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from exactsink.contract import InDoubt, Retryable, Txn
from exactsink_postgres.load import TAG
from exactsink_postgres.prepared import finish, list_prepared

__all__ = ["END_SECONDS", "list_in_doubt", "roll_back"]

END_SECONDS = 10
"""How long to wait for the end of a session that was reported to end."""

_BEFORE, _AFTER = TAG.split("{}")
_WRITING = r"""
    SELECT split_part(query, ' ', 3) AS ref, pid, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
    FROM pg_stat_activity
    WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
        AND starts_with(query, %(before)s || %(prefix)s)
"""
_PREPARED = """
    SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
    WHERE database = current_database() AND starts_with(gid, %(prefix)s)
"""
_END = f"""
    SELECT ref, pid, pg_terminate_backend(pid, {END_SECONDS * 1000}) FROM ({_WRITING}) AS writing
    WHERE ref = ANY (%(refs)s)
"""


def list_in_doubt(connection: psycopg.Connection, job: str, sink: str) -> list[InDoubt]:
    """List the participants of one job's one sink in this database, those still writing too; ages in seconds."""
    known = {"before": _BEFORE, "prefix": f"{job}.{sink}."}
    # In this order: who prepares between the two listings is in the second one.
    rows = [(ref, age) for ref, _, age in connection.execute(_WRITING, known).fetchall()]
    rows += connection.execute(_PREPARED, known).fetchall()
    found = {}
    for ref, age in rows:
        txn = Txn.parse(ref)
        if txn is not None and (txn.job, txn.sink) == (job, sink):
            found[ref] = InDoubt.of(txn, age_seconds=max(age, 0.0))
    return list(found.values())


def roll_back(connection: psycopg.Connection, job: str, sink: str, refs: Sequence[str], doing: str) -> None:
    """End the sessions that write for these participants, then roll back what they had prepared. Idempotent.

    Raises ValueError for a ref that is not this sink's, before anything is done; Retryable when one can't be ended now.
    """
    for ref in refs:
        txn = Txn.parse(ref)
        if txn is None or (txn.job, txn.sink) != (job, sink):
            raise ValueError(f"{ref!r} is no participant of sink {sink} of job {job}")
    known = {"before": _BEFORE, "prefix": f"{job}.{sink}.", "refs": list(refs)}
    reported = connection.execute(_END, known).fetchall()
    writing = {ref: pid for ref, pid, _ in connection.execute(_WRITING, known).fetchall() if ref in refs}
    finish(connection, "ROLLBACK", list_prepared(connection, refs).values(), doing)
    for ref, pid in writing.items():
        raise Retryable(
            f"{doing}: session {pid} still writes for {ref}",
            why=f"it was reported to end, and did not within {END_SECONDS} s" if reported else "it began only now",
            next="start the job again; or end it: " + f"SELECT pg_terminate_backend({pid})",
        )

"""Rows that a Postgres sink's table can't take: a column more, a key twice. No sink shows a row of such an epoch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exactsink.contract import Fatal, PreflightError
from tests.e2e.jobs import in_lake, in_table, write_job, write_source
from tests.e2e.lives import Lives
from tests.e2e.postgres_job import PARTICIPANTS, ROWS_AN_EPOCH, TWO_FILES, Database
from tests.e2e.warm_jvm import WarmJvm

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.postgres_fixtures"]

SINKS = ("db", "later", "lake", "table")
FIRST, LAST = 1, 2
"""The epochs that meet a key that somebody has put into a table."""


def test_taken_key_and_changed_schema_are_refused_by_name_and_no_sink_shows_a_row(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, database: Database
) -> None:
    database.execute("CREATE TABLE db (id bigint CONSTRAINT one_of_each UNIQUE, kind text, amount float8, tags jsonb)")
    write_source(tmp_path, (FIRST + 1) * PARTICIPANTS)
    with _taken(database, "db", FIRST) as key:
        code, reported = lives.run(write_job(tmp_path, database.sinks(), source=TWO_FILES), jvm=jvm)
    assert code == Fatal.exit_code, reported
    assert _named(reported, "sink db: ", "public.db", "one_of_each", key) == []
    assert _seen(tmp_path, database) == dict.fromkeys(SINKS, FIRST)

    write_source(tmp_path, (LAST + 1) * PARTICIPANTS)
    _add_notes(tmp_path)
    source = TWO_FILES.replace("tags MAP", "note STRING, tags MAP")
    sinks = database.sinks().replace('"tags"]', '"tags", "note"]')
    journal = _journal(tmp_path)
    code, reported = lives.run(write_job(tmp_path, sinks, source=source), jvm=jvm)
    assert code == PreflightError.exit_code, reported
    fixes = [f'"{table}" ADD COLUMN IF NOT EXISTS "note" text' for table in ("db", "later")]
    assert _named(reported, "sink db: ", "sink later: ", 'on_schema_change = "add_columns"', *fixes) == []
    assert _journal(tmp_path) == journal, "not even claimed"

    sinks = sinks.replace('"note"]', '"note"]\non_schema_change = "add_columns"')
    job = write_job(tmp_path, sinks, source=source)
    with _taken(database, "later", LAST) as key:
        code, reported = lives.run(job, jvm=jvm)
    assert code == Fatal.exit_code, reported
    assert _named(reported, "sink later: ", "public.later", "later_pkey", key) == []
    assert _seen(tmp_path, database) == dict.fromkeys(SINKS, LAST), "the widened epoch, and no more"

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert database.amiss(tmp_path) == {}
    for table in ("db", "later"):
        notes = database.execute(f"SELECT note = 'n' || id, count(*) FROM {table} GROUP BY 1 ORDER BY 1 NULLS FIRST")
        assert notes == [(None, ROWS_AN_EPOCH), (True, LAST * ROWS_AN_EPOCH)], "the first epoch had none"


@contextmanager
def _taken(database: Database, table: str, epoch: int) -> Iterator[str]:
    """Put a row of that epoch into the table beforehand; give its key as the server reports it."""
    taken = epoch * ROWS_AN_EPOCH + 3
    database.execute(f"INSERT INTO {table} (id) VALUES ({taken})")
    yield f"(id)=({taken})"
    database.execute(f"DELETE FROM {table} WHERE id = {taken}")


def _named(reported: str, *names: str) -> list[str]:
    """Return what a message does not name; nor may the job have been started again in vain."""
    assert "query_restarted" not in reported
    return [name for name in names if name not in reported]


def _add_notes(folder: Path) -> None:
    """Return every row that no epoch has taken yet a column more."""
    for batch in range(FIRST * PARTICIPANTS, (LAST + 1) * PARTICIPANTS):
        path = folder / "source" / f"{batch}.json"
        times = path.stat()
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "note": f"n{row['id']}"}) + "\n" for row in rows))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _journal(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoint.exactsink" / "journal").iterdir())


def _seen(folder: Path, database: Database) -> dict[str, float]:
    """How many epochs' rows each sink shows."""
    files = {"lake": in_lake(folder), "table": in_table(folder)}
    epochs = {sink: rows.total() / ROWS_AN_EPOCH for sink, rows in files.items()}
    return {**epochs, **{table: database.epochs(table) for table in ("db", "later")}}

"""What docs/how-to/change-a-job.md says: which changes of a job's file go on, which wait for a clean stop."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.integration.operated_job import OperatedJob, ids
from tests.servers.postgres import Postgres

_STAGED = 'strategy = "staged"'


@pytest.fixture
def job(tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> OperatedJob:
    return OperatedJob(tmp_path, postgres.new_database("changes"), capsys)


def lines_in(folder: Path) -> list[int]:
    found = [json.loads(line)["id"] for path in folder.glob("*.json") for line in path.read_text().splitlines()]
    return sorted(found)


def rows_in(folder: Path) -> list[int]:
    paths = [str(path) for path in folder.glob("*.parquet")]
    return sorted(ds.dataset(paths, format="parquet").to_table()["id"].to_pylist())


def test_a_sink_gets_another_name_strategy_or_target_between_two_clean_runs(job: OperatedJob) -> None:
    """Each row lands once, in what was the target when its epoch ran."""
    lake, table = f'path = "{job.folder}/lake"', 'table = "rows"\nkeys'
    other, more, direct = lake.replace("lake", "other"), lake.replace("lake", "more"), 'strategy = "direct"\n'
    added, staged = f'[sinks.more]\nbackend = "files"\n{more}\n\n[sinks.table]', f'backend = "postgres"\n{_STAGED}'
    runs: tuple[Mapping[str, str], ...] = (
        {'name = "orders"\n': 'name = "orders"\nallow_early_rows = true\n'},
        {"[sinks.lake]": "[sinks.pond]", "[sinks.db]": "[sinks.orders]", 'backend = "postgres"': staged},
        {lake: other, table: direct + table.replace("rows", "others"), _STAGED: 'strategy = "two_phase"'},
        {direct: "", other: f'{lake}\nformat = "json"', "[sinks.table]": added},
    )
    for batch, changes in enumerate(runs):
        for old, new in changes.items():
            job.edit(old, new)
        assert job.run(batch + 1) == 0
    assert job.rows == {"lake": ids(0, 1), "table": ids(0, 1), "db": ids(0, 1, 2, 3)}
    assert rows_in(job.folder / "other") == sorted(ids(2))
    with closing(sqlite3.connect(job.folder / "table.db")) as table_db:
        assert table_db.execute("SELECT count(*), count(DISTINCT id) FROM others").fetchall() == [(12, 12)]
    assert lines_in(job.folder / "lake") == sorted(ids(3)), "a folder that was the target before"
    assert rows_in(job.folder / "more") == sorted(ids(3)), "a new sink gets rows from the next epoch on"
    (job.folder / "more").rename(job.folder / "moved")  # with its marks
    job.edit(more, more.replace("more", "moved"))
    job.edit(table.replace("rows", "others"), table)  # the database has one mark for all of the sink's tables
    assert (job.run(5), job.rows["table"]) == (5, ids(0, 1))
    [named] = re.findall(r"exactsink rebase \S+ (.*) --yes", job.exactsink("rebase").out)
    assert job.exactsink("rebase", *named.split(), "--yes", "--reason", "back to its former table").code == 0
    assert (job.run(5), job.rows["table"]) == (0, ids(0, 1, 4))
    assert rows_in(job.folder / "moved") == sorted(ids(3, 4))


@pytest.mark.parametrize("edge", ["before", "after"])
def test_after_a_crash_names_strategies_and_targets_wait_for_recover_and_the_rest_does_not(
    job: OperatedJob, edge: str
) -> None:
    job.killed("decide", edge, 1)
    before, text = job.rows, job.file.read_text()
    for old, new in (
        ("[sinks.db]", "[sinks.orders]"),
        ('backend = "postgres"', 'backend = "postgres"\nstrategy = "staged"'),
        ("/lake", "/other"),
        ('table = "rows"\nkeys', 'table = "others"\nkeys'),
        (text[text.index("[sinks.db]") :], ""),
    ):
        job.edit(old, new)
        assert (job.refused(), job.rows) == (2, before), new
        job.file.write_text(text)
    for old, more in (
        ('conninfo = "', "connect_timeout=7 "),
        ('backend = "files"\n', 'compression = "gzip"\n'),
        ('keys = ["id"]\n', 'after = ["lake"]\n'),
        ('name = "orders"\n', 'file_mode = "group"\nstop_within = "9 seconds"\nrestarts = 3\ntrigger = "2 seconds"\n'),
    ):
        job.edit(old, old + more)
    job.file.write_text(f"{job.file.read_text()}\n[observe]\nopentelemetry = true\n")
    assert job.run(3) == 0
    assert job.rows == dict.fromkeys(("lake", "table", "db"), ids(0, 1, 2))


def test_the_folder_of_staged_rows_and_the_journals_place_stay(job: OperatedJob) -> None:
    """Staged rows that are decided are looked for where they were put; an empty journal is another one."""
    job.killed("decide", "after", 1)
    for changed, code in ((f'staging = "{job.folder}/elsewhere"', 1), (f'journal = "sqlite:///{job.folder}/j.db"', 5)):
        job.edit("[job]", f"[job]\n{changed}")
        assert job.refused() == code
        assert job.rows["table"] == ids(0)
        job.edit(f"[job]\n{changed}", "[job]")
    assert job.exactsink("recover").code == 0
    job.edit("[job]", f'[job]\nstaging = "{job.folder}/elsewhere"')
    assert job.run(3) == 0
    assert job.rows["table"] == ids(0, 1, 2)

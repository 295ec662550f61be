"""`exactsink bench`: its figures are of this run, what it makes is removed, also when it is interrupted."""

from __future__ import annotations

import signal
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from exactsink.bench.report.model import Grid
from exactsink.bench.report.stored import from_json
from tests.e2e.jobs import LINES, TWO_FILES, write_job, write_source
from tests.e2e.postgres_job import Database
from tests.e2e.processes import Process
from tests.e2e.warm_jvm import WarmJvm

_SMALL = ("--rows=100", "--epochs=1", "--rounds=1")
_PLACES = "SELECT nspname FROM pg_namespace UNION SELECT relname FROM pg_class UNION SELECT gid FROM pg_prepared_xacts"


def _bench(folder: Path, jvm: WarmJvm, *arguments: str) -> Process:
    command = [sys.executable, "-m", "exactsink.cli.main", "bench", *_SMALL, *arguments]
    return Process(command, folder / "work" / "log", jvm.address)


def _whole(folder: Path, jvm: WarmJvm, *arguments: str) -> dict[str, Grid]:
    """Run it to its good end; return what it measured."""
    began = datetime.now(timezone.utc)
    process = _bench(folder, jvm, f"--out={folder / 'out'}", *arguments)
    try:
        assert process.exit_code() == 0, process.reported
    finally:
        process.end()
        jvm.settle()
    report = from_json((folder / "out" / "bench.json").read_bytes())
    assert report.taken > began
    return {table.caption: table for section in report.sections for table in section.tables}


def _left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "bench-exactsink" in path.name]


def test_the_ways_of_a_jobs_one_sink(tmp_path: Path, jvm: WarmJvm) -> None:
    write_source(tmp_path, 1)
    tables = _whole(tmp_path, jvm, f"--job={write_job(tmp_path, LINES, source=TWO_FILES)}")
    (way, *_, size), *others = tables["Throughput, medians of the rounds"].rows
    assert (way, others) == ("lines json", [])
    assert size > 0  # type: ignore[operator]
    assert "1 epochs of 100 rows" in (tmp_path / "out" / "bench.html").read_text()
    assert _left(tmp_path) == []


@pytest.mark.proof
def test_every_way_that_needs_no_server(tmp_path: Path, jvm: WarmJvm) -> None:
    tables = _whole(tmp_path, jvm)
    ways = ["files parquet", "files json", "idempotent_upsert staged", "idempotent_upsert direct"]
    rates = {row[0]: row[1:] for row in tables["Throughput, medians of the rounds"].rows}
    assert list(rates) == ways
    assert all(rate > 0 and cpu >= 0 and 50 < size < 5_000 for _, rate, cpu, _, size in rates.values())  # type: ignore[operator]
    assert "1 epochs of 100 rows" in (tmp_path / "out" / "bench.html").read_text()
    seen = {row[0]: row[1:] for row in tables["From the start of an epoch"].rows}
    assert all(0 < first <= last for first, _, last, _, _ in seen.values())  # type: ignore[operator]
    assert [row[0] for row in tables["One job with several sinks, medians of the rounds"].rows] == [
        *(f"{number} x files parquet" for number in (1, 2, 4)),
        "files parquet and idempotent_upsert staged",
    ]
    assert {"kafka", "postgres"} <= {row[0] for row in tables["What was not measured"].rows}
    assert _left(tmp_path) == []


def test_an_interrupted_one_leaves_nothing(tmp_path: Path, jvm: WarmJvm) -> None:
    process = _bench(tmp_path, jvm)
    try:
        process.until(lambda: any(path.name.endswith(".sink-0") for path in _left(tmp_path)), "a copy")
        process.send(signal.SIGINT)
        assert process.exit_code() == 130, process.reported
    finally:
        process.end()
        jvm.settle()
    assert _left(tmp_path) == []


@pytest.mark.proof
def test_copies_beside_a_jobs_own_targets(tmp_path: Path, jvm: WarmJvm, database: Database) -> None:
    """All its ways, each with all of its rows; its own targets, checkpoint and journal stay as they were."""
    write_source(tmp_path, 1)
    job = write_job(tmp_path, database.sinks(), source=TWO_FILES)
    before = sorted(database.execute(_PLACES))
    tables = _whole(tmp_path, jvm, f"--job={job}")
    ways = ["db two_phase", "db staged", "later two_phase", "later staged"]
    ways += ["lake parquet", "table staged", "table direct", "lines json"]
    assert [row[0] for row in tables["Throughput, medians of the rounds"].rows] == ways
    assert (_left(tmp_path), sorted(database.execute(_PLACES))) == ([], before)
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "checkpoint.exactsink").exists()

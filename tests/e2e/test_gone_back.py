"""What happens to people: a part is restored, lost, edited, moved or renamed. The job stops and says so, or goes on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from exactsink.cli.main import main
from exactsink.contract import ConfigError, ExactsinkError, Fatal, InDoubtError, LineageError
from exactsink.protocol.coordinator import Coordinator
from exactsink.spark import Job
from exactsink.spark.one_pass import OnePass
from exactsink.spark.session import read_source
from exactsink.spark.supervise import supervise
from tests.e2e.jobs import ROWS_A_BATCH, ids, in_lake, in_table, write_job, write_source

PARTS = ("checkpoint", "checkpoint.exactsink", "lake", "table.db")
Damage = Callable[[Path], None]


def run(spark: SparkSession, path: Path) -> Job:
    job = Job.from_toml(path)
    supervise(job, lambda: read_source(job.config, spark), wait=lambda attempt: None)
    return job


def put_back(folder: Path, copy: str, *parts: str) -> None:
    for part in parts:
        shutil.rmtree(folder / part) if (folder / part).is_dir() else (folder / part).unlink(missing_ok=True)
        kept = folder / copy / part
        shutil.copytree(kept, folder / part, symlinks=True) if kept.is_dir() else shutil.copy2(kept, folder / part)


def kept(folder: Path, copy: str, *parts: str) -> None:
    (folder / copy).mkdir()
    for part in parts or PARTS:
        whole = folder / part
        target = folder / copy / part
        shutil.copytree(whole, target) if whole.is_dir() else shutil.copy2(whole, target)


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of three epochs, with copies: `yesterday` after the first, `today` after the third."""
    folder = tmp_path_factory.mktemp("job")
    write_source(folder, 1)
    path = write_job(folder)
    path.write_text(path.read_text().replace(f"{folder}/", ""))  # all paths are relative to the file
    run(spark, path)
    kept(folder, "yesterday")
    write_source(folder, 3)
    run(spark, path)
    kept(folder, "today")
    return folder


@pytest.fixture
def folder(played: Path) -> Path:
    for name in ("moved", "link"):
        if (played / name).is_symlink():
            (played / name).unlink()
    put_back(played, "today", *PARTS)
    write_source(played, 3)
    path = write_job(played)
    path.write_text(path.read_text().replace(f"{played}/", ""))
    (played / "source" / "3.json").unlink(missing_ok=True)
    return played


def ends(*of_an_epoch: object) -> None:
    raise Fatal("the driver ends here")


def restored(*parts: str) -> Damage:
    return lambda folder: put_back(folder, "yesterday", *parts)


def move_the_checkpoint_alone(folder: Path) -> None:
    path = folder / "job.toml"
    path.write_text(path.read_text().replace('"checkpoint"', '"elsewhere"'))
    shutil.move(folder / "checkpoint", folder / "elsewhere")


DAMAGES: dict[str, tuple[Damage, type[ExactsinkError], str]] = {
    "the checkpoint restored": (restored(PARTS[0]), LineageError, "went back in time|other input"),
    "the table restored": (restored("table.db"), InDoubtError, "the target is an older copy, and lacks rows"),
    "the checkpoint moved alone": (move_the_checkpoint_alone, LineageError, "another journal fed this target|expects"),
}
"""More of them, without Spark: the night's states, `integration/test_bad_states.py`, simulation's `restored`."""


@pytest.mark.parametrize(("damage", "kind", "says"), DAMAGES.values(), ids=DAMAGES)
def test_what_went_back_by_itself_stops_the_job_and_doubles_nothing(
    spark: SparkSession, folder: Path, damage: Damage, kind: type[ExactsinkError], says: str
) -> None:
    damage(folder)
    before = in_lake(folder), in_table(folder)
    write_source(folder, 4)
    with pytest.raises(kind, match=rf"(?s){says}"):
        run(spark, folder / "job.toml")
    assert (in_lake(folder), in_table(folder)) == before
    if (folder / "elsewhere").exists():
        shutil.rmtree(folder / "elsewhere")
        shutil.rmtree(folder / "elsewhere.exactsink", ignore_errors=True)


def test_all_that_belongs_together_may_go_back_together(spark: SparkSession, folder: Path) -> None:
    put_back(folder, "yesterday", *PARTS)
    run(spark, folder / "job.toml")
    assert in_lake(folder) == in_table(folder) == ids(3)


def test_after_a_target_went_back_the_named_command_goes_on_from_there(
    spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_back(folder, "yesterday", "lake")
    path = str(folder / "job.toml")
    with pytest.raises(InDoubtError, match=r"exactsink rebase \S+job\.toml"):
        run(spark, Path(path))
    assert main(["rebase", path]) == 0
    assert "epochs 1 to 2 are in no source and not here: missing" in capsys.readouterr().out
    assert main(["rebase", path, "--sink", "lake=0", "--batch", "3", "--yes", "--reason", "its disk died"]) == 0
    write_source(folder, 4)
    run(spark, Path(path))
    assert in_table(folder) == ids(4)
    assert in_lake(folder) == ids(1) + (ids(4) - ids(3))


@pytest.mark.parametrize("how", ["another working folder", "a link", "a file URL"])
def test_one_job_is_one_job_from_wherever_it_is_started(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = folder / "job.toml"
    if how == "another working folder":
        monkeypatch.chdir(folder.parent)
    elif how == "a link":
        (folder / "link").symlink_to("checkpoint")
        path.write_text(path.read_text().replace('checkpoint = "checkpoint"', 'checkpoint = "link"'))
    else:
        path.write_text(path.read_text().replace('path = "lake"', f'path = "file://{folder}/lake"'))
    write_source(folder, 4)
    run(spark, path)
    assert in_lake(folder) == in_table(folder) == ids(4)


def test_a_sink_changes_after_a_clean_stop_and_not_before(spark: SparkSession, folder: Path) -> None:
    path = folder / "job.toml"
    text = path.read_text()
    entries = (folder / "checkpoint.exactsink" / "journal").glob("*.json")
    max(entry for entry in entries if '"kind": "clean"' in entry.read_text()).unlink()  # as if it had been killed
    path.write_text(text[: text.index("[sinks.table]")])
    with pytest.raises(ConfigError, match=r"(?s)lacks sink table as it was.*exactsink recover"):
        run(spark, path)
    path.write_text(text)
    assert main(["recover", str(path)]) == 0
    path.write_text(text[: text.index("[sinks.table]")])
    write_source(folder, 4)
    run(spark, path)
    assert (in_lake(folder), in_table(folder)) == (ids(4), ids(3))


def test_a_copy_of_a_job_that_runs_on_beside_it_stops_and_doubles_nothing(spark: SparkSession, folder: Path) -> None:
    (folder / "fork").mkdir()
    for part in PARTS[:2]:
        shutil.copytree(folder / part, folder / "fork" / part)
    path = write_job(folder)
    fork = folder / "fork" / "job.toml"
    fork.write_text(path.read_text().replace(f"{folder}/checkpoint", f"{folder}/fork/checkpoint"))
    write_source(folder, 4)
    run(spark, path)
    with pytest.raises(LineageError, match="the journal went back in time"):
        run(spark, fork)
    assert in_lake(folder) == in_table(folder) == ids(4)


def test_a_batch_run_whose_journal_is_elsewhere_is_not_written_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rebase goes on with a run of which nothing shows yet, and with no other."""
    path = write_job(tmp_path, '\n[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\n')
    write = Job.from_toml(path).write
    write(spark.range(7), run="monday")
    with monkeypatch.context() as patch:
        patch.setattr(OnePass, "write", lambda self, frame, plan: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(spark.range(7, 9), run="tuesday")
    path.write_text(path.read_text().replace("/checkpoint", "/elsewhere"))
    for name in ("monday", "tuesday"):
        with pytest.raises(LineageError, match="another journal fed this target"):
            Job.from_toml(path).write(spark.range(9), run=name)
    assert main(["rebase", str(path), "--run", "monday", "--sink", "lake=0", "--yes"]) == 2
    assert "batch run monday can't be continued: its rows show in lake" in capsys.readouterr().err
    assert main(["rebase", str(path), "--run", "tuesday", "--sink", "lake=birth", "--yes"]) == 0
    assert Job.from_toml(path).write(spark.range(7, 9), run="tuesday").rows == {"lake": 2}
    assert in_lake(tmp_path) == Counter(range(9))


def test_what_is_written_and_how_it_is_cut_changes_between_two_runs(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of docs/how-to/change-a-job.md: columns, conditions, folders, settings, and how much of the source is a batch.

    The batch that was begun before keeps the file that it has.
    """
    path = folder / "job.toml"
    write_source(folder, 4)
    with monkeypatch.context() as patch, pytest.raises(Fatal, match="ends here"):
        patch.setattr(Coordinator, "run_epoch", ends)
        run(spark, path)
    for old, new in (
        ('columns = ["id", "kind", "amount"]', 'columns = ["id", "amount"]\nwhere = "id % 2 = 0"'),
        ('partition_by = ["kind"]', "distribution = 3\nmax_participants = 7"),
        ("maxFilesPerTrigger = 1", "maxFilesPerTrigger = 2"),
        ("[sinks.lake]", "[sinks.wide]\nbackend = 'files'\npath = 'wide'\nepoch_column = 'epoch'\n\n[sinks.lake]"),
    ):
        path.write_text(path.read_text().replace(old, new))
    write_source(folder, 6)
    settings = spark.newSession()
    settings.conf.set("spark.sql.files.maxPartitionBytes", "20KB")
    run(settings, path)
    assert in_lake(folder) == ids(6)
    assert in_table(folder) == ids(3) + Counter(n for n in ids(6) - ids(3) if n % 2 == 0)
    wide = ds.dataset(str(folder / "wide"), format="parquet").to_table(columns=["id", "epoch"])
    assert Counter(wide["id"].to_pylist()) == ids(6) - ids(3)
    assert Counter(wide["epoch"].to_pylist()) == {3: ROWS_A_BATCH, 4: 2 * ROWS_A_BATCH}
    assert len(list((folder / "wide").glob("*.parquet"))) == 2 * 3
    shutil.rmtree(folder / "wide")
    for batch in (3, 4, 5):
        (folder / "source" / f"{batch}.json").unlink()

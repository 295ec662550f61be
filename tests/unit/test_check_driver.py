"""`check --no-spark`: what a start would refuse is refused, what hangs is named, and what is not seen is said."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from docs.answers import Checked
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job
from tests.unit.two_sinks import Shop

from exactsink.cli import check_driver
from exactsink.job.config import load_config
from exactsink.job.source_columns import source_columns
from exactsink.operate.driver_check import check_from_driver

Check = Callable[..., Ended]
SOURCE = '[source]\nformat = "csv"\nschema = "{}"\npath = "{}"\n{}\n[sinks.lake]'
LOOP = """[source]
format = "kafka"
options = {{ "kafka.bootstrap.servers" = "127.0.0.1:{0}", subscribe = "orders,totals" }}
[sinks.totals]
backend = "kafka"
bootstrap_servers = "127.0.0.1:{0}"
topic = "totals"
"""


@pytest.fixture
def check(command: Check, monkeypatch: pytest.MonkeyPatch) -> Check:
    """A busy machine is no target that hangs: it may take a minute."""
    monkeypatch.setattr(check_driver, "check_from_driver", partial(check_from_driver, seconds=60))
    return partial(command, "check", "--no-spark", "--json")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A job whose epoch 0 is in both sinks, and done in Spark's checkpoint."""
    made = Shop(tmp_path)
    made.epochs(0)
    return made


def test_a_healthy_job_is_looked_at_without_spark(shop: Shop, check: Check) -> None:
    program = "import sys; from exactsink.cli.main import main; code = main(sys.argv[1:]);"
    program += "sys.exit(code or 99 * any(name in sys.modules for name in ('pyspark', 'py4j')))"
    subprocess.run([sys.executable, "-c", program, "check", "--no-spark", shop.file], check=True)
    checked = Checked.model_validate_json(check(shop.file).out)
    assert (checked.error, checked.guarantee, checked.findings) == (None, "exactly once", [])
    assert "types of the columns of lake, table" in checked.not_looked_at


def test_no_client_is_imported_in_the_time_of_its_store(tmp_path: Path) -> None:
    job = Shop(tmp_path)
    job.edit(
        "[sinks.table]",
        '[sinks.b]\nbackend = "files"\npath = "s3://b/x"\nendpoint_url = "http://[::1]:1"\n[sinks.table]',
    )
    program = (
        "import sys, exactsink.operate.driver_check as d; from exactsink.cli.main import main; real = d.ask_all;"
        "d.ask_all = lambda *asked: [real(*asked) for _ in [print('s3fs' in sys.modules, file=sys.stderr)]][0];"
        "main(sys.argv[1:])"
    )
    asked = [sys.executable, "-c", program, "check", "--no-spark", job.file]
    assert subprocess.run(asked, capture_output=True, text=True).stderr.splitlines()[0] == "True"


def test_what_hangs_is_named_and_hides_no_other(
    tmp_path: Path, command: Check, mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the journal's database is what hangs; the command's own time is the bound, and it ends by itself."""
    monkeypatch.setattr("exactsink.operate.asking._busy_seconds", float)
    job = Shop(tmp_path, f'journal = "postgresql+psycopg://u@127.0.0.1:{mute}/shop?connect_timeout=600"')
    (tmp_path / "lake").write_text("in the way")
    hangs = (
        f'[sinks.db]\nbackend = "postgres"\nconninfo = "host=127.0.0.1 port={mute} connect_timeout=600"\ntable = "t"\n'
    )
    job.edit("[sinks.table]", f"{hangs}[sinks.table]")
    job.edit("[sinks.table]", LOOP.format(mute) + "[sinks.table]")
    ended = command("check", "--no-spark", "--json", job.file)
    checked = Checked.model_validate_json(ended.out)
    assert checked.sinks["db"].findings[0].message.startswith("sink db has not answered within 4 s")
    assert "lake" in checked.sinks["lake"].findings[0].message
    loop, silent = checked.sinks["totals"].findings
    assert ("is the job's own source" in loop.message, "not answered within 4 s" in silent.message) == (True, True)
    assert ["the journal has not answered" in found.message for found in checked.findings] == [True]
    assert (ended.code, checked.error is not None and checked.error.kind) == (5, "PreflightError")

    (tmp_path / "lake").unlink()
    job.edit("orders,totals", "orders")
    ended = command("check", "--no-spark", job.file)
    assert (ended.code, "exactsink: the journal has not answered within 4 s" in ended.err) == (75, True)


def test_a_start_that_would_be_refused_is_refused(shop: Shop, check: Check) -> None:
    (shop.folder / "chk" / "metadata").write_text('{"id": "query-2"}')
    ended = check(shop.file)
    assert (ended.code, "the checkpoint is query query-2's" in ended.err) == (5, True)
    shutil.rmtree(shop.folder / "chk")
    ended = check(shop.file)
    assert (ended.code, "its checkpoint" in ended.err) == (5, True)
    shutil.rmtree(shop.folder / "chk.exactsink")
    ended = check(shop.file)
    assert (ended.code, "another journal fed this target" in ended.err) == (5, True)


def test_foreign_work_and_a_sink_that_is_lacking_are_what_a_start_refuses(job: Job, check: Check) -> None:
    claim, votes = job.decided()
    job.checkpoint("query-1")
    assert check(job.file).code == 0
    Path(job.file).write_text(Path(job.file).read_text().replace("sinks.lake", "sinks.sea"))
    ended = check(job.file)
    assert (ended.code, "the config lacks sink lake as it was" in ended.err) == (2, True)
    Path(job.file).write_text(Path(job.file).read_text().replace("sinks.sea", "sinks.lake"))
    job.session(claim).commit(0, votes[:2])
    job.checkpoint("query-1", 0)
    job.vote(FOREIGN, 4, 9)
    ended = check(job.file)
    assert (ended.code, "--sweep-token ffffffffffff" in ended.err) == (5, True)


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        ('transform = "gone_away:f"\n', 2, "transform gone_away:f can't be imported: No module named 'gone_away'"),
        ('route = "ours:f"\n', 0, ""),
        ('[transform]\nsql_file = "gone.sql"\n', 2, "gone.sql can't be read"),
        ('[source]\nformat = "csv"\npath = "gone"\n', 5, "gone does not exist"),
        ('[spark]\nmaster = "spark://127.0.0.1:1"\n', 75, "Spark's master: no connection: 127.0.0.1:1: "),
        ("[observe]\nopentelemetry = true\n", 2, "[observe] opentelemetry: not installed"),
    ],
)
def test_what_the_job_names_is_there(
    tmp_path: Path, check: Check, job: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is run."""
    (tmp_path / "ours.py").write_text("raise SystemExit('it was run')")
    monkeypatch.setattr("exactsink.operate.driver_check.find_spec", lambda name: None)
    ended = check(Shop(tmp_path, job).file)
    assert (ended.code, said in ended.err) == (code, True), ended.err


@pytest.mark.parametrize(
    ("path", "options", "severity"),
    [
        ("lake", "", "error"),
        ("file:{}/lake/", "", "error"),
        (".", "recursiveFileLookup = true", "error"),
        (".", "", "warning"),
        ("lake", "pathGlobFilter = '*.csv'", "warning"),
        ("la*", "", "warning"),
        ("{{lake,sea}}/*.json", "", "warning"),
        ("in", "recursiveFileLookup = true", None),
        ("lake2", "", None),
        ("lake/in", "", None),
    ],
)
def test_a_source_that_takes_a_sinks_files_is_named(
    tmp_path: Path, check: Check, path: str, options: str, severity: str | None
) -> None:
    for folder in ("lake/in", "lake2", "in"):
        (tmp_path / folder).mkdir(parents=True)
    shop = Shop(tmp_path)
    source = f'[source]\nformat = "csv"\npath = "{path.format(tmp_path)}"\noptions = {{ {options} }}\n'
    shop.edit("[sinks.lake]", f"{source}[sinks.lake]")
    ended = check(shop.file)
    found = [(one["severity"], "source" in one["message"]) for one in ended.body["sinks"]["lake"]["findings"]]
    assert (ended.code, found) == (5 if severity == "error" else 0, [(severity, True)] if severity else [])


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path, check: Check) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "chk.exactsink").write_text("in the way")
    ended = check(shop.file)
    found = [one["message"] for one in ended.body["findings"]] + [ended.body["error"]["what"]]
    assert any(str(tmp_path / "chk.exactsink") in message for message in found)
    assert ended.code in (5, 75)


def test_columns_are_compared_where_the_file_says_them_all(tmp_path: Path, check: Check) -> None:
    (tmp_path / "in").mkdir()
    shop = Shop(tmp_path)
    shop.edit("[sinks.lake]", SOURCE.format("nr BIGINT", "in", ""))
    ended = check(shop.file)
    fix = ended.body["sinks"]["table"]["findings"][0]["fix"]
    assert (ended.code, fix) == (5, "select id into this sink, or correct `keys`")
    assert len(ended.body["not_looked_at"]) == 1
    shop.edit('path = "in"\n', 'path = "in"\n[transform]\nsql = "SELECT nr AS id FROM source"\n')
    assert check(shop.file).code == 0
    shop.edit('[transform]\nsql = "SELECT nr AS id FROM source"\n', "")
    (tmp_path / "in" / "id=1").mkdir()  # a folder that brings a column
    assert check(shop.file).code == 0


@pytest.mark.parametrize(
    ("declared", "columns"),
    [
        ("id BIGINT NOT NULL, `a ``b` STRING COMMENT 'x, y'", {"id": pa.int64(), "a `b": pa.string()}),
        ("d decimal(10,2), n NUMERIC, t: timestamp", {"d": pa.decimal128(10, 2), "n": pa.decimal128(10), "t": None}),
        ("a ARRAY<INT>", None),
        ("a INT b INT", None),
        ("a VARCHAR(9)", None),
        ("a decimal(39)", None),
    ],
)
def test_a_schema_is_read_as_spark_reads_it_or_not_at_all(
    tmp_path: Path, declared: str, columns: dict[str, pa.DataType | None] | None
) -> None:
    (tmp_path / "in").mkdir()
    shop = Shop(tmp_path)
    shop.edit("[sinks.lake]", SOURCE.format(declared, "in", ""))
    found = source_columns(load_config(shop.file)[0])
    assert (found is None) == (columns is None)
    if found is not None and columns is not None:
        moment = pa.timestamp("us", tz="UTC")
        assert found == pa.schema([(name, kind or moment) for name, kind in columns.items()])

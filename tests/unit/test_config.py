"""A job's file: what it may say, and mistakes that are named with file, line and the nearest key."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr
from tests.unit.fakes import IdleBackend

from exactsink.cli.main import main
from exactsink.contract import BackendOptions, BackendSpec, ConfigError, Txn, hookimpl
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.sinks import Sink

HEAD = """\
[job]
name = "orders"
checkpoint = "/data/chk"
"""
SINK = """\
[sinks.lake]
backend = "fake"
path = "/lake"
"""
JOB = HEAD + SINK


class Retention(BaseModel):
    model_config = ConfigDict(extra="forbid")

    days: int = 7


class FakeOptions(BackendOptions):
    path: str
    mode: Literal["fast", "safe"] = "safe"
    password: SecretStr | None = None
    retention: Retention = Retention()


class FakeBackend(IdleBackend):
    Options = FakeOptions


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Make this file a plugin."""
    return [BackendSpec("fake", f"{__name__}:FakeBackend", "pip install fake")]


def bind(folder: Path, text: str, **environ: str) -> tuple[JobConfig, dict[str, Sink]]:
    (folder / "job.toml").write_text(text)
    config, document = load_config(folder / "job.toml", environ)
    return config, bind_sinks(config, document, Registry([EntryPoint("fake", __name__, "exactsink")]))


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        bind(folder, text)
    assert error.value.next
    return str(error.value)


WHOLE = """
[job]
name = "orders"
checkpoint = "/data/chk"
staging = "file:///fast/staging"
transform = "shop.orders:clean"
trigger = "10 seconds"
output_mode = "update"
restarts = 3
[spark]
master = "local[4]"
packages = ["org.x:y:1"]
conf = { "spark.sql.shuffle.partitions" = 8, "spark.x" = true }
[source]
format = "kafka"
schema = "id long"
path = "/in"
options = { maxOffsetsPerTrigger = 1000 }
[sinks.lake]
backend = "fake"
columns = ["id", "v"]
where = "id > 0"
distribution = "hash(id, v)"
max_participants = 16
path = "/lake"
mode = "fast"
retention = { days = 3 }
[sinks.table-2]
backend = "fake"
after = "lake"
path = "/table"
"""


def test_a_whole_job(tmp_path: Path) -> None:
    config, sinks = bind(tmp_path, WHOLE)
    job, spark, source = config.job, config.spark, config.source
    assert (job.transform, job.trigger, job.restarts) == ("shop.orders:clean", "10 seconds", 3)
    assert (job.output_mode, spark.master, spark.packages) == ("update", "local[4]", ("org.x:y:1",))
    assert spark.conf == {"spark.sql.shuffle.partitions": 8, "spark.x": True}
    assert source is not None
    assert (source.format, source.schema_, source.path) == ("kafka", "id long", "/in")
    assert (source.options, list(sinks)) == ({"maxOffsetsPerTrigger": 1000}, ["lake", "table-2"])
    lake = sinks["lake"]
    assert (lake.name, lake.kind, lake.columns, lake.where) == ("lake", "fake", ("id", "v"), "id > 0")
    assert (lake.distribution, lake.max_participants, lake.staging) == ("hash(id, v)", 16, "/fast/staging/lake")
    assert lake.backend.options == FakeOptions(path="/lake", mode="fast", retention=Retention(days=3))
    assert (lake.after, sinks["table-2"].after) == ((), ("lake",))


def test_the_least_that_a_job_says(tmp_path: Path) -> None:
    config, sinks = bind(tmp_path, JOB)
    assert (config.job.trigger, config.job.output_mode, config.source) == ("available_now", "append", None)
    sink = sinks["lake"]
    assert (sink.columns, sink.where, sink.distribution, sink.max_participants) == ((), None, "none", None)
    assert sink.staging == "/data/chk.exactsink/staging/lake"


CHECKPOINTS = [
    *("jobs/chk.v1", "jobs/chk.v1/", "~/chk.v1", "${HOME}/chk.v1", "link/chk.v1", "HOME/jobs/chk.v1"),
    *("file://HOME/link/chk.v1", "file:HOME/jobs/chk.v1", "file://localhostHOME/jobs/chk.v1"),
]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("cwd", [".", "elsewhere"])
def test_one_checkpoint_is_one_place_whoever_starts_the_job_from_wherever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str, cwd: str
) -> None:
    for folder in ("jobs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to("jobs")
    monkeypatch.chdir(tmp_path / cwd)
    monkeypatch.setenv("HOME", str(tmp_path / "jobs"))
    text = JOB.replace("/data/chk", re.sub(r"(?<!{)HOME", str(tmp_path), checkpoint))
    config, _ = bind(tmp_path, text, HOME=str(tmp_path / "jobs"))
    assert config.checkpoint == tmp_path / "jobs/chk.v1"
    assert config.history == tmp_path / "jobs/chk.v1.exactsink"
    assert config.staging == tmp_path / "jobs/chk.v1.exactsink/staging"


@pytest.mark.parametrize("checkpoint", ["", "/", ".", "..", "/data/chk/..", "file:///"])
def test_a_checkpoint_with_no_place_beside_it_is_refused(tmp_path: Path, checkpoint: str) -> None:
    assert "job.toml line 3: job.checkpoint: " in refused(tmp_path, JOB.replace("/data/chk", checkpoint))


def test_a_place_in_an_object_store_is_one_place_however_it_is_spelt(tmp_path: Path) -> None:
    for scheme in ("s3", "s3a", "s3n"):
        config, _ = bind(tmp_path, JOB.replace("/data/chk", f"{scheme}://bucket/chk/"))
        assert config.job.checkpoint == f"{scheme}://bucket/chk", "Spark gets it as it is written"
        places = (config.checkpoint, config.history, config.staging)
        assert tuple(map(str, places)) == tuple(
            f"s3://bucket/chk{end}" for end in ("", ".exactsink", ".exactsink/staging")
        )
    config, _ = bind(tmp_path, HEAD + 'staging = "s3a://other/rows"\n' + SINK)
    assert (config.history, str(config.staging)) == (Path("/data/chk.exactsink"), "s3://other/rows")


NO_PLACE = {
    "s3://bucket": "scheme://bucket/path",
    "s3:///chk": "scheme://bucket/path",
    "s3a:/chk": "scheme://bucket/path",
    "s3://bucket/a/../b": "plain names",
    "s3://bucket/a*": "plain names",
    "s3a://KEY:hidden@bucket/chk": "no secrets in URLs",
    "file://host/chk": "a local folder is a path",
    "file:chk": "a local folder is a path",
}
NO_JOURNAL = ["hdfs://host/chk", "sftp://host/chk", "memory://here/chk", "dbfs://x/chk", "zzz://x/chk"]


@pytest.mark.parametrize("place", NO_PLACE)
def test_a_place_that_is_none_is_refused(tmp_path: Path, place: str) -> None:
    for name, text in (
        ("checkpoint", JOB.replace("/data/chk", place)),
        ("staging", HEAD + f'staging = "{place}"\n' + SINK),
    ):
        said = refused(tmp_path, text)
        assert f"job.{name}: " in said
        assert NO_PLACE[place] in said
        assert "hidden" not in said


ODD_PATHS = {
    "C:/data/x": "in WSL that is /mnt/c/data/x",
    r"C:\data\x": "in WSL that is /mnt/c/data/x",
    "file:///D:/x": "in WSL that is /mnt/d/x",
    r"\\server\share": "mount it",
    r"data\x": "write / between folders, data/x",
    "data\new": "a backslash begins one; write / between folders",
    "$HOME/x": "written with braces, ${HOME}",
    "~nobody-of-this-name/x": "no such user",
    "file://host/x": "names another machine",
}
PATH_OPTIONS = {
    "checkpoint": HEAD.replace('"/data/chk"', "{}") + SINK,
    "staging": HEAD + "staging = {}\n" + SINK,
    "modules": HEAD + "modules = [{}]\n" + SINK,
    "journal": HEAD + "journal = {sqlite}\n" + SINK,
    "source.path": JOB + '[source]\nformat = "text"\npath = {}\n',
    "observe.key": JOB + '[observe]\nprometheus = ":1"\ncertificate = "c.pem"\nkey = {}\n',
    "lake.path": HEAD + '[sinks.lake]\nbackend = "files"\npath = {}\n',
    "db.url": HEAD + '[sinks.db]\nbackend = "idempotent_upsert"\nurl = {sqlite}\ntable = "t"\nkeys = ["id"]\n',
    "kafka.ssl_ca_location": HEAD
    + '[sinks.kafka]\nbackend = "kafka"\nbootstrap_servers = "h:1"\ntopic = "t"\nsecurity_protocol = "SSL"\n'
    "ssl_ca_location = {}\n",
}


@pytest.mark.parametrize("option", PATH_OPTIONS)
@pytest.mark.parametrize("path", ODD_PATHS, ids=ascii)
def test_a_path_that_means_another_place_elsewhere_is_refused_with_what_to_write(
    tmp_path: Path, option: str, path: str
) -> None:
    text = PATH_OPTIONS[option]
    if "{sqlite}" in text and path.startswith("file:"):
        pytest.skip("SQLite's URL has no room for another one")
    written = (json.dumps(path), json.dumps(f"sqlite:///{path}"))
    (tmp_path / "job.toml").write_text(text.replace("{}", written[0]).replace("{sqlite}", written[1]))
    with pytest.raises(ConfigError) as raised:
        bind_sinks(*load_config(tmp_path / "job.toml"), Registry(installed_plugins()))
    assert ODD_PATHS[path] in raised.value.what
    assert "job.toml line " in raised.value.what


@pytest.mark.parametrize(("written", "given"), [("in/*", "HERE/in/*"), ("file:/in", "file:///in"), ("s3a://b/x", "")])
def test_a_source_reads_from_the_files_folder_and_a_file_url_stays_one(
    tmp_path: Path, written: str, given: str
) -> None:
    """Spark would look for a bare path in Hadoop's default file system."""
    config, _ = bind(tmp_path, JOB + f'[source]\nformat = "text"\npath = "{written}"\n')
    assert config.source
    assert config.source.path == (given or written).replace("HERE", str(tmp_path))


@pytest.mark.parametrize("place", NO_JOURNAL)
def test_a_store_whose_creates_are_not_known_to_be_atomic_holds_no_journal(tmp_path: Path, place: str) -> None:
    said = refused(tmp_path, JOB.replace("/data/chk", place))
    assert f"can't be kept on {place.partition(':')[0]}" in said
    assert '[job] journal = "postgresql+psycopg://..."' in said
    if place.startswith(("dbfs", "zzz")):
        text = JOB.replace('"/data/chk"', f'"{place}"\njournal = "sqlite:////j.db"')
        assert "no file system for" in refused(tmp_path, text)


AFTER = {
    'after = "lakke"': "line 7: the job has no sink lakke; did you mean lake?",
    'after = ["lake"]': "line 7: sink lake waits for itself",
    'after = "b"\n[sinks.b]\nbackend = "fake"\npath = "/"\nafter = ["c"]\n[sinks.c]\nbackend = "fake"\nafter = "lake"':
        "line 7: sink lake waits for itself",
    "after = 3": "line 7: sinks.lake.after: ",
}  # fmt: skip


@pytest.mark.parametrize("line", AFTER)
def test_an_order_of_sinks_that_can_not_be_is_refused(tmp_path: Path, line: str) -> None:
    assert f"job.toml {AFTER[line]}" in refused(tmp_path, f"{JOB}{line}\n")


BAD_NAMES = ["", "Orders", "or_ders", "or.ders", "or ders", "or/ders", "\u00f6rders", "j" * 41, "orders\\n"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_can_be_no_part_of_an_id_is_refused(tmp_path: Path, name: str) -> None:
    assert "job.toml line 2: job.name: " in refused(tmp_path, JOB.replace("orders", name))
    text = HEAD + "\n" + SINK.replace("sinks.lake", f'sinks."{name}"')
    assert "job.toml line 5: sinks." in refused(tmp_path, text)


BAD_VALUES = {
    "trigger": (["once", "10", "10 parsecs", "-1 seconds", "available now", ""], HEAD + 'trigger = "{}"\n' + SINK),
    "distribution": (["hash", "hash( )", "hash(a", "range(a)", "5", "None", ""], JOB + 'distribution = "{}"\n'),
    "distribution number": (["0", "-1", "1.5", "[1]"], JOB + "distribution = {}\n"),
    "max_participants": (["0", "-1", '"many"'], JOB + "max_participants = {}\n"),
    "restarts": (["-1", '"x"'], HEAD + "restarts = {}\n" + SINK),
    "output_mode": (["overwrite", ""], HEAD + 'output_mode = "{}"\n' + SINK),
    "transform": (["shop", "shop.orders", "shop:", "shop orders:f"], HEAD + 'transform = "{}"\n' + SINK),
    "backend's option": (["slow", ""], JOB + 'mode = "{}"\n'),
}


@pytest.mark.parametrize(("values", "text"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_makes_no_sense_is_named_with_its_line(tmp_path: Path, values: list[str], text: str) -> None:
    line = next(number for number, line in enumerate(text.splitlines(), start=1) if "{}" in line)
    for value in values:
        assert f"job.toml line {line}: " in refused(tmp_path, text.format(value)), value


TRIGGERS = ("1 second", "500 milliseconds", "10 minutes", "1 hour")
DISTRIBUTIONS = ('"none"', "1", "200", '"hash(a)"', '"hash(a, b c)"')


def test_values_that_make_sense_are_taken(tmp_path: Path) -> None:
    for trigger, distribution in zip_longest(TRIGGERS, DISTRIBUTIONS, fillvalue="available_now"):
        bind(tmp_path, f'{HEAD}trigger = "{trigger}"\n{SINK}distribution = {distribution}\n')


def test_several_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = JOB.replace("orders", "Orders") + "[sinks.b]\ncolumns = 3\n[spark]\nmastr = 1\n"
    reported = refused(tmp_path, text)
    for line in ("line 2: job.name:", "line 7: sinks.b.backend", "line 8: sinks.b.columns:", "line 10: unknown key"):
        assert f"job.toml {line}" in reported
    days = "line 8: unknown key sinks.lake.retention.daiys; did you mean days?"
    assert days in refused(tmp_path, JOB + "[sinks.lake.retention]\ndaiys = 3\n")


@pytest.mark.parametrize("name", ["-", "---", "-a"])
def test_a_name_that_begins_with_a_dash_is_refused(tmp_path: Path, name: str) -> None:
    """In tables a dash alone says that there is none; an id that has it is still read."""
    for job, sink in ((name, "lake"), ("orders", name)):
        path = tmp_path / "job.toml"
        sinks = f'[sinks."{sink}"]\nbackend = "files"\npath = "lake"\n'
        path.write_text(f'[job]\nname = "{job}"\ncheckpoint = "chk"\n{sinks}')
        with pytest.raises(ConfigError, match="no dash first"):
            load_config(path)
    assert main(["init", str(tmp_path / "new"), "--name", name]) == 2
    assert Txn.parse(f"{name}.lake.g1-ab.e1.p0.a0") is not None

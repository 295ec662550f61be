"""A job's file: what it may say, and mistakes that are named with file, line and the nearest key."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr
from tests.unit.fakes import IdleBackend

from exactsink.contract import BackendOptions, BackendSpec, ConfigError, hookimpl
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.registry import Registry
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


def load(folder: Path, text: str) -> JobConfig:
    (folder / "job.toml").write_text(text)
    return load_config(folder / "job.toml", {})[0]


def bind(folder: Path, text: str) -> dict[str, Sink]:
    (folder / "job.toml").write_text(text)
    config, document = load_config(folder / "job.toml", {})
    return bind_sinks(config, document, Registry([EntryPoint("fake", __name__, "exactsink")]))


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        bind(folder, text)
    assert error.value.next
    return str(error.value)


def test_a_whole_job(tmp_path: Path) -> None:
    text = """
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
        path = "/table"
    """
    config = load(tmp_path, text)
    assert (config.job.transform, config.job.trigger, config.job.restarts) == ("shop.orders:clean", "10 seconds", 3)
    assert config.job.output_mode == "update"
    assert (config.spark.master, config.spark.packages) == ("local[4]", ("org.x:y:1",))
    assert config.spark.conf == {"spark.sql.shuffle.partitions": 8, "spark.x": True}
    assert config.source is not None
    assert (config.source.format, config.source.schema_, config.source.path) == ("kafka", "id long", "/in")
    assert config.source.options == {"maxOffsetsPerTrigger": 1000}
    sinks = bind(tmp_path, text)
    assert list(sinks) == ["lake", "table-2"]
    lake = sinks["lake"]
    assert (lake.name, lake.kind, lake.columns, lake.where) == ("lake", "fake", ("id", "v"), "id > 0")
    assert (lake.distribution, lake.max_participants) == ("hash(id, v)", 16)
    assert lake.staging == "/fast/staging/lake"
    assert lake.backend.options == FakeOptions(path="/lake", mode="fast", retention=Retention(days=3))


def test_the_least_that_a_job_says(tmp_path: Path) -> None:
    config = load(tmp_path, JOB)
    assert (config.job.trigger, config.job.output_mode, config.source) == ("available_now", "append", None)
    sink = bind(tmp_path, JOB)["lake"]
    assert (sink.columns, sink.where, sink.distribution, sink.max_participants) == ((), None, "none", None)
    assert sink.staging == "/data/chk.exactsink/staging/lake"


# places


@pytest.mark.parametrize("checkpoint", ["/data/chk", "/data/chk/", "file:///data/chk"])
def test_the_journal_stands_beside_the_checkpoint_never_inside(tmp_path: Path, checkpoint: str) -> None:
    config = load(tmp_path, JOB.replace("/data/chk", checkpoint))
    assert config.checkpoint == Path("/data/chk")
    assert config.history == Path("/data/chk.exactsink")
    assert config.staging == Path("/data/chk.exactsink/staging")


def test_relative_places_are_taken_from_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    config = load(tmp_path / "jobs", JOB.replace("/data/chk", "state/chk.v1"))
    assert config.checkpoint == tmp_path / "state" / "chk.v1"
    assert config.history == tmp_path / "state" / "chk.v1.exactsink"


@pytest.mark.parametrize("checkpoint", ["", "/", ".", "..", "/data/chk/..", "file:///"])
def test_a_checkpoint_with_no_place_beside_it_is_refused(tmp_path: Path, checkpoint: str) -> None:
    assert "job.toml line 3: job.checkpoint: " in refused(tmp_path, JOB.replace("/data/chk", checkpoint))


@pytest.mark.parametrize("place", ["s3://bucket/chk", "hdfs://host/chk", "file://host/chk", "s3a:/chk", "file:/chk"])
@pytest.mark.parametrize("key", ["checkpoint", "staging"])
def test_places_that_are_not_local_are_refused(tmp_path: Path, key: str, place: str) -> None:
    head = HEAD.replace("/data/chk", place) if key == "checkpoint" else HEAD + f'staging = "{place}"\n'
    assert f"job.{key}: only local folders" in refused(tmp_path, head + SINK)


# unknown keys

UNKNOWN = {
    "job": (HEAD + 'trigerr = "x"\n' + SINK, "line 4: unknown key job.trigerr; did you mean trigger?"),
    "spark": (JOB + "[spark]\nmastr = 'local'\n", "line 8: unknown key spark.mastr; did you mean master?"),
    "source": (JOB + "[source]\nformat='x'\nschem = 'a'\n", "line 9: unknown key source.schem; did you mean schema?"),
    "core option": (JOB + "colums = ['a']\n", "line 7: unknown key sinks.lake.colums; did you mean columns?"),
    "backend option": (JOB + "passwort = 'x'\n", "line 7: unknown key sinks.lake.passwort; did you mean password?"),
    "nested option": (
        JOB + "[sinks.lake.retention]\ndaiys = 3\n",
        "line 8: unknown key sinks.lake.retention.daiys; did you mean days?",
    ),
    "table": (JOB + "[sparkk]\nmaster = 'local'\n", "line 7: unknown key sparkk; did you mean spark?"),
    "table within": (JOB + "[sinkss.b]\nbackend = 'fake'\n", "line 7: unknown key sinkss; did you mean sinks?"),
    "nothing near": (JOB + "zzz = 1\n", "line 7: unknown key sinks.lake.zzz\n"),
    "options beside sinks": (JOB + "[options]\nx = 1\n", "line 7: unknown key options"),
    "python's own name": (JOB + "[source]\nformat='x'\nschema_ = 'a'\n", "line 9: unknown key source.schema_"),
}


@pytest.mark.parametrize(("text", "reported"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_named_with_its_line_and_the_nearest_key(tmp_path: Path, text: str, reported: str) -> None:
    assert f"job.toml {reported}" in refused(tmp_path, text)


MISSING = {
    "[job]": (SINK, "line 1: job is missing"),
    "name": (JOB.replace('name = "orders"\n', ""), "line 1: job.name is missing"),
    "checkpoint": (JOB.replace('checkpoint = "/data/chk"\n', ""), "line 1: job.checkpoint is missing"),
    "[sinks]": (HEAD, "line 1: sinks is missing"),
    "a sink": (HEAD + "[sinks]\n", "line 4: sinks: "),
    "backend": (JOB.replace('backend = "fake"\n', ""), "line 4: sinks.lake.backend is missing"),
    "format": (JOB + "[source]\npath = '/in'\n", "line 7: source.format is missing"),
    "backend option": (JOB.replace('path = "/lake"\n', ""), "line 4: sinks.lake.path is missing"),
}


@pytest.mark.parametrize(("text", "reported"), MISSING.values(), ids=MISSING)
def test_a_missing_key_is_named_with_the_line_of_its_table(tmp_path: Path, text: str, reported: str) -> None:
    assert f"job.toml {reported}" in refused(tmp_path, text)


# values

BAD_NAMES = ["", "Orders", "or_ders", "or.ders", "or ders", "or/ders", "\u00f6rders", "j" * 41, "orders\\n"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_name_that_can_be_no_part_of_an_id_is_refused(tmp_path: Path, name: str) -> None:
    assert "job.toml line 2: job.name: " in refused(tmp_path, JOB.replace("orders", name))
    text = HEAD + "\n" + SINK.replace("sinks.lake", f'sinks."{name}"')
    assert "job.toml line 5: sinks." in refused(tmp_path, text)


BAD_VALUES = {
    "trigger": (["once", "10", "10 parsecs", "-1 seconds", "available now", ""], HEAD + 'trigger = "{}"\n' + SINK, 4),
    "distribution": (
        ["hash", "hash()", "hash( )", "hash(a", "range(a)", "5", "None", ""],
        JOB + 'distribution = "{}"\n',
        7,
    ),
    "distribution number": (["0", "-1", "1.5", "[1]"], JOB + "distribution = {}\n", 7),
    "max_participants": (["0", "-1", '"many"'], JOB + "max_participants = {}\n", 7),
    "restarts": (["-1", '"x"'], HEAD + "restarts = {}\n" + SINK, 4),
    "output_mode": (["overwrite", ""], HEAD + 'output_mode = "{}"\n' + SINK, 4),
    "transform": (["shop", "shop.orders", "shop:", "shop orders:f"], HEAD + 'transform = "{}"\n' + SINK, 4),
    "backend's option": (["slow", ""], JOB + 'mode = "{}"\n', 7),
}


@pytest.mark.parametrize(
    ("text", "line"),
    [(text.format(value), line) for values, text, line in BAD_VALUES.values() for value in values],
    ids=[f"{name} {value}" for name, (values, _, _) in BAD_VALUES.items() for value in values],
)
def test_a_value_that_makes_no_sense_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert f"job.toml line {line}: " in refused(tmp_path, text)


GOOD_TRIGGERS = ["available_now", "1 second", "500 milliseconds", "10 minutes", "1 hour"]


@pytest.mark.parametrize("trigger", GOOD_TRIGGERS)
def test_triggers(tmp_path: Path, trigger: str) -> None:
    assert load(tmp_path, HEAD + f'trigger = "{trigger}"\n' + SINK).job.trigger == trigger


@pytest.mark.parametrize("distribution", ['"none"', "1", "200", '"hash(a)"', '"hash(a, b c)"'])
def test_distributions(tmp_path: Path, distribution: str) -> None:
    sinks = bind(tmp_path, JOB + f"distribution = {distribution}\n")
    assert str(sinks["lake"].distribution) == distribution.strip('"')


def test_several_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = JOB.replace("orders", "Orders") + "[sinks.b]\ncolumns = 3\n[spark]\nmastr = 1\n"
    reported = refused(tmp_path, text)
    for line in ("line 2: job.name:", "line 7: sinks.b.backend", "line 8: sinks.b.columns:", "line 10: unknown key"):
        assert f"job.toml {line}" in reported


def other_sink(distribution: str) -> str:
    return f'[sinks.b]\nbackend = "fake"\npath = "/b"\ndistribution = {distribution}\n'


@pytest.mark.parametrize(("first", "second"), [('"none"', "4"), ("4", '"none"'), ("4", "4")])
def test_one_distribution_is_shared(tmp_path: Path, first: str, second: str) -> None:
    assert len(bind(tmp_path, JOB + f"distribution = {first}\n" + other_sink(second))) == 2

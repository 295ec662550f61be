"""The schema of a job's file: it takes every job of the pages and of the tests, and nothing that the loader refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.docs.pages import ROOT, pages, steps
from tests.e2e import jobs, kafka_job, postgres_job
from tests.integration.operated_job import _SINKS as OPERATED
from tests.unit.conftest import Ended
from tests.unit.fakes import IdleBackend
from tests.unit.test_config import WHOLE
from tests.unit.two_sinks import Shop

from exactsink.contract import BackendOptions, BackendSpec, ConfigError, hookimpl
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.config.schema import job_schema
from exactsink.job.config.toml import tomllib
from exactsink.job.registry import Registry, installed_plugins
from exactsink.starters.job import SOURCES, TARGETS, job_text

HEAD = '[job]\nname = "orders"\ncheckpoint = "ck"\n'
LAKE = '[sinks.lake]\nbackend = "files"\npath = "lake"\n'
TABLE = '[sinks.table]\nbackend = "idempotent_upsert"\nurl = "sqlite:///t.db"\ntable = "t"\nkeys = ["id"]\n'


class OddOptions(BackendOptions):
    """Of a type that only Python knows."""

    made: Callable[[], int] = int


class OddBackend(IdleBackend):
    Options = OddOptions


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Make this file a plugin."""
    return [BackendSpec("odd", f"{__name__}:OddBackend", "pip install odd")]


@pytest.fixture(scope="module")
def registry() -> Registry:
    made = [EntryPoint(name, f"tests.unit.test_{name}", "exactsink") for name in ("config", "schema")]
    return Registry([*installed_plugins(), *made])


@pytest.fixture(scope="module")
def validator(registry: Registry) -> Draft202012Validator:
    schema = json.loads(json.dumps(job_schema(registry)))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _of_pages() -> Iterator[tuple[str, str]]:
    for page in pages():
        for step in steps(page):
            if step.language == "toml" and "[job]" in step.text and "[sinks." in step.text:
                yield step.place, step.text
    yield "examples/flights", (ROOT / "examples/flights/job.toml").read_text()


def _of_tests(folder: Path) -> Iterator[tuple[str, str]]:
    for sinks in (jobs.THREE_SINKS, jobs.SINKS, kafka_job._SINK, postgres_job._POSTGRES, OPERATED):
        given = {"folder": folder, "conninfo": "dbname=x", "bootstrap": "127.0.0.1:9092", "topic": "t", "more": ""}
        text = sinks.format(**given, name="orders", table="rows")
        yield sinks, jobs.write_job(folder, text.replace("{", "{{").replace("}", "}}")).read_text()
    yield "shop", Path(Shop(folder).file).read_text()
    for source in SOURCES:
        yield f"a first job from {source}", job_text("orders", source, TARGETS)
    yield "a whole job", WHOLE


def test_each_template_of_init_is_a_choice() -> None:
    pieces = {piece.name.partition(".")[0] for piece in files("exactsink.starters").joinpath("templates/job").iterdir()}
    assert pieces == {"job", *(f"from_{name}" for name in SOURCES), *(f"to_{name}" for name in TARGETS)}


def test_every_job_of_the_pages_and_the_tests_is_taken(tmp_path: Path, validator: Draft202012Validator) -> None:
    taken = [*_of_pages(), *_of_tests(tmp_path)]
    for place, text in taken:
        assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == [], place
    assert len(taken) > 15


WRONG = {
    "an unknown key": (HEAD + 'tranform = "a:b"\n' + LAKE, "'tranform' was unexpected"),
    "an unknown table": (HEAD + LAKE + "[sources]\n", "'sources' was unexpected"),
    "a key of another backend": (HEAD + LAKE + 'topic = "t"\n', "sinks.lake"),
    "a key that is missing": (HEAD + TABLE.replace('keys = ["id"]\n', ""), "sinks.table"),
    "no sinks": (HEAD, "'sinks' is a required property"),
    "no such backend": (HEAD + LAKE.replace("files", "flies"), "sinks.lake.backend"),
    "a number as text": (HEAD + 'restarts = "many"\n' + LAKE, "job.restarts"),
    "a word out of a list": (HEAD + 'output_mode = "upsert"\n' + LAKE, "job.output_mode"),
    "a text as a list": (HEAD + LAKE + 'columns = "id"\n', "sinks.lake"),
    "a name that is none": (HEAD.replace("orders", "My Orders") + LAKE, "job.name"),
    "a transform twice": (HEAD + 'transform = "a:b"\n[transform]\nsql = "SELECT 1"\n' + LAKE, "should not be valid"),
    "a query twice": (HEAD + '[transform]\nsql = "SELECT 1"\nsql_file = "x.sql"\n' + LAKE, "transform: "),
    "too many ids": (HEAD + LAKE + "max_participants = 0\n", "sinks.lake"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_refused_by_schema_and_loader(
    tmp_path: Path, validator: Draft202012Validator, registry: Registry, wrong: str
) -> None:
    text, said = WRONG[wrong]
    (tmp_path / "job.toml").write_text(text)
    found = validator.iter_errors(tomllib.loads(text))
    errors = [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]
    assert any(said in error for error in errors), errors
    with pytest.raises(ConfigError):
        config, document = load_config(tmp_path / "job.toml", {})
        bind_sinks(config, document, registry)


def test_a_variable_may_stand_for_every_value(validator: Draft202012Validator, registry: Registry) -> None:
    """In lists and tables, too; and for the backend itself."""

    def filled(part: dict[str, Any]) -> Any:
        kinds = [part, *part.get("anyOf", ())]
        if any(kind.get("type") == "array" for kind in kinds):
            return ["${A}"]
        return {"x": "${A}"} if part.get("type") == "object" else "a ${A:-b}"

    schema = job_schema(registry)
    job: dict[str, Any] = {}
    for table, part in schema["properties"].items():
        if table not in ("sinks", "transform"):
            job[table] = {key: filled(value) for key, value in part["properties"].items()}
    job["sinks"] = {
        name.replace("_", "-"): {key: filled(value) for key, value in part["properties"].items()} | {"backend": name}
        for name, part in schema["$defs"].items()
        if name != "fake"  # it has a table within a table
    }
    job["sinks"]["any"] = {"backend": "${BACKEND}", "whatever": 1}
    assert [error.message for error in validator.iter_errors(job)] == []
    assert validator.is_valid({**job, "sinks": {"one": {"backend": "fake", "path": "x", "retention": {"days": 3}}}})


def test_every_key_says_what_it_is_for(registry: Registry) -> None:
    schema = job_schema(registry)
    ours = {name: part for name, part in schema["$defs"].items() if name not in ("fake", "odd")}
    tables = {**ours, **{name: part for name, part in schema["properties"].items() if name != "sinks"}}
    assert {"delta", "files", "iceberg", "kafka", "postgres", "idempotent_upsert"} == ours.keys()
    assert [
        (t, key) for t, table in tables.items() for key, k in table["properties"].items() if not k.get("description")
    ] == []


def test_the_command_prints_or_writes_it(tmp_path: Path, command: Callable[..., Ended]) -> None:
    printed = command("schema").out
    assert json.loads(printed)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert command("schema", "--output", str(tmp_path / "s.json")).code == 0
    assert (tmp_path / "s.json").read_text() == printed
    ended = command("schema", "--output", str(tmp_path / "none" / "s.json"))
    assert (ended.code, "can't be written" in ended.err) == (2, True)

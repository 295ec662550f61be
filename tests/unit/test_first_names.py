"""Names in a program: arguments of a job and of its sinks, and columns that are one to Spark."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import exactsink
from exactsink import Job
from exactsink.contract import ConfigError, SinkKeys
from exactsink.job.config.model import JobSection, SinkSection
from exactsink.job.config.options import JobOptions
from exactsink.job.registry import Registry, installed_plugins
from exactsink.spark.shown import sinks_table
from exactsink.toolkit.tabular import TabularOptions
from exactsink.toolkit.tabular.lines import problems
from exactsink_delta import Delta
from exactsink_files import Files
from exactsink_idempotent_upsert import Upsert
from exactsink_kafka import Kafka
from exactsink_postgres import Postgres


def test_the_keyword_arguments_of_a_job_are_the_options_of_its_section() -> None:
    assert {"name", "checkpoint", *JobOptions.__annotations__} == set(JobSection.model_fields)
    assert {"backend", *SinkKeys.__annotations__} == set(SinkSection.model_fields)


def test_a_typed_sink_is_its_table_and_its_signature_has_every_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sinks = {
        "lake": Files(path=tmp_path / "lake", where="id > 0"),
        "orders": Upsert(url="sqlite:///${PLACE:-t.db}", table="orders", keys=["id"]),
    }
    job = Job(name="orders", checkpoint=tmp_path / "c", sinks=sinks)
    assert (job.sinks["lake"].where, job.sinks["orders"].kind) == ("id > 0", "idempotent_upsert")
    assert "${PLACE:-t.db}" in job.to_toml("job.toml")
    written = Job.from_toml("job.toml")
    assert [sink.backend.target for sink in written.sinks.values()] == [s.backend.target for s in job.sinks.values()]
    assert repr(job) == "<Job orders: lake (files), orders (idempotent_upsert)>"
    for shown, count in ((job._repr_html_(), 0), (sinks_table(job.sinks, {"lake": 2}), 2)):
        assert f"<td>file://{tmp_path}/lake</td><td>{count}</td>" in shown
    with pytest.raises(ConfigError, match="sinks is one sink without a name"):
        Job(name="orders", checkpoint=tmp_path / "c", sinks=Files(path="lake"))
    unnamed: Any = Files
    with pytest.raises(ConfigError, match=r"takes its options by name, and got 'lake'") as refused:
        unnamed("lake")
    assert refused.value.next == "Files(path=...)"
    with pytest.raises(ImportError, match="Kafka is in its backend's package: from exactsink_kafka import Kafka"):
        importlib.import_module("exactsink").Kafka  # noqa: B018
    assert not hasattr(exactsink, "Kafak")
    wrong: dict[str, Any] = {"pth": "lake"}
    with pytest.raises(ConfigError, match=r"unknown key sinks\.lake\.pth; did you mean path\?"):
        Job(name="orders", checkpoint=tmp_path / "c", sinks={"lake": Files(**wrong)})


@pytest.mark.parametrize("call", [Delta, Files, Kafka, Postgres, Upsert])
def test_a_notebook_completes_the_options_of_a_typed_sink(call: Callable[..., dict[str, Any]]) -> None:
    registry, backend = Registry(installed_plugins()), call.__module__.removeprefix("exactsink_")
    model = registry.load(backend, backend).Options
    shown = inspect.signature(call).parameters
    assert list(shown) == [*model.model_fields, *SinkKeys.__annotations__]
    required = {name for name, parameter in shown.items() if parameter.default is inspect.Parameter.empty}
    assert required == {name for name, field in model.model_fields.items() if field.is_required()}


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_columns_that_are_one_to_spark_are_refused(format: str) -> None:
    options = TabularOptions.model_validate({"path": "lake", "format": format})
    twice = pa.schema([("Id", pa.int64()), ("amount", pa.int64()), ("id", pa.int64())])
    assert [(f.severity, f.message.partition(" are one column to")[0]) for f in problems(options, twice)] == [
        ("error", "columns Id and id")
    ]
    assert problems(options, pa.schema([("id", pa.int64())])) == []

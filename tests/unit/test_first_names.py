"""Names that users of Spark and of other sinks bring with them: the message has the one that it has here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from exactsink.contract import ConfigError
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.config.model import JobSection
from exactsink.job.config.options import JobOptions
from exactsink.job.registry import Registry, installed_plugins
from exactsink.toolkit.tabular import TabularOptions
from exactsink.toolkit.tabular.lines import problems

HEAD = '[job]\nname = "orders"\ncheckpoint = "c"\n'
POSTGRES = '[sinks.t]\nbackend = "postgres"\nconninfo = "host=h dbname=d"\ntable = "t"\n'
SOURCE = '[source]\nformat = "json"\npath = "in"\n'
LAKE = '[sinks.lake]\nbackend = "files"\npath = "lake"\n'
CASES = {
    "s3": (LAKE.replace('"files"', '"s3"'), 'backend = "files" here'),
    "jdbc": (LAKE.replace('"files"', '"jdbc"'), 'backend = "postgres" here (appends), or "idempotent_upsert"'),
    "sqlite": (LAKE.replace('"files"', '"sqlite"'), 'backend = "idempotent_upsert" here, with url'),
    "iceberg": (LAKE.replace('"files"', '"iceberg"'), "there is none yet"),
    "url of postgres": (POSTGRES + 'url = "postgresql://h/d"\n', "unknown key sinks.t.url; here it is conninfo"),
    "dbtable": (POSTGRES + 'dbtable = "t"\n', "here it is table"),
    "access_key": (LAKE + 'access_key = "k"\n', "here it is profile"),
    "an option of the source": (SOURCE + "maxFilesPerTrigger = 1\n" + LAKE, "stand in [source.options]"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_name_from_elsewhere_gets_the_one_that_it_has_here(case: str, tmp_path: Path) -> None:
    text, says = CASES[case]
    file = tmp_path / "job.toml"
    file.write_text(HEAD + text)
    with pytest.raises(ConfigError) as refused:
        bind_sinks(*load_config(file), Registry(installed_plugins()))
    assert says in refused.value.what


def test_the_keyword_arguments_of_a_job_are_the_options_of_its_section() -> None:
    assert {"name", "checkpoint", *JobOptions.__annotations__} == set(JobSection.model_fields)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_columns_that_are_one_to_spark_are_refused(format: str) -> None:
    options = TabularOptions.model_validate({"path": "lake", "format": format})
    twice = pa.schema([("Id", pa.int64()), ("amount", pa.int64()), ("id", pa.int64())])
    assert [(f.severity, f.message.partition(" are one to")[0]) for f in problems(options, twice)] == [
        ("error", "columns Id and id")
    ]
    assert problems(options, pa.schema([("id", pa.int64())])) == []

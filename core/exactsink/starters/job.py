"""`exactsink init`: a small job to start from, which runs as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from exactsink.contract import ConfigError
from exactsink.job.config.schema import schema_text

__all__ = ["DEFAULT_TARGETS", "SOURCES", "TARGETS", "job_text", "write_first_job", "write_new"]

_PIECES = files("exactsink.starters").joinpath("templates/job")
_ROWS = "id,customer,amount\n1,ada,12.5\n2,grace,7.25\n3,edsger,0\n"
DEFAULT_TARGETS = ("files", "upsert")
SOURCES = ("files", "kafka")
TARGETS = ("delta", "files", "iceberg", "kafka", "postgres", "s3", "upsert")
"""Each has a template of its name, `from_NAME.toml.txt` or `to_NAME.toml.txt`."""


def write_first_job(folder: str, name: str, source: str = "files", targets: Sequence[str] = DEFAULT_TARGETS) -> None:
    """Write a job's files into a folder. Never overwrites: raises ConfigError if one of them exists already."""
    place = Path(folder).absolute()
    text = job_text(name, source, targets)
    contents = {
        place / "job.toml": text,
        place / "job.schema.json": schema_text(),
    }
    if source == "files":
        contents[place / "incoming" / "orders-1.csv"] = _ROWS
    write_new(contents, "exactsink init ANOTHER_FOLDER")
    if variables := sorted(set(re.findall(r"\$\{(\w+)", text))):
        print(f"  set, where job.toml has no default, or a default that you do not want: {', '.join(variables)}")
    made = shlex.quote(str(place / "job.toml"))
    print(f"  next: exactsink check {made}, then exactsink run {made}")


def job_text(name: str, source: str, targets: Sequence[str]) -> str:
    """Return a job's file with this source and a sink for each target."""
    parts = [_piece("job") + _piece(f"from_{source}"), *(_piece(f"to_{target}") for target in dict.fromkeys(targets))]
    return "\n".join(parts).replace("NAME", name).replace("KAFKA_SOURCE", _kafka_source())


def write_new(files: Mapping[Path, str], next: str) -> None:
    """Write files, or none: raises ConfigError with the `next` command if one of them exists, or the disk refuses."""
    existing = [path for path in files if path.exists()]
    if existing:
        raise ConfigError(f"{existing[0]} exists already", why="init never overwrites", next=next)
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ConfigError(f"{path} can't be written", why=str(error.strerror), next=next) from None
        print(f"wrote {path}")


def _piece(name: str) -> str:
    return _PIECES.joinpath(f"{name}.toml.txt").read_text(encoding="utf-8")


def _kafka_source() -> str:
    """Return the package with Spark's own Kafka source, for the Spark that is installed here."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        spark = "4.0.0"
    return f"org.apache.spark:spark-sql-kafka-0-10_{'2.12' if spark.startswith('3.') else '2.13'}:{spark}"

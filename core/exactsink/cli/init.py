"""`exactsink init`: a small job to start from, which runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exactsink.cli.schema import schema_text
from exactsink.contract import ConfigError

__all__ = ["init", "write_new"]

_JOB = """\
#:schema ./job.schema.json
# `exactsink check job.toml` looks at everything without writing a row, `exactsink run job.toml` runs the job.
[job]
name = "{name}"
checkpoint = "checkpoint"             # the journal stands beside it, in checkpoint.exactsink

[spark]
master = "local[2]"

[source]
format = "csv"
schema = "id BIGINT, customer STRING, amount DOUBLE"
path = "incoming"
options = {{ header = true, maxFilesPerTrigger = 1 }}

[transform]                           # or a function of Python's: [job] transform = "module:function"
sql = "SELECT * FROM source WHERE amount > 0"

[sinks.lake]                          # a data lake of Parquet files
backend = "files"
path = "lake"

[sinks.table]                         # and a table with one row per key, committed together with it
backend = "idempotent_upsert"
url = "sqlite:///{name}.db"
table = "orders"
keys = ["id"]
create = true
"""
_ROWS = "id,customer,amount\n1,ada,12.5\n2,grace,7.25\n3,edsger,0\n"


def init(folder: str, name: str) -> None:
    """Write a job's files into a folder. Never overwrites: raises ConfigError when one of them stands already."""
    place = Path(folder).absolute()
    files = {
        place / "job.toml": _JOB.format(name=name),
        place / "job.schema.json": schema_text(),
        place / "incoming" / "orders-1.csv": _ROWS,
    }
    write_new(files, "exactsink init ANOTHER_FOLDER")
    print(f"  next: exactsink check {place / 'job.toml'}, then exactsink run {place / 'job.toml'}")


def write_new(files: Mapping[Path, str], next: str) -> None:
    """Write files, or none: raises ConfigError with the `next` command when one of them stands already."""
    standing = [path for path in files if path.exists()]
    if standing:
        raise ConfigError(f"{standing[0]} exists already", why="init never overwrites", next=next)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
        print(f"wrote {path}")

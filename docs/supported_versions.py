"""The page of supported versions: what `make matrix` and `make matrix-servers` came to, from `docs/figures`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from measured import FIGURES
from tables import markdown_table

from exactsink.spark import versions

__all__ = ["versions_page"]

_VERSIONS = """\
# Supported versions

exactsink runs on Spark {oldest} to {newest} and on Python 3.10 or newer. The extra `spark`
[installs](../how-to/install.md) a Spark that fits your Python:

- Spark 4.3 needs Python 3.11 or newer.
- Python 3.12 or newer needs Spark {later} to {newest}, because Spark 3.5 imports `distutils`.

| Spark | Java that Spark supports | Java that exactsink refuses |
| --- | --- | --- |
| {oldest} | 8, 11 or 17 | 24 or newer |
| 4.0 and 4.1 | 17 to 23 | 24 or newer |
| later releases | 17 or newer | none |

Before a job starts, exactsink refuses any other Spark, or a Java that is too new for it (exit code 2). If Spark is
wrong, the message prints the pip command.

Driver and executors must have the same versions of Spark, of Python (3.N) and of exactsink. At each start, exactsink
compares the version of exactsink on an executor with the driver's, and Spark compares the versions of Python. If one
of these differs, exactsink refuses the start. exactsink does not compare the executors' version of Spark.

## Differences

| Spark | difference |
| --- | --- |
| 3.5 | It has no VARIANT. |
| 3.5 | It has no `spark.sql.execution.arrow.maxBytesPerBatch`: a task gets 10,000 rows at a time, even if they are \
wide. If rows have more than about 10 KB, set `spark.sql.execution.arrow.maxRecordsPerBatch`, or a task's memory \
grows. |
| 3.5 and 4.0 | In SQL, `'it''s'` is the text `its`, not `it's`. In a sink's `where`, write `'it\\'s'`. |
| 4.0 or newer | ANSI mode is Spark's default: an integer overflow or a bad cast in a transform or a `where` fails \
the [epoch](../explanation/glossary.md)'s tasks. In Spark 3.5, a bad cast of a text gives NULL, \
and an overflow gives a wrong number. |

## Tested combinations

`make matrix` runs tests on one machine. For each combination, pip makes an environment as for a user, with the newest
pyarrow, pandas and numpy that fit. This table sums up the results, with the version of Java. For
many combinations, only the part `starter, counting` was run, as the long table below shows:

GRID
Other versions of Python and of Java are not tested (the machine has no Java 21). Each combination runs some of these
parts:

| part | its tests |
| --- | --- |
| starter, counting | the job of `exactsink init` and a stateful query, with drivers killed |
| kills | a job of six sinks, and stateful queries on each of Spark's state stores, killed at each point |
| cluster | executors of a `local-cluster`, killed |
| session | one pass, routes, batch runs and Arrow's settings |
| text files | JSON lines and CSV, compared with Spark's own |
| stops | signals and `exactsink stop` |
| demo | `make demo` |
"""

_SERVERS = """\
## Servers

| server | supported versions | check at the start |
| --- | --- | --- |
| PostgreSQL | 15 or newer | a `postgres` sink refuses an older one |
| Apache Kafka | 3.7 or newer | exactsink refuses brokers if it can't use their transactions |
| MariaDB | 10.11 or newer | none |
| MySQL | 8.0 or newer, but **not tested**: no registry that the tests use has it. The code follows MySQL's manual | \
none |
| S3 | any server with conditional writes | exactsink tries each call of a commit |
| Azure, Google Cloud Storage | [tested on emulators](../explanation/object-stores.md) | the same |
| HDFS | Hadoop 3, by WebHDFS, without Kerberos and TLS | the same |
| SFTP | OpenSSH | the same |

`make matrix-servers` runs tests on real servers, one after the other on one machine. The columns of the table are these
parts:

| part | its tests |
| --- | --- |
| kit | the conformance kit |
| backend, upserts | a backend's own tests: types, locks, sweeps, preflight, crashes |
| job | a Spark job, its driver killed at the steps of an epoch |

A number counts the tests that passed. *All* means that the long tests (marked `proof`) were among them. A test is
skipped if the server, or the backend's strategy on it, lacks the feature under test. Totals differ because newer
servers have more features, and because tests were added between the dates.
"""
_PARTS = ("kit", "backend", "upserts", "job")
_NO_ENVIRONMENT = "pip finds no such combination"


def versions_page() -> str:
    """Return which Spark, Python and Java is supported, and what `make matrix` came to with each."""
    oldest, newest, later = (
        ".".join(map(str, v)) for v in (versions.OLDEST, versions.NEWEST, versions.OLDEST_OF_PYTHON_3_12)
    )
    text = _VERSIONS.format(oldest=oldest, newest=newest, later=later)
    path = FIGURES / "matrix.json"
    if not path.exists():
        return text + "\nNot tested yet.\n"
    found = json.loads(path.read_bytes())
    rows = [row for cell in found["cells"] for row in _cell_rows(cell)]
    columns = ("Spark", "Python", "Java", "part", "tests passed", "not passed", "date")
    text = text.replace("GRID\n", f"{_grid(found['cells'])}\n")
    return f"{text}\n{markdown_table(columns, rows)}\n{_servers()}"


def _grid(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return which Spark was tested on which Python, and on which Java."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        of = found.setdefault((cell["spark"].rpartition(".")[0], cell["python"]), set())
        of |= {_NO_ENVIRONMENT} if "refused" in cell else {f"Java {cell['java']}"} if "parts" in cell else set()
    pythons = sorted({python for _, python in found}, key=lambda name: [*map(int, name.split("."))])
    rows = [
        [spark, *(", ".join(sorted(found.get((spark, python), ()))) or "not tested" for python in pythons)]
        for spark in sorted({spark for spark, _ in found})
    ]
    return markdown_table(("Spark", *(f"Python {python}" for python in pythons)), rows)


def _servers() -> str:
    """Return which versions of servers were tested, and which were not."""
    found = json.loads((FIGURES / "servers.json").read_bytes())
    played: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for one in found["parts"]:
        played.setdefault((one["server"], one["version"]), {})[one["part"]] = one
    rows = [
        (*names, *(_came(parts[part]) if part in parts else "-" for part in _PARTS), _dates(parts.values()))
        for names, parts in played.items()
    ]
    missing = markdown_table(("not tested", "why"), found["not_played"].items())
    return f"{_SERVERS}\n{markdown_table(('server', 'version', *_PARTS, 'date'), rows)}\n{missing}"


def _came(part: Mapping[str, Any]) -> str:
    """Return how many tests of a part passed on a server, and which did not."""
    every = "" if "not proof" in part["marks"] else "all: "
    return ", ".join([f"{every}{part['passed']}", *_notes(part)])


def _dates(parts: Iterable[Mapping[str, Any]]) -> str:
    """Return the day, or the first and the last one, of a server's parts."""
    days = sorted({part["at"] for part in parts})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _cell_rows(cell: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield a line for each part that was tested in an environment."""
    made = cell.get("versions", cell)
    place = [made["spark"] if "spark" in made else made["pyspark"], made["python"], made["java"]]
    for part, came in cell.get("parts", {}).items():
        yield *place, part, str(came["passed"]), "; ".join(_notes(came)) or "-", came.get("at", cell["at"])[:10]


def _notes(came: Mapping[str, Any]) -> Sequence[str]:
    """Name the tests of a part that failed, and say how many were skipped."""
    skipped = [f"{came['skipped']} skipped"] if came["skipped"] else []
    return [*(f"failed: `{name}`" for name in came["failed"]), *skipped]

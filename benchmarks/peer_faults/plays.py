"""A play: a tool, a fault, and the rows that readers of its targets see after everything was started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from tests.e2e.drivers import ForkServer
from tests.e2e.jobs import PARTICIPANTS, in_iceberg, in_lake
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka

from benchmarks.cases.postgres_server import Served
from benchmarks.peer_faults import held

__all__ = [
    "BETWEEN",
    "FILES",
    "IN_BATCH",
    "OURS",
    "TIMED_OUT",
    "FaultError",
    "Line",
    "Play",
    "Played",
    "Stage",
    "lines_of",
    "require",
]

FILES = 3 * PARTICIPANTS
"""The source's files, of three epochs: before the fault, with it, and after it."""
OURS = "exactsink"
TIMED_OUT = "decided, killed before the commit, and the broker's transaction timeout passes"
IN_BATCH = "kill -9 in the middle of a batch, after some of its rows reached the target"
BETWEEN = "kill -9 after the first sink's write, before the second's"


class FaultError(Exception):
    """A fault was not played as it should be, so its result means nothing."""


def require(true: bool, what: str) -> None:
    """Raise FaultError unless the fault's condition holds."""
    if not true:
        raise FaultError(f"not so: {what}")


@dataclass(frozen=True, slots=True)
class Stage:
    """The place of a play: its own new folder. All plays share the servers, and the JVM of exactsink's drivers."""

    folder: Path
    kafka: Kafka
    postgres: Served
    forks: ForkServer
    jvm: WarmJvm

    def at(self, folder: Path) -> Stage:
        """Return it with another folder."""
        return replace(self, folder=folder)

    def new_topic(self) -> str:
        """Make a topic."""
        return self.kafka.new_topic("faults", PARTICIPANTS)

    def in_topic(self, topic: str) -> Counter[int]:
        """Count how often a reader of committed records sees each row."""
        return Counter(json.loads(record.value or b"")["id"] for record in self.kafka.rows(topic))

    @property
    def in_files(self) -> Counter[int]:
        """Count how often each row is in the Parquet files that a reader of `lake` sees."""
        return in_lake(self.folder)

    @property
    def in_delta(self) -> Counter[int]:
        """Count how often each row is in the Delta table `delta`."""
        return Counter(DeltaTable(self.folder / "delta").to_pyarrow_table(columns=["id"])["id"].to_pylist())

    @property
    def in_iceberg(self) -> Counter[int]:
        """Count how often each row is in the Iceberg table `shop.rows`."""
        return Counter(row["id"] for row in in_iceberg(self.folder))

    @property
    def in_sparks_iceberg(self) -> Counter[int]:
        """Count how often each row is in the Iceberg table `shop.rows` of Spark's own catalog of folders."""
        folder = self.folder / "warehouse" / "shop" / "rows" / "metadata"
        newest = (folder / "version-hint.text").read_text().strip()
        table = StaticTable.from_metadata(str(folder / f"v{newest}.metadata.json"))
        return Counter(table.scan().to_arrow()["id"].to_pylist())

    @property
    def holds(self) -> bool:
        """Return whether a task holds in the middle of its batch."""
        return held.mark(self.folder).exists()

    def new_table(self, name: str) -> str:
        """Make a table without a key, so that a row that comes twice is in it twice."""
        self.postgres.make(name, "id bigint, kind text, amount float8")
        return name

    def in_table(self, name: str) -> Counter[int]:
        """Count how often each row is in a table."""
        return Counter(number for (number,) in self.asked(f"SELECT id FROM {name}"))

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        """Query the database."""
        with psycopg.connect(self.postgres.conninfo) as session:
            return session.execute(query.encode()).fetchall()


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a play: how often each target's readers see each id, and the tool's report."""

    expected: Counter[int]
    targets: Mapping[str, Counter[int]]
    reported: str


@dataclass(frozen=True, slots=True)
class Play:
    """One tool under one fault. `act` raises FaultError if the fault was not played."""

    tool: str
    fault: str
    act: Callable[[Stage], Played]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: one target of a play. `differ` counts the ids that its targets hold unequally often."""

    tool: str
    fault: str
    target: str
    rows: int
    lost: int
    doubled: int
    differ: int
    reported: str

    @property
    def is_ours(self) -> bool:
        """Return whether the promise applies to it."""
        return self.tool.startswith(OURS)

    @property
    def holds(self) -> bool:
        """Return whether nothing is lost or doubled."""
        return self.lost == self.doubled == self.differ == 0


def lines_of(play: Play, played: Played) -> list[Line]:
    """Count a play's rows by id, target by target."""
    rows = played.expected.total()
    require(rows > 0, "there are rows to count")
    first, *others = played.targets.values()
    differ = {number for other in others for number in first | other if first[number] != other[number]}
    return [
        Line(
            play.tool,
            play.fault,
            target,
            rows,
            (played.expected - seen).total(),
            (seen - played.expected).total(),
            len(differ),
            played.reported,
        )
        for target, seen in played.targets.items()
    ]

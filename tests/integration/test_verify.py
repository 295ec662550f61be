"""`verify` on real targets: nothing is wrong, then each kind of target is changed by hand, and found."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from exactsink.cli.main import main
from exactsink.cli.opened import Opened
from exactsink.job.driver import Driver
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.participant import SinkRows, no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres

ROWS = 100
_JOB = """
[job]
name = "{topic}"
checkpoint = "checkpoint"

[sinks.lake]
backend = "files"
path = "lake"
epoch_column = "epoch"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///table.db"
table = "rows"
keys = ["id"]
epoch_column = "epoch"
create = true

[sinks.db]
backend = "postgres"
conninfo = "{conninfo}"
table = "db"
epoch_column = "epoch"
create = true

[sinks.bare]
backend = "postgres"
conninfo = "{conninfo}"
table = "bare"
strategy = "staged"
create = true

[sinks.topic]
backend = "kafka"
bootstrap_servers = "{bootstrap}"
topic = "{topic}"
epoch_header = "epoch"
"""
Differs = dict[str, list[tuple[int, int, int | None]]]


@dataclass
class Site:
    """A job on all kinds of targets, and a driver of it without Spark: epoch n has ids from n * ROWS on."""

    folder: Path
    postgres: Postgres
    kafka: Kafka
    topic: str
    database: str
    capsys: pytest.CaptureFixture[str]

    @property
    def job(self) -> str:
        return str(self.folder / "job.toml")

    def run(self, *epochs: int) -> None:
        opened = Opened.of(self.job)
        with closing(Driver(opened.history, opened.sinks, Events("audited"))) as driver:
            driver.coordinator.start("query-1", lambda epoch: False)
            for epoch in epochs:
                driver.coordinator.run_epoch(self._batch(epoch, opened.sinks))

    def _batch(self, epoch: int, sinks: Mapping[str, Sink]) -> Batch:
        frames = [_rows_of(epoch, partition, sinks) for partition in range(2)]

        def write(plan: EpochPlan) -> Sequence[Vote]:
            backends, votes = {name: sink.backend for name, sink in sinks.items()}, list[Vote]()
            for partition, rows in enumerate(frames):
                votes += write_partition(plan, backends, partition, 2 * plan.epoch + partition, [rows], no_probe)
            return votes

        schemas = {name: batch.schema for name, (batch, _) in frames[0].items()}
        return Batch(epoch, f"end {epoch}", schemas, write, previous=f"end {epoch - 1}" if epoch else "")

    def execute(self, statement: str) -> None:
        self.postgres.execute(statement, self.database)

    def verify(self, *more: str) -> tuple[int, Mapping[str, object], Differs]:
        """Return the exit code, the counts and marks, and what differs: epoch, rows decided and found."""
        self.capsys.readouterr()
        code = main(["verify", self.job, "--json", *more])
        body = json.loads(self.capsys.readouterr().out)
        differing = {
            name: [
                (one["epoch"], one["decided_rows"], one["found_rows"])
                for one in sink["epochs"]
                if one["verdict"] == "differs"
            ]
            for name, sink in body["sinks"].items()
        }
        return code, body, {name: found for name, found in differing.items() if found}

    def differs(self, *more: str) -> Differs:
        code, _, found = self.verify(*more)
        assert code == 3
        return found


def _rows_of(epoch: int, partition: int, sinks: Iterable[str]) -> SinkRows:
    ids = pa.array(range(epoch * ROWS + partition, (epoch + 1) * ROWS, 2), pa.int64())
    rows = pa.record_batch({"id": ids, "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), len(ids))})
    place = pa.repeat(pa.scalar(partition, pa.int32()), len(ids))
    values = pa.record_batch({"value": ids.cast(pa.string()), "partition": place})
    shaped = {"topic": values, "bare": rows.select(["id"])}
    return {name: (shaped.get(name, rows), ids) for name in sinks}


@pytest.fixture
def site(tmp_path: Path, postgres: Postgres, kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Site:
    database, topic = f"audited_{uuid.uuid4().hex[:8]}", kafka.new_topic("audited")
    postgres.create_database(database)
    given = {"conninfo": postgres.conninfo(database), "bootstrap": kafka.bootstrap, "topic": topic}
    (tmp_path / "job.toml").write_text(_JOB.format(**given))
    return Site(tmp_path, postgres, kafka, topic, database, capsys)


def _lake(site: Site) -> None:
    lost, short, *_ = sorted((site.folder / "lake").rglob("*.e1.*.parquet"))
    kept = {path: path.read_bytes() for path in (lost, short)}
    lost.unlink()
    assert site.differs() == {"lake": [(1, 100, 50)]}
    short.write_bytes(kept[short][:-7])
    assert site.differs() == {"lake": [(1, 100, 0)]}
    for path, content in kept.items():
        path.write_bytes(content)
    short.write_bytes(kept[short][:9] + b"?" + kept[short][10:])
    assert site.differs("--deep") == {"lake": [(1, 100, 50)]}, "a byte is another one"
    short.write_bytes(kept[short])


def _tables(site: Site) -> None:
    site.execute("DELETE FROM db WHERE id IN (101, 202)")
    site.execute("INSERT INTO db VALUES (-1, 0), (-2, 999)")
    assert site.differs() == {"db": [(0, 100, 101), (1, 100, 99), (2, 100, 99), (999, 0, 1)]}
    assert site.differs("--epochs", "..0") == {"db": [(0, 100, 101)]}
    site.execute("DELETE FROM db WHERE id < 0")
    site.execute("INSERT INTO db VALUES (101, 1), (202, 2)")
    with closing(sqlite3.connect(site.folder / "table.db")) as connection, connection:
        connection.execute("INSERT INTO rows (id, epoch) VALUES (-1, 0)")
        connection.execute("UPDATE rows SET epoch = 2 WHERE id = 101")  # as an epoch that goes over it does
    assert site.differs() == {"table": [(0, 100, 101), (2, 100, 101)]}
    with closing(sqlite3.connect(site.folder / "table.db")) as connection, connection:
        connection.execute("DELETE FROM rows WHERE id IN (-1, 101)")


def _topic(site: Site) -> None:
    epochs = Counter(record.headers for record in site.kafka.rows(site.topic))
    assert epochs == {(("epoch", str(epoch).encode()),): ROWS for epoch in range(3)}
    admin, place = site.kafka.admin(), TopicPartition(site.topic, 0, 2)
    admin.delete_records([place])[place].result(30)
    assert site.differs() == {"topic": [(0, 100, 98)]}, "the others begin after it"
    site.kafka.delete_topic(site.topic)
    found = site.differs("--epochs", "1..")
    assert found.pop("topic") == [(1, 100, 0), (2, 100, 0)]
    assert found == {}


@pytest.mark.parametrize("change", [_lake, _tables, _topic], ids=["files", "tables", "topic"])
def test_what_is_changed_by_hand_is_found_and_nothing_else(site: Site, change: Callable[[Site], None]) -> None:
    site.run(0, 1, 2)
    for more in ((), ("--deep",)):
        code, body, found = site.verify(*more)
        assert (code, body["proven"], body["unknown"], found) == (0, 12, 3, {}), "of `bare` only the mark speaks"
    change(site)


def test_a_database_that_was_restored_is_found_by_its_mark_and_one_that_is_away_holds_up_nothing(site: Site) -> None:
    site.run(0, 1)
    database, old = site.database, f"{site.database}_old"
    site.postgres.execute(f"CREATE DATABASE {old} TEMPLATE {database}")
    site.run(2, 3)
    site.postgres.execute(f"ALTER DATABASE {database} RENAME TO {database}_new")
    code, body, found = site.verify()
    assert (code, body["proven"], body["unknown"], found) == (1, 12, 8, {})
    site.postgres.execute(f"ALTER DATABASE {old} RENAME TO {database}")
    code, body, found = site.verify()
    assert (code, found) == (3, {"db": [(2, 100, 0), (3, 100, 0)], "bare": [(2, 100, None), (3, 100, None)]})

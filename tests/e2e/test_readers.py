"""The reader's side: all sinks cut at one epoch while the job is killed, and `verify`, which finds what was changed."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import TopicPartition

from exactsink.cli.main import main
from exactsink.reader import last_complete_epoch
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, TWO_FILES, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm

Ids = Counter[int]
_SINKS = """
[sinks.lake]
backend = "files"
path = "{folder}/lake"
partition_by = ["kind"]
epoch_column = "epoch"

[sinks.lines]
backend = "files"
path = "{folder}/lines"
format = "csv"
columns = ["id"]
epoch_column = "batch"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "rows"
keys = ["id"]
columns = ["id", "kind"]
epoch_column = "epoch"
create = true

[sinks.db]
backend = "postgres"
conninfo = "%s"
table = "db"
columns = ["id", "kind"]
epoch_column = "epoch"
create = true
"""


class Readers:
    """A job of five sinks with their epochs in them, and independent readers of each."""

    def __init__(self, folder: Path, database: Database, kafka: KafkaSink) -> None:
        self.folder, self.database, self.kafka = folder, database, kafka
        sinks = _SINKS % database.server.conninfo(database.name) + kafka.sink('epoch_header = "epoch"')
        self.job = write_job(folder, sinks, source=TWO_FILES)

    def up_to(self, epoch: int) -> Mapping[str, Ids]:
        """Read which ids each sink shows of epochs up to this one."""
        with closing(sqlite3.connect(self.folder / "table.db")) as connection:
            table = connection.execute("SELECT epoch, id FROM rows").fetchall()
        lake = ds.dataset(str(self.folder / "lake"), format="parquet").to_table(columns=["epoch", "id"])
        lines = [line.split(",") for path in (self.folder / "lines").glob("*.csv") for line in path.open()]
        records = self.kafka.broker.rows(self.kafka.topic)
        held: Mapping[str, Sequence[tuple[Any, Any]]] = {
            "lake": [(row["epoch"], row["id"]) for row in lake.to_pylist()],
            "lines": [(int(batch), int(row)) for row, batch in lines if row != "id"],
            "table": table,
            "db": self.database.execute("SELECT epoch, id FROM db"),
            "kafka": [(int(dict(r.headers)["epoch"] or b""), json.loads(r.value or b"")["id"]) for r in records],
        }
        return {sink: Counter(row for at, row in rows if at <= epoch) for sink, rows in held.items()}

    def check(self) -> int | None:
        """Raise unless all sinks, cut at the last complete epoch, hold the source's first rows, once."""
        epoch = last_complete_epoch(self.job)
        if epoch is not None:
            expected = Counter(range((epoch + 1) * ROWS_AN_EPOCH))
            assert {sink: ids == expected for sink, ids in self.up_to(epoch).items()} == dict.fromkeys(
                ("lake", "lines", "table", "db", "kafka"), True
            ), f"at epoch {epoch}"
        return epoch


def test_all_sinks_cut_at_one_epoch_hold_the_same_rows_whenever_the_job_is_killed_and_verify_finds_what_is_changed(
    tmp_path: Path,
    drivers: Drivers,
    jvm: WarmJvm,
    database: Database,
    kafka_sink: KafkaSink,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_source(tmp_path, 5 * PARTICIPANTS)
    readers = Readers(tmp_path, database, kafka_sink)
    assert readers.check() is None

    def killed(point: str, edge: str, epoch: int, first: str | None = None) -> int | None:
        drivers.killed(readers.job, Fault(point, edge, "kill", epoch), first=first, jvm=jvm)  # type: ignore[arg-type]
        return readers.check()

    assert killed("commit:db", "after", 1, "commit:db") == 0
    database.server.execute(f"CREATE DATABASE {database.name}_old TEMPLATE {database.name}")
    assert killed("commit:lake", "before", 2, f"commit:{kafka_sink.name}") == 1
    driver = drivers.start(readers.job, jvm=jvm)
    driver.until(lambda: readers.check() == 4, "the last epoch; each read before it is whole, too")
    assert driver.exit_code() == 0
    driver.end(patience=10)

    def verified(*more: str) -> tuple[int, Mapping[str, Any]]:
        capsys.readouterr()
        code = main(["verify", str(readers.job), "--json", *more])
        return code, json.loads(capsys.readouterr().out)

    def found(sink: str, *more: str) -> list[tuple[int, int, int]]:
        """Return what differs in one sink, and that nothing else does: epoch, rows decided and found."""
        code, body = verified(*more)
        wrong = {}
        for name, held in body["sinks"].items():
            differing = [one for one in held["epochs"] if one["verdict"] == "differs"]
            if differing:
                wrong[name] = [(one["epoch"], one["decided_rows"], one["found_rows"]) for one in differing]
        assert (code, list(wrong)) == (3, [sink]), body
        return wrong[sink]

    code, body = verified("--deep")
    assert (code, body["proven"], body["differs"], body["unknown"]) == (0, 25, 0, 0)
    assert body["known_epochs"] == [0, 4]
    change_and_find(readers, found)

    old = f"{database.name}_old"
    database.server.execute(f"ALTER DATABASE {database.name} RENAME TO {database.name}_new")
    database.server.execute(f"ALTER DATABASE {old} RENAME TO {database.name}")
    assert found("db") == [(2, 1000, 0), (3, 1000, 0), (4, 1000, 0)]
    assert verified()[1]["sinks"]["db"]["mark_differs"], "it was put back in time, which its mark says, too"


def change_and_find(readers: Readers, found: Callable[..., list[tuple[int, int, int]]]) -> None:
    """Change each kind of target by hand, and let `verify` name the epochs."""
    [lost, short, *_] = sorted((readers.folder / "lake").rglob("*.e1.*.parquet"))
    kept = {path: path.read_bytes() for path in (lost, short)}
    lost.unlink()
    short.write_bytes(kept[short][:-7])
    [(epoch, rows, there)] = found("lake")
    assert (epoch, rows) == (1, 1000)
    assert there < 1000
    for path, content in kept.items():
        path.write_bytes(content)
    short.write_bytes(kept[short][:9] + b"?" + kept[short][10:])
    assert found("lake", "--deep")[0][0] == 1, "a byte is another one"
    short.write_bytes(kept[short])

    readers.database.execute("DELETE FROM db WHERE id IN (1001, 2002)")
    readers.database.execute("INSERT INTO db VALUES (-1, 'by hand', 3), (-2, 'by hand', 999)")
    assert found("db") == [(1, 1000, 999), (2, 1000, 999), (3, 1000, 1001), (999, 0, 1)]
    assert found("db", "--epochs", "..1") == [(1, 1000, 999)]
    readers.database.execute("DELETE FROM db WHERE id < 0")
    readers.database.execute("INSERT INTO db VALUES (1001, 'k', 1), (2002, 'k', 2)")

    with closing(sqlite3.connect(readers.folder / "table.db")) as connection, connection:
        connection.execute("INSERT INTO rows (id, kind, epoch) VALUES (-1, 'by hand', 0)")
    assert found("table") == [(0, 1000, 1001)]
    with closing(sqlite3.connect(readers.folder / "table.db")) as connection, connection:
        connection.execute("DELETE FROM rows WHERE id < 0")

    topic, admin = readers.kafka.topic, readers.kafka.broker.admin()
    place = TopicPartition(topic, 0, 5)  # into the middle of a batch
    admin.delete_records([place])[place].result(30)
    assert found(readers.kafka.name) == [(0, 1000, 995)]
    readers.kafka.broker.delete_topic(topic)
    assert found(readers.kafka.name) == [(epoch, 1000, 0) for epoch in range(5)]

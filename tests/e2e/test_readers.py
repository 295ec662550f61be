"""The reader's side: all sinks, cut at one epoch and joined, while the job is killed."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

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
        lines = [line.split(",") for path in (self.folder / "lines").glob("*.csv") for line in path.read_text().split()]
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


@pytest.mark.proof
def test_all_sinks_cut_at_one_epoch_hold_the_same_rows_whenever_the_job_is_killed(
    tmp_path: Path,
    drivers: Drivers,
    jvm: WarmJvm,
    database: Database,
    kafka_sink: KafkaSink,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_source(tmp_path, 4 * PARTICIPANTS)
    readers = Readers(tmp_path, database, kafka_sink)
    assert readers.check() is None

    def killed(point: str, edge: str, epoch: int, first: str | None = None) -> int | None:
        drivers.killed(readers.job, Fault(point, edge, "kill", epoch), first=first, jvm=jvm)  # type: ignore[arg-type]
        return readers.check()

    assert killed("commit:db", "after", 1, "commit:db") == 0
    assert killed("commit:lake", "before", 2, f"commit:{kafka_sink.name}") == 1
    driver = drivers.start(readers.job, jvm=jvm)
    driver.until(lambda: readers.check() == 3, "the last epoch; each read before it is whole, too")
    assert driver.exit_code() == 0
    driver.end(patience=10)
    assert main(["verify", str(readers.job), "--deep", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["proven"], body["differs"], body["unknown"]) == (20, 0, 0)

"""A job made by hand, without Spark: its file, its journal, and what its participants left in the sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exactsink.cli.main import main
from exactsink.contract import Committable, Txn
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Claim, Decide, DecidedSink
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.sinks import Sink, committer_of

__all__ = ["Job"]


class Job:
    """A job with one `files` sink, made by hand: its file, its journal and what its participants left."""

    def __init__(self, folder: Path) -> None:
        self.file = str(folder / "job.toml")
        self.folder = folder
        Path(self.file).write_text(
            f'[job]\nname = "orders"\ncheckpoint = "{folder}/chk"\n'
            f'[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\n'
        )
        self.history = folder / "chk.exactsink"

    def checkpoint(self, query_id: str, *done: int) -> None:
        """Write what Spark's checkpoint says: its query, and the batches that it has recorded as done."""
        (self.folder / "chk" / "commits").mkdir(parents=True, exist_ok=True)
        (self.folder / "chk" / "metadata").write_text(json.dumps({"id": query_id}))
        for batch in done:
            (self.folder / "chk" / "commits" / str(batch)).touch()

    def rows(self) -> int:
        """Count the rows that any reader of the sink sees."""
        return sum(pq.read_metadata(path).num_rows for path in (self.folder / "lake").glob("*.parquet"))

    @property
    def sink(self) -> Sink:
        config, document = load_config(self.file)
        return bind_sinks(config, document, Registry(installed_plugins()))["lake"]

    @property
    def journal(self) -> Journal:
        return Journal(LocalStore(self.history / "journal"), wait=lambda attempt: None)

    def vote(self, claim: Claim, epoch: int, partition: int) -> Committable:
        """Pre-commit one participant, as a task does."""
        rows = pa.record_batch({"n": pa.array([1, 2, 3])})
        committer = committer_of(self.sink, "orders", claim.generation, claim.lineage)
        ticket = committer.open_epoch(epoch, rows.schema, None)
        txn = Txn("orders", epoch, "lake", claim.generation, claim.token, partition, partition)
        writer = self.sink.backend.writer(txn, rows.schema, ticket)
        writer.write(rows)
        return writer.pre_commit()

    def decide(self, journal: Journal, epoch: int, *committables: Committable) -> None:
        backend = self.sink.backend
        decided = DecidedSink("files", backend.strategy, backend.target, committables)
        journal.decide(Decide(epoch, 1, "input", {"lake": decided}))

    def status(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
        code = main(["status", self.file, "--json"])
        return code, json.loads(capsys.readouterr().out)

"""A job without Spark: its file, its journal, and what its participants left in the sink."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import Committable, JobContext, Mark
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Claim, Decide, DecidedSink, Expected
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.marks import expected_of
from exactsink.protocol.sinks import Sink
from exactsink.testing.session import Session


def play_checkpoint(folder: Path, query_id: str, *done: int) -> None:
    """Write a checkpoint as Spark does: it has planned the batch after those that are done."""
    for name in ("commits", "offsets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for recorded in (folder / name).iterdir():
            recorded.unlink()
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    for batch in done:
        (folder / "commits" / str(batch)).touch()
    for batch in {number for last in (*done, -1) for number in (last, last + 1) if number >= 0}:
        (folder / "offsets" / str(batch)).write_text(_OFFSETS.format(batch))


def offsets_sum(batch: int) -> str:
    """Return what a decision keeps of such a checkpoint's batch; empty for the one before the first."""
    return hashlib.sha256(_OFFSETS.format(batch).encode()).hexdigest() if batch >= 0 else ""


_OFFSETS = "v1\n{{}}\n{}\n"

FOREIGN = Claim(1, "ffffffffffff", "elsewhere", "query-9", "ffffffffffff")


class Job:
    """A job with one `files` sink."""

    def __init__(self, folder: Path) -> None:
        self.file = str(folder / "job.toml")
        self.folder = folder
        self.history = folder / "chk.exactsink"
        Path(self.file).write_text(
            f'[job]\nname = "orders"\ncheckpoint = "{folder}/chk"\n'
            f'[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\n'
        )

    def checkpoint(self, query_id: str, *done: int) -> None:
        """Write what Spark's checkpoint says: its query, the batches that it has recorded as done, and the next one."""
        play_checkpoint(self.folder / "chk", query_id, *done)

    def heartbeat(self, at: float, complete_epoch: int | None = None) -> None:
        """Write what the driver said last, and when."""
        StateFile(self.history / "state.json").write(State(complete_epoch, 1, "host:17", at))

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

    def session(self, claim: Claim) -> Session:
        sink = self.sink
        ctx = JobContext("orders", "lake", sink.staging, claim.generation, claim.lineage)
        return Session(sink.backend, ctx, claim.token)

    def vote(self, claim: Claim, epoch: int, partition: int) -> Committable:
        """Pre-commit three rows as one participant."""
        session, rows = self.session(claim), pa.table({"n": [1, 2, 3]})
        return session.write(epoch, partition, session.open(epoch, rows.schema), rows, attempt=partition)

    def decide(self, journal: Journal, epoch: int, *committables: Committable) -> None:
        backend, lineage = self.sink.backend, journal.log.lineage
        before = Mark(lineage)
        if (known := expected_of(journal.log, "lake", backend.target)) is not None:
            before = known.now or before
        else:
            self.session(journal.log.claims[-1]).put_birth()
        tokens = frozenset(committable.txn.token for committable in committables)
        now = Mark(lineage, epoch, tokens, len(committables)) if committables else before
        sinks = {"lake": DecidedSink("files", backend.strategy, backend.target, committables)}
        marks = (Expected("lake", backend.target, now, before),)
        journal.decide(Decide(epoch, 1, offsets_sum(epoch), sinks, offsets_sum(epoch - 1), marks))

    def decided(self) -> tuple[Claim, list[Committable]]:
        """Leave epoch 0 decided with 6 rows and not committed, beside one undecided participant."""
        journal = self.journal
        if not (self.folder / "chk").exists():
            self.checkpoint("query-1")
        claim = journal.claim("query-1", "host:17")
        votes = [self.vote(claim, 0, partition) for partition in range(3)]
        self.decide(journal, 0, *votes[:2])
        return claim, votes

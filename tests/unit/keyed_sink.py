"""A store of one JSON file per key with conditional puts, its backend, and a sink to drive. Children run it too."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from exactsink.contract import (
    BackendOptions,
    Committable,
    Committer,
    DurableFile,
    IdempotentBackend,
    JobContext,
    Marker,
    Outcome,
    StagedCommitter,
    Txn,
    Version,
    idempotent,
)

PATIENCE = 120  # seconds until a process that hangs says so
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class KeyedOptions(BackendOptions):
    folder: str
    keys: tuple[str, ...] = ("id",)


class KeyedFiles(IdempotentBackend):
    """Put each row into the file of its key, under a lock, and log every put that was let through."""

    Options = KeyedOptions
    options: KeyedOptions

    @property
    def strategy(self) -> str:
        return "keyed"

    @property
    def target(self) -> str:
        return self.options.folder

    @property
    def keys(self) -> Sequence[str]:
        return self.options.keys

    def prepare(self, schema: pa.Schema) -> None:
        Path(self.options.folder).mkdir(exist_ok=True)

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        for own, row in version.rows(batches):
            self.put("-".join(str(row[key]) for key in self.keys), own, row)

    def put(self, key: str, version: Version, row: dict[str, Any]) -> None:
        folder = Path(self.options.folder)
        path = folder / f"{key}.json"
        with open(folder / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = Version.parse(json.loads(path.read_bytes())["version"]) if path.exists() else None
            if version.replaces(stored):
                new = folder / f"{key}.new"
                new.write_text(json.dumps({"version": version.text, "row": row}))
                new.replace(path)
                with open(folder / "log", "a") as log:
                    log.write(f"{version.epoch} {key} {row['v']}\n")


class KeyedSink:
    """One sink of a job into such a store."""

    def __init__(self, folder: Path, lineage: str = "L1", backend: type[KeyedFiles] = KeyedFiles) -> None:
        self.store = folder / "store"
        self.staging = folder / "staging"
        self.lineage = lineage
        self.backend = backend(KeyedOptions(folder=str(self.store)))

    def committer(self, generation: int = 1) -> Committer:
        return self.backend.committer(JobContext("orders", "keyed", str(self.staging), generation, self.lineage))

    def vote(self, epoch: int, *partitions: Sequence[tuple[Any, str]], generation: int = 1) -> list[Committable]:
        """Write and pre-commit one participant per partition; every row is a batch of its own."""
        ticket = self.committer(generation).open_epoch(epoch, SCHEMA, None)
        votes = []
        for partition, rows in enumerate(partitions):
            txn = Txn("orders", epoch, "keyed", generation, "aa", partition, attempt=100 * epoch + partition)
            writer = self.backend.writer(txn, SCHEMA, ticket)
            for key, v in rows:
                writer.write(pa.record_batch({"id": pa.array([key], pa.int64()), "v": [v]}, schema=SCHEMA))
            votes.append(writer.pre_commit())
        return votes

    def outcomes(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> Sequence[Outcome]:
        return self.committer(generation).commit(epoch, votes)

    def commit(self, epoch: int, votes: Sequence[Committable], generation: int = 1) -> list[str]:
        """Commit, and name the outcomes."""
        return [type(outcome).__name__ for outcome in self.outcomes(epoch, votes, generation)]

    def rows(self) -> dict[str, str]:
        return {path.stem: json.loads(path.read_bytes())["row"]["v"] for path in sorted(self.store.glob("*.json"))}

    def log(self) -> list[str]:
        """Every put that was let through, in order: epoch, key, value."""
        log = self.store / "log"
        return log.read_text().splitlines() if log.exists() else []

    def left(self, suffix: str) -> list[str]:
        """The names in the staging folder that end so."""
        return sorted(path.name for path in self.staging.iterdir() if path.name.endswith(suffix))


def commit_at_once(sink: KeyedSink, epoch: int, votes: Sequence[Committable], barrier: Any, answers: Any) -> None:
    """In a child: put row for row in step with the other, prove in step, and clean up when both have."""
    put, prove, drop = KeyedFiles.put, _applier()._prove, StagedCommitter._drop

    def put_in_step(self: KeyedFiles, *args: Any) -> None:
        barrier.wait()
        put(self, *args)

    def prove_in_step(self: Any, marker: Marker) -> None:
        barrier.wait()
        prove(self, marker)

    def drop_in_step(self: StagedCommitter, committables: Sequence[Committable]) -> None:
        barrier.wait()
        drop(self, committables)

    KeyedFiles.put = put_in_step  # type: ignore[method-assign]
    _applier()._prove = prove_in_step
    StagedCommitter._drop = drop_in_step  # type: ignore[method-assign]
    answers.put(sink.commit(epoch, votes))


def commit_and_stall(
    sink: KeyedSink, epoch: int, votes: Sequence[Committable], where: str, stalled: Any, woken: Any, answers: Any
) -> None:
    """In a child: commit, and stand still where it says until woken."""

    def stall() -> None:
        stalled.set()
        assert woken.wait(PATIENCE)

    _before(where, stall)
    answers.put(sink.commit(epoch, votes))


def commit_and_die(sink: KeyedSink, epoch: int, votes: Sequence[Committable], where: str) -> None:
    """In a child: commit, and be killed where it says."""
    _before(where, lambda: os.kill(os.getpid(), signal.SIGKILL))
    sink.commit(epoch, votes)


PLACES = ("second row", "proof", "proof's name", "drop", "drop of the second", "after the drop")
"""Where a commit of two staged files can be held up."""


def _before(where: str, act: Callable[[], object]) -> None:
    """Act, in this process, at one place of the commit."""
    if where == "second row":
        places = iter([False, True])
        _patch(KeyedFiles, "put", lambda put, *args: (next(places, False) and act(), put(*args)))
    elif where == "proof":
        _patch(_applier(), "_prove", lambda prove, *args: (act(), prove(*args)))
    elif where == "proof's name":
        idempotent.DurableFile = type("Held", (DurableFile,), {})  # type: ignore[misc]  # not the staged files' own
        _patch(idempotent.DurableFile, "seal", lambda seal, *args: (seal(*args), act()))
    else:
        cut = {"drop": 0, "drop of the second": 1, "after the drop": 2}[where]
        _patch(
            StagedCommitter,
            "_drop",
            lambda drop, self, votes: (drop(self, votes[:cut]), act(), drop(self, votes[cut:])),
        )


def _patch(owner: Any, name: str, around: Callable[..., object]) -> None:
    found = getattr(owner, name)
    setattr(owner, name, lambda *args: around(found, *args))


def _applier() -> Any:
    return idempotent._ProvenApplier

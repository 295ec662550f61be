"""One driver run without Spark: the real coordinator in one process, and every participant in another.

It does Spark's part: it plans batches, retries a participant that died, replaces one that stalled, and records finished
batches.
"""

from __future__ import annotations

import gc
import hashlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from exactsink.contract import ExactsinkError, Retryable
from exactsink.observe.state import StateFile
from exactsink.protocol.commit import Retry, SinkCommit
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.participant import SinkRows, no_probe, write_partition
from exactsink.protocol.quarantine import quarantine_schema
from exactsink.protocol.sinks import Sink, quarantines
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.protocol.wire import dump_votes, load_votes
from exactsink.testing.faults import Trigger
from exactsink.toolkit.row_json import row_json

__all__ = ["Script", "hashed", "run_driver"]

_TASK_ATTEMPTS = 4
_RESTARTS = 3

_CALLS = {
    "its target holds": "look at the backend: `mark()` does not show what `commit()` did, or is not kept",
    "begun under a claim": "look at the backend: `in_doubt()` lists what another job, sink or journal has begun",
}
"""The backend's call to look at, by a fragment of the error's text."""


@dataclass(frozen=True, slots=True)
class Script:
    """A job to play. `batches[n][p]` is the table of batch n, partition p. Every sink gets every row, with its
    `columns`.

    Participants hand rows on in pieces of `chunk` rows. `folder` holds the journal, the source's own log, and the files
    that faults leave.
    """

    job: str
    folder: Path
    sinks: Mapping[str, Sink]
    batches: Sequence[Sequence[pa.Table]]
    chunk: int = 50

    @property
    def journal(self) -> Journal:
        """A new handle on the job's journal."""
        return Journal(LocalStore(self.folder / "journal"), wait=_no_pause)

    def is_done(self, batch: int) -> bool:
        """Return whether the source has recorded the batch as done."""
        return (self.folder / "source" / str(batch)).exists()

    def finish(self, batch: int) -> None:
        (self.folder / "source").mkdir(parents=True, exist_ok=True)
        (self.folder / "source" / str(batch)).touch()

    def coordinator(self, trigger: Trigger | None) -> Coordinator:
        """Make a driver of this job in this process."""
        return Coordinator(
            self.job,
            self.sinks,
            self.journal,
            Events(self.job, [trigger] if trigger else []),
            driver=f"process {os.getpid()}",
            retry=Retry(3, _no_pause),
            save_state=StateFile(self.folder / "state.json").write,
            parallel=_one_by_one,
        )


def run_driver(script: Script, trigger: Trigger | None) -> int:
    """Run the job to its end in this process, restarting on Retryable. Return an exit code like the command line's."""
    for _ in range(_RESTARTS + 1):
        try:
            _query(script, trigger)
            return 0
        except Retryable as error:
            failure: ExactsinkError = error
        except ExactsinkError as error:
            print(f"driver run {os.getpid()} ended: {_to_author(error)}", flush=True)
            return error.exit_code
    print(f"driver run {os.getpid()} gave up: {failure}", flush=True)
    return failure.exit_code


def _to_author(error: ExactsinkError) -> str:
    """Return an error with the call to look at.

    Its own next step is wrong here, because nobody has restored anything.
    """
    calls = next((calls for words, calls in _CALLS.items() if words in error.what), "")
    return str(error).replace(error.next, calls) if calls and error.next else str(error)


def _query(script: Script, trigger: Trigger | None) -> None:
    coordinator = script.coordinator(trigger)
    coordinator.start("query", script.is_done)
    tasks = _Tasks(script, trigger)
    empty = pa.RecordBatch.from_pylist([], schema=script.batches[0][0].schema)
    schemas = {name: _columns(empty, sink).schema for name, sink in script.sinks.items()}
    schemas |= {name: quarantine_schema(script.sinks[name].backend) for name in quarantines(script.sinks)}
    for number, partitions in enumerate(script.batches):
        if script.is_done(number):
            continue
        write = tasks.writing(partitions)
        coordinator.run_epoch(Batch(number, f"batch {number}", schemas, write, previous=_previous(number)))
        script.finish(number)
        coordinator.returned(number)
    coordinator.close()


def _previous(number: int) -> str:
    return f"batch {number - 1}" if number else ""


class _Tasks:
    """Run participants as forked processes."""

    def __init__(self, script: Script, trigger: Trigger | None) -> None:
        self._script = script
        self._probe: Callable[[str, str, int], None] = trigger.probe if trigger else no_probe
        self._attempt = 0

    def writing(self, partitions: Sequence[pa.Table]) -> Callable[[EpochPlan], Sequence[Vote]]:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            return [vote for number, table in enumerate(partitions) for vote in self._task(plan, number, table)]

        return write

    def _task(self, plan: EpochPlan, partition: int, table: pa.Table) -> Sequence[Vote]:
        """Run one task. If a participant dies or stalls, another attempt follows."""
        for _ in range(_TASK_ATTEMPTS):
            self._attempt += 1
            votes = self._participant(plan, partition, self._attempt, table)
            if votes is not None:
                return votes
        raise Retryable(f"partition {partition} of epoch {plan.epoch} failed {_TASK_ATTEMPTS} times")

    def _participant(self, plan: EpochPlan, partition: int, attempt: int, table: pa.Table) -> Sequence[Vote] | None:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._vote(plan, partition, attempt, table, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            _, status = os.waitpid(child, os.WUNTRACED)
            if os.WIFSTOPPED(status):  # it may be woken later, and prepare then
                with open(self._script.folder / "stalled", "a") as stalled:
                    stalled.write(f"{child}\n")
                return None
            if status != 0:
                return None
            return load_votes(plan, pipe.read())

    def _vote(self, plan: EpochPlan, partition: int, attempt: int, table: pa.Table, writing: int) -> None:
        """Run the participant: write, vote, send the votes, and end without a cleanup.

        It does not collect the objects of the driver's clients, because a library may wait for a thread that only the
        driver has.
        """
        gc.freeze()
        code = 1
        try:
            backends = {name: sink.backend for name, sink in self._script.sinks.items()}
            batches = [
                _rows(batch, plan, self._script.sinks) for batch in table.to_batches(max_chunksize=self._script.chunk)
            ]
            votes = list(write_partition(plan, backends, partition, attempt, batches, self._probe))
            data = dump_votes(votes)
            assert len(data) < 60_000, "votes must fit into the pipe: the driver reads them after the exit"
            with suppress(BrokenPipeError):
                os.write(writing, data)
            code = 0
        except ExactsinkError as error:
            print(f"participant {os.getpid()} failed: {error}", flush=True)
        except BaseException:  # even a programming mistake in a writer must end the process
            traceback.print_exc()
        finally:
            os._exit(code)


def _rows(batch: pa.RecordBatch, plan: EpochPlan, sinks: Mapping[str, Sink]) -> SinkRows:
    numbers = hashed(batch)
    return {name: (_columns(batch, sinks[name]), numbers) for name in plan.read}


def hashed(batch: pa.RecordBatch) -> pa.Array:
    """Hash each row to 64 bits, like the JVM in a Spark job."""
    try:
        texts = list(map(repr, batch.to_pylist()))
    except (ValueError, OverflowError):
        texts = [_shown(batch.slice(place, 1)) for place in range(batch.num_rows)]
    hashes = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return pa.array([int.from_bytes(h, "big", signed=True) for h in hashes], pa.int64())


def _shown(row: pa.RecordBatch) -> str:
    try:
        return repr(row.to_pylist()[0])
    except (ValueError, OverflowError):  # a value that Python lacks, such as a text that is not UTF-8
        return row_json(row)


def _columns(batch: pa.RecordBatch, sink: Sink) -> pa.RecordBatch:
    return batch.select(list(sink.columns)) if sink.columns else batch


def _one_by_one(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    """Commit one sink after the other, so that a driver that stalls at one sink's point holds no lock of another."""
    return [call() for call in calls]


def _no_pause(attempt: int) -> None:
    """Don't wait, because every answer here is final."""

"""Flink's exactly-once Kafka sink under each fault: halted, and restored from its last complete checkpoint."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.jobs import ROWS_AN_EPOCH, ids
from tests.servers.waiting import wait_until

from benchmarks.peer_faults.plays import FILES, IN_BATCH, TIMED_OUT, Play, Played, Stage, require
from benchmarks.peer_faults.runs import Run
from benchmarks.peers.flink.session import JVM, command_of

__all__ = ["PLAYS"]

_TOOL = "Flink's KafkaSink, EXACTLY_ONCE"
_TIMEOUT_MS = 15_000
_NEVER_MS = 900_000  # the brokers' longest
_HALTED = 137
_PROBLEM = re.compile(r"^\S+ (WARN|ERROR) (KafkaCommitter|CommitterOperator|CommitRequestImpl) (.*)$", re.MULTILINE)
_REQUEST = r" \(CommitRequestImpl.*\}\)"


@dataclass(frozen=True, slots=True)
class _Job:
    """A job into its own topic, with its checkpoints."""

    stage: Stage
    topic: str
    run: Run

    @property
    def seen(self) -> Counter[int]:
        return self.stage.in_topic(self.topic)

    @property
    def held(self) -> bool:
        """Return whether an open transaction holds readers."""
        return self.stage.kafka.held(self.topic)

    @property
    def is_ahead(self) -> bool:
        """Return whether a checkpoint's rows are committed, and the next rows' transaction is open."""
        return 0 < self.seen.total() < 2 * ROWS_AN_EPOCH and self.held  # a checkpoint may come between an epoch's rows

    def restored(self) -> str:
        """Run it to its end, from its last complete checkpoint. Return its report."""
        whole = [metadata.parent for metadata in self._checkpoints.glob("*/*/_metadata")]
        newest = max(whole, key=lambda folder: int(folder.name.removeprefix("chk-")))
        code, printed = self.run.whole(f"restore={newest}")
        problems = [f"{level} {re.sub(_REQUEST, '', text)}" for level, _, text in _PROBLEM.findall(printed)]
        return "; ".join([f"exit {code}", *(dict.fromkeys(problems) or ["no warning"])])

    @property
    def _checkpoints(self) -> Path:
        return self.stage.folder / "checkpoints"


def _timed_out(stage: Stage) -> Played:
    job = _job(stage, timeout_ms=_TIMEOUT_MS)
    job.run.dies("place=committing", f"after={2 * ROWS_AN_EPOCH}", code=_HALTED)
    require(job.is_ahead, f"one checkpoint is committed, the next open: {job.seen.total()} rows, held: {job.held}")
    committed = job.seen
    wait_until(lambda: not job.held, "the broker to abort what nobody committed")
    require(job.seen == committed, "the decided transaction is aborted")
    reported = job.restored()
    return Played(ids(FILES), {"Kafka": job.seen}, reported)


def _in_batch(stage: Stage) -> Played:
    job, mark = _job(stage, timeout_ms=_NEVER_MS), stage.folder / "stands"
    place = ("place=writing", f"after={ROWS_AN_EPOCH + ROWS_AN_EPOCH // 2}", f"mark={mark}")
    job.run.killed_when(lambda: mark.exists() and job.is_ahead, "rows in the topic that no checkpoint has", *place)
    reported = job.restored()
    return Played(ids(FILES), {"Kafka": job.seen}, reported)


PLAYS = (Play(_TOOL, TIMED_OUT, _timed_out), Play(_TOOL, IN_BATCH, _in_batch))


def _job(stage: Stage, timeout_ms: int) -> _Job:
    topic = stage.new_topic()
    given = {
        "sink": "kafka",
        "brokers": stage.kafka.bootstrap,
        "topic": topic,
        "prefix": topic,
        "producer.transaction.timeout.ms": timeout_ms,
        "rows": len(ids(FILES)),
        "each": ROWS_AN_EPOCH,
        "checkpoints": stage.folder / "checkpoints",
    }
    command = [*command_of("Faulted", stage.folder, JVM), *(f"{name}={value}" for name, value in given.items())]
    return _Job(stage, topic, Run(command, stage.folder))

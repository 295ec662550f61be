"""Small epochs in Kafka, without Spark: the commit of many participants, and the parts of a small epoch's time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise

from benchmarks.kafka_broker import Target, serving
from benchmarks.kafka_job import SMALL, HandJob, ms_since, small_batch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import Committable

__all__ = ["COMMIT", "EPOCH"]

_PARTICIPANTS = 16


@contextmanager
def _open_commit(setting: Setting) -> Iterator[Plan]:
    times = setting.scaled(10)
    with serving() as served:
        target = Target(served)
        variants = [
            Variant("committer", lambda folder: _commits(target, times, fresh=False)),
            Variant("fresh committer", lambda folder: _commits(target, times, fresh=True)),
        ]
        bounds = [
            Bound("commit_ms", "committer", at_most=100),
            Bound("slowest_ms", "committer"),
            Bound("commit_ms", "fresh committer"),
            Bound("slowest_ms", "fresh committer"),
        ]
        notes = [
            f"{_PARTICIPANTS} participants of {SMALL} rows, written by our writers beforehand",
            "committer: its connection is open; fresh committer: made for the commit, as after a restart",
            f"commit_ms is the median of a round's {times} epochs, slowest_ms the slowest of them",
            "a commit ends when readers see all rows, which is looked at each time",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        target.close()


def _commits(target: Target, times: int, *, fresh: bool) -> Work:
    job = HandJob(target.served.options(target.fresh()))

    def work() -> Metrics:
        taken = []
        with closing(job.committer):
            for _ in range(times):
                epoch, votes = _prepared(job)
                with closing(job.new_committer()) as other:
                    taken.append(job.commit(epoch, votes, other if fresh else job.committer))
                assert target.visible(), f"epoch {epoch} is committed, and can't be read"
        target.filled(times * _PARTICIPANTS * SMALL, times * _PARTICIPANTS)
        return {"commit_ms": statistics.median(taken), "slowest_ms": max(taken)}

    return work


def _prepared(job: HandJob) -> tuple[int, Sequence[Committable]]:
    """Write an epoch as so many tasks do, some at the same time."""
    epoch, ticket = job.open(_PARTICIPANTS)
    batch = small_batch()

    def participant(_: int) -> Committable:
        writer = job.writer(epoch, ticket, batch.schema)
        writer.write(batch)
        return writer.pre_commit()

    with ThreadPoolExecutor(4) as pool:
        return epoch, list(pool.map(participant, range(_PARTICIPANTS)))


@contextmanager
def _open_epoch(setting: Setting) -> Iterator[Plan]:
    times = setting.scaled(30, least=3)
    with serving() as served:
        target = Target(served)
        variants = [
            Variant(name, lambda folder, name=name: _epochs(target, name, times))  # type: ignore[misc]
            for name in ("plain", "fast", "fast, no mark")
        ]
        parts = ("open_ms", "slowest_open_ms", "write_ms", "flush_ms", "vote_ms", "look_ms", "begin_ms", "commit_ms")
        bounds = [Bound(part, variant.name) for variant in variants for part in (*parts, "epoch_ms")]
        notes = [
            f"2 participants of {SMALL} rows, one after the other, in one process; medians of a round's {times} epochs",
            "open: a writer is made, its transactional id taken; flush and vote (with the mark): parts of pre_commit",
            "look: the driver reads the mark, before the epoch and before its commit; begin: it opens the epoch",
            "epoch: the slower participant's parts, and the driver's",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        target.close()


def _epochs(target: Target, name: str, times: int) -> Work:
    chosen, _, unmarked = name.partition(", ")
    options = target.served.options(target.fresh(), writer=chosen)
    job = HandJob(options, lineage="") if unmarked else HandJob(options)

    def work() -> Metrics:
        parts: dict[str, list[float]] = {}
        with closing(job.committer):
            for _ in range(times):
                for name, taken in _epoch(job).items():
                    parts.setdefault(name, []).extend(taken)
        target.filled(times * 2 * SMALL, times * 2)
        medians = {name: statistics.median(taken) for name, taken in parts.items()}
        return {**medians, "slowest_open_ms": max(parts["open_ms"])}

    return work


def _epoch(job: HandJob) -> dict[str, list[float]]:
    """Run an epoch. Return the milliseconds of its parts, each for one participant."""
    look = _looked(job)
    started = time.perf_counter()
    epoch, ticket = job.open(2)
    begin = ms_since(started)
    done = [_participant(job, epoch, ticket) for _ in range(2)]
    look += _looked(job)
    commit = job.commit(epoch, [vote for vote, _ in done])
    parts = {name: [taken[name] for _, taken in done] for name in done[0][1]}
    slower = max(sum(taken.values()) for _, taken in done)
    whole = slower + look + begin + commit
    return {**parts, "look_ms": [look], "begin_ms": [begin], "commit_ms": [commit], "epoch_ms": [whole]}


def _looked(job: HandJob) -> float:
    """Read the mark as the core does. Return the milliseconds."""
    started = time.perf_counter()
    if job.context.lineage:
        job.committer.mark()
    return ms_since(started)


def _participant(job: HandJob, epoch: int, ticket: bytes) -> tuple[Committable, dict[str, float]]:
    batch = small_batch()
    moments = [time.perf_counter()]
    writer = job.writer(epoch, ticket, batch.schema)
    moments.append(time.perf_counter())
    writer.write(batch)
    moments.append(time.perf_counter())
    vote = writer.pre_commit()
    moments.append(time.perf_counter())
    opened, wrote, pre_committed = ((b - a) * 1000 for a, b in pairwise(moments))
    parts = {"open_ms": opened, "write_ms": wrote, "vote_ms": writer.vote_ms}
    return vote, {**parts, "flush_ms": pre_committed - writer.vote_ms}


COMMIT = Benchmark("kafka_commit", "Committing 16 participants of an epoch in Kafka.", _open_commit)
EPOCH = Benchmark("kafka_epoch", "Where the time of a small epoch goes in Kafka.", _open_epoch)

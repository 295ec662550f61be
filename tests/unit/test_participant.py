"""A task's part of an epoch: it counts what it hands to each sink, votes, and rolls back only what has not voted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.fakes import IdleBackend

from exactsink.contract import (
    BackendOptions,
    Committable,
    ConfigError,
    ExactsinkError,
    Fatal,
    Fenced,
    PreflightError,
    Retryable,
    Txn,
    Writer,
)
from exactsink.protocol.participant import SinkRows, no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, SinkPlan, Vote

ALL = 1 << 64
SCHEMA = pa.schema([("n", pa.int64())])
PLAN = EpochPlan("job", 7, 3, "ab", {"lake": SinkPlan(b"ticket"), "table": SinkPlan(b"other")})


class Fake(IdleBackend):
    """A backend whose writers report what was asked of them, and fail at the steps that `fail` names."""

    def __init__(self, fail: dict[str, BaseException] | None = None) -> None:
        super().__init__(BackendOptions())
        self.log: list[Any] = []
        self._fail = fail or {}

    def step(self, name: str, *reported: Any) -> None:
        self.log.append((name, *reported) if reported else name)
        if name in self._fail:
            raise self._fail[name]

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        self.step("open", ticket)
        return FakeWriter(self, txn)


class FakeWriter(Writer):
    def __init__(self, backend: Fake, txn: Txn) -> None:
        self._backend = backend
        self._txn = txn

    def write(self, batch: pa.RecordBatch) -> None:
        self._backend.step("write", batch.num_rows)

    def pre_commit(self) -> Committable:
        self._backend.step("pre_commit")
        return Committable(self._txn, 1000, b"its own")

    def abort(self) -> None:
        self._backend.step("abort")


def rows(*hashes: int) -> tuple[pa.RecordBatch, pa.Array]:
    """Rows with these 64-bit hashes, which the JVM gives as signed."""
    signed = [value - ALL if value >= 1 << 63 else value for value in hashes]
    return pa.record_batch([pa.array(range(len(hashes)), pa.int64())], schema=SCHEMA), pa.array(signed, pa.int64())


def run(plan: EpochPlan, backends: dict[str, Fake], *batches: SinkRows) -> list[Vote]:
    return list(write_partition(plan, backends, 4, 44, iter(batches), no_probe))


def test_a_vote_carries_the_frameworks_count_and_digest_beside_the_writers_own_count() -> None:
    backends = {"lake": Fake(), "table": Fake()}
    votes = run(PLAN, backends, *({"lake": lake, "table": rows()} for lake in (rows(1, 2), rows(), rows(5))))
    mine = Committable(PLAN.txn("lake", 4, 44), 1000, b"its own", digest=8)
    assert votes == [Vote("lake", 4, 3, mine, bytes=24), Vote("table", 4, 0, None)]
    assert backends["lake"].log == [("open", b"ticket"), ("write", 2), ("write", 1), "pre_commit"]
    assert backends["table"].log == []  # without rows no writer, no branch, no committable


@pytest.mark.parametrize("batches", [[[1 << 63, 1 << 63]], [[ALL - 1], [ALL - 1, (1 << 63) - 1], [3]]], ids=str)
def test_the_digest_is_the_sum_of_hashes_modulo_two_to_the_64(batches: list[list[int]]) -> None:
    plan = replace(PLAN, sinks={"lake": SinkPlan(b"")})
    (vote,) = run(plan, {"lake": Fake()}, *({"lake": rows(*hashes)} for hashes in batches))
    assert vote.committable is not None
    assert vote.committable.digest == sum(itertools.chain(*batches)) % ALL


def test_a_sink_not_asked_for_this_partition_writes_nothing_yet_every_batch_is_read() -> None:
    plan = replace(PLAN, sinks={"lake": SinkPlan(b"", frozenset({3, 4})), "table": SinkPlan(b"", frozenset({5}))})
    for partition, voting in ((4, ["lake"]), (6, [])):
        backends = {"lake": Fake(), "table": Fake()}
        batches = iter([{"lake": rows(1), "table": rows(2)}] * 3)
        votes = list(write_partition(plan, backends, partition, 44, batches, no_probe))
        assert [(vote.sink, vote.rows) for vote in votes] == [(sink, 3) for sink in voting]
        assert next(batches, "all read") == "all read"
        assert [name for name, backend in backends.items() if backend.log] == voting


BOTH: SinkRows = {"lake": rows(1, 2), "table": rows(3)}
THREE = replace(PLAN, sinks={name: SinkPlan(b"") for name in ("first", "second", "third")})


def three(fail: dict[str, BaseException]) -> dict[str, Fake]:
    """Three sinks, of which the second fails at a step."""
    return {"first": Fake(), "second": Fake(fail), "third": Fake()}


def run_three(backends: dict[str, Fake]) -> list[Vote]:
    return run(THREE, backends, dict.fromkeys(THREE.sinks, rows(1, 2)))


@pytest.mark.parametrize("kind", [Fatal, PreflightError])
@pytest.mark.parametrize("step", ["open", "write", "pre_commit"])
def test_an_error_that_no_retry_helps_comes_back_as_a_refusal_that_names_the_sink(
    step: str, kind: type[ExactsinkError]
) -> None:
    for what in ("bad rows", "sink second: bad rows"):
        (refused,) = run_three(three({step: kind(what, why="w", next="n")}))
        assert (refused.sink, refused.partition, refused.rows, refused.committable) == ("second", 4, 0, None)
        assert type(refused.refusal) is kind
        assert str(refused.refusal) == "sink second: bad rows: w\n  next: n"  # named once


ERRORS = [Retryable("busy"), Fenced("old"), ConfigError("c"), OSError("full"), KeyboardInterrupt(), SystemExit(1)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_other_error_is_raised_so_that_spark_tries_again(error: BaseException) -> None:
    for step in ("open", "write", "pre_commit"):
        with pytest.raises(type(error)) as raised:
            run_three(three({step: error}))
        assert raised.value is error


@pytest.mark.parametrize("error", [Fatal("no"), Retryable("no"), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
def test_who_has_not_voted_is_rolled_back_and_who_has_is_left_to_the_sweep(error: BaseException) -> None:
    """A participant that pre-committed, or tried to, may be decided as far as this task can know."""

    def log_of(step: str) -> list[list[str]]:
        backends = three({step: error})
        with suppress(type(error)):
            run_three(backends)
        return [[s for s in backend.log if isinstance(s, str)] for backend in backends.values()]

    assert log_of("open") == [["abort"], [], []]
    assert log_of("write") == [["abort"], ["abort"], []]
    assert log_of("pre_commit") == [["pre_commit"], ["pre_commit"], ["abort"]]


def test_a_rollback_that_fails_hides_neither_the_error_nor_another_rollback() -> None:
    backends = three({}) | {"first": Fake({"abort": OSError("gone")}), "third": Fake({"write": Retryable("busy")})}
    with pytest.raises(Retryable, match="busy"):
        run_three(backends)
    assert [backend.log[-1] for backend in backends.values()] == ["abort"] * 3


def test_an_error_of_the_rows_themselves_rolls_back_and_is_raised() -> None:
    def failing() -> Iterator[SinkRows]:
        yield BOTH
        raise RuntimeError("a user's function failed")

    backends = {"lake": Fake(), "table": Fake()}
    with pytest.raises(RuntimeError, match="user's function"):
        list(write_partition(PLAN, backends, 4, 44, failing(), no_probe))
    assert [backend.log[-1] for backend in backends.values()] == ["abort", "abort"]


def test_the_points_of_a_task_are_reported_around_its_work() -> None:
    reported: list[Any] = []
    backends = {"lake": Fake(), "table": Fake()}
    for backend in backends.values():
        backend.log = reported
    list(write_partition(PLAN, backends, 4, 44, [BOTH], lambda *point: reported.append(point)))
    write = [("write", "before", 7), ("write", 2), ("write", 1), ("write", "after", 7)]
    vote = [("pre_commit", "before", 7), "pre_commit", "pre_commit", ("pre_commit", "after", 7)]
    assert [step for step in reported if step[0] != "open"] == [*write, *vote]

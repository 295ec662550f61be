"""The protocol's values and errors: names that read back, proofs that can't be forged, errors that travel whole."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    ConfigError,
    ExactsinkError,
    Fatal,
    Fenced,
    Finding,
    InDoubt,
    InDoubtError,
    JobContext,
    LineageError,
    Lost,
    PreflightError,
    Refused,
    Retryable,
    Traits,
    Txn,
    Undecided,
    Unknown,
)

TXN = Txn(job="orders", epoch=12, sink="lake", generation=3, token="0a1b2c3d4e5f", partition=4, attempt=5)
LONG = 2**63 - 1
LONGEST = Txn("j" * 40, LONG, "s" * 40, LONG, "f" * 12, LONG, LONG)
FOREIGN = [
    *("", " orders.lake.g3-ab.e12.p4.a5", "orders.lake.g3-ab.e12.p4.a5\n", f"orders.lake.g{'1' * 5000}-ab.e12.p4.a5"),
    *(
        f"{'j' * 41}.lake.g3-ab.e12.p4.a5",
        f"orders.{'s' * 41}.g3-ab.e12.p4.a5",
        "orders.lake.g3-ab.e\u0661\u0662.p4.a5",
    ),
    *("orders", "orders.lake", "backup_2026", "orders.lake.g3-ab.e12.p4", "orders.lake.g3-ab.e12.p4.a5.tmp"),
    *("x.orders.lake.g3-ab.e12.p4.a5", "orders.lake.g3.e12.p4.a5", "orders.lake.g-ab.e12.p4.a5"),
    "orders..g3-ab.e12.p4.a5",
    *("Orders.lake.g3-ab.e12.p4.a5", "orders.la_ke.g3-ab.e12.p4.a5", "orders.lake.g3-xyz.e12.p4.a5"),
    # other spellings of an id
    *("orders.lake.g03-ab.e12.p4.a5", "orders.lake.g3-ab.e012.p4.a5", "orders.lake.g3-ab.e12.p00.a5"),
    *("orders.lake.g3-ab.e12.p4.a05", "orders.lake.g3-AB.e12.p4.a5", "orders.lake.g3-ab.e+12.p4.a5"),
    *("orders.lake.g3-ab.e-1.p4.a5", "orders.lake.g3-ab.e1_2.p4.a5"),
]


@pytest.mark.parametrize(
    "txn",
    [
        *(TXN, Txn("a", 0, "b", 0, "0", 0, 0), Txn("g1-a", 1, "e2-p3", 1, "ab", 1, 1)),
        *(Txn("-", 1, "-", 1, "ab", 1, 1), LONGEST),
    ],
    ids=lambda txn: txn.id[:30],
)
def test_an_id_reads_back_as_the_transaction_it_names(txn: Txn) -> None:
    assert Txn.parse(txn.id) == txn
    assert len(txn.id.encode()) <= 199


def test_an_id_begins_with_job_and_sink_and_differs_in_every_field() -> None:
    assert TXN.id == "orders.lake.g3-0a1b2c3d4e5f.e12.p4.a5"
    for field in dataclasses.fields(Txn):
        other = dataclasses.replace(TXN, **{field.name: "f00" if field.type == "str" else 77})
        assert other.id != TXN.id
        assert Txn.parse(other.id) == other


@pytest.mark.parametrize("name", FOREIGN, ids=lambda name: ascii(name[:40]))
def test_a_foreign_name_or_another_spelling_is_nobody_of_ours(name: str) -> None:
    assert Txn.parse(name) is None


def test_undecided_is_built_by_nobody_but_the_journal() -> None:
    with pytest.raises(TypeError, match="only the journal"):
        Undecided()
    with pytest.raises(TypeError):
        Undecided((InDoubt.of(TXN),))  # type: ignore[call-arg]


def test_a_participant_is_listed_by_the_stores_name_for_it_with_the_claim_it_was_begun_under() -> None:
    assert Committable(TXN, 1, b"").ref == TXN.id == InDoubt.of(TXN).ref
    assert Committable(TXN, 1, b"", store_ref="pool-7#2").ref == "pool-7#2"
    listed = InDoubt.of(TXN, age_seconds=1.5, deadline=9.0)
    assert listed == InDoubt(TXN.id, 3, "0a1b2c3d4e5f", 12, 1.5, 9.0)


@pytest.mark.parametrize(
    "value",
    [
        TXN,
        Committable(TXN, 7, b"\x00\xff", 2, 1.5, 2**64 - 1, "ref"),
        Committed(),
        AlreadyCommitted(),
        Lost("timed out"),
        Unknown("gone"),
        InDoubt.of(TXN),
        Finding("error", "no table", "CREATE TABLE"),
        Traits(True, True, True, 5.0, True),
        JobContext("orders", "lake", "/staging", 3, "ab"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_travels_between_processes_and_never_changes(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):  # slots make it a TypeError before 3.12
        value.epoch = 1


# errors

EXIT_CODES = {
    ExactsinkError: 1,
    Retryable: 75,
    Fatal: 1,
    Fenced: 4,
    InDoubtError: 3,
    ConfigError: 2,
    Refused: 5,
    LineageError: 5,
    PreflightError: 5,
}


class PluginsOwn(Fatal):
    """A plugin may have errors of its own."""


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items(), ids=lambda kind: getattr(kind, "__name__", ""))
def test_an_error_exits_by_what_the_caller_does_next(kind: type[ExactsinkError], code: int) -> None:
    assert kind("it failed").exit_code == code


def test_a_handler_of_one_error_catches_no_other_kind() -> None:
    """Only lineage and preflight are kinds of refusal."""
    kinds = [kind for kind in EXIT_CODES if kind is not ExactsinkError]
    related = {(a, b) for a in kinds for b in kinds if a is not b and issubclass(a, b)}
    assert related == {(LineageError, Refused), (PreflightError, Refused)}
    assert all(issubclass(kind, ExactsinkError) for kind in kinds)


@pytest.mark.parametrize("kind", [*EXIT_CODES, PluginsOwn])
def test_an_error_comes_back_whole_from_another_process(kind: type[ExactsinkError]) -> None:
    back = pickle.loads(pickle.dumps(kind("it failed", why="the disk is full", next="make room")))
    assert type(back) is kind
    assert (back.what, back.why, back.next) == ("it failed", "the disk is full", "make room")


@pytest.mark.parametrize(
    ("why", "next", "text"),
    [
        ("", "", "it failed"),
        ("no room", "", "it failed: no room"),
        ("", "make room", "it failed\n  next: make room"),
        ("no room", "make room", "it failed: no room\n  next: make room"),
    ],
)
def test_an_error_prints_what_happened_why_and_the_next_command(why: str, next: str, text: str) -> None:
    assert str(Fatal("it failed", why=why, next=next)) == text

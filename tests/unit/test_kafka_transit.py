"""A cluster on its way from one state to another: brokers that restart, transactions that are being ended."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.test_kafka_decision import ID, Scripted, session

from exactsink.contract import Finding, JobContext, PreflightError, Retryable
from exactsink.operate.preflight import Found
from exactsink_kafka import preflight
from exactsink_kafka.messages import Cluster, Described
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Transaction
from exactsink_kafka.wire import Wire

OPTIONS = KafkaOptions(bootstrap_servers="b:9092", topic="orders")
CTX = JobContext("shop", "orders", "")
STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


class Up:
    """A wire to a cluster that may be used."""

    def cluster(self) -> Cluster:
        return Cluster("c", (1, 2, 3), 5, 2)

    def end(self, transactions: Sequence[Transaction], *, commit: bool) -> Sequence[int]:
        return [49]


def looked(monkeypatch: pytest.MonkeyPatch, topic: preflight.Layout, min_insync: int = 1) -> list[Finding]:
    """Look at a cluster with this topic alone."""
    for name in ("check_settings", "connected"):
        monkeypatch.setattr(preflight, name, lambda *given: None)
    monkeypatch.setattr(preflight, "_look", lambda checks, *rest: checks.partitions(topic, min_insync))
    return list(preflight.findings(OPTIONS, CTX, Up(), pa.schema([])))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "min_insync", "said"),
    [
        (preflight.Layout("orders", 6, 3, 3, (1, 4)), 2, "2 of 6 partitions have no leader (1, 4)"),
        (preflight.Layout("orders", 6, 3, 1), 2, "1 of 3 replicas in sync"),
    ],
)
def test_an_election_or_a_broker_s_restart_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch, topic: preflight.Layout, min_insync: int, said: str
) -> None:
    with pytest.raises(Retryable) as raised:
        looked(monkeypatch, topic, min_insync)
    assert said in raised.value.what
    assert raised.value.next.startswith("start the brokers that hold them: kafka-topics.sh ")


def test_what_no_restart_of_a_broker_fixes_is_a_finding_beside_what_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(monkeypatch, preflight.Layout("orders", 6, 1, 1, (1,)), 2)
    assert ["have no leader" in finding.message for finding in found] == [True, False]
    with pytest.raises(PreflightError, match="have no leader"):
        Found({"orders": found}).refuse()
    assert looked(monkeypatch, preflight.Layout("orders", 6, 3, 3)) == []


def test_work_that_is_being_ended_is_listed_as_open_work_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another journal's, of this job's name, is found by it."""
    asked: list[Any] = []

    def answers(doing: str, keys: Sequence[int], again: object, once: Any) -> Any:
        asked.extend(request for request, _ in next(once(None, keys)))
        return {1: (0, SimpleNamespace(transaction_states=[]))}

    wire = Wire(OPTIONS, "me")
    monkeypatch.setattr(wire, "brokers", lambda: (1,))
    monkeypatch.setattr(wire, "_answers", answers)
    made = {f"{s}.g1-ab.s0": Described(Transaction(f"{s}.g1-ab.s0", 1, 0), s, 60.0, None, ()) for s in STATES}
    done = {"x": Described(Transaction("x", 1, 0), "CompleteAbort", 60.0, None, ())}  # since it was listed
    monkeypatch.setattr(wire, "describe", lambda ids: made | done)
    assert [one.state for one in wire.ongoing("")] == STATES
    assert asked[0].state_filters == STATES


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "CompleteCommit"])
def test_what_was_listed_while_it_was_being_ended_gets_no_other_end(state: str) -> None:
    """Version 5 of EndTxn takes an abort by the epoch that a commit's end raised it to."""
    wire = Scripted(states=[(state, 7, 5), ("CompleteCommit", 7, 5)])
    wire.ongoing = lambda prefix: [Described(Transaction(ID, 7, 5), state, 60.0, None, ())]  # type: ignore[attr-defined]
    [listed] = session(wire).listed()
    session(wire).abort(listed)
    assert wire.ended == []

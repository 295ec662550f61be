"""The journal in a database between processes: races, kills, and what Journal makes of two drivers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.pool import Pool
from tests.unit.sql_stores import JOB, OpenStore, decided, execute

from exactsink.contract import Fenced
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Decide
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.sql import JOURNAL_TABLE, SqlStore

pytest_plugins = ["tests.unit.sql_fixtures"]

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120  # seconds until a test that hangs says so
ROUNDS = 20


def race(url: str, name: str, barrier: Any, wins: Any) -> None:
    """Put every seq as the other one does, at the same moments, the first into no table; report which were mine."""
    mine, store = [], SqlStore(url, JOB)
    for seq in range(ROUNDS):
        barrier.wait()
        try:
            store.put(seq, name.encode())
        except SeqTaken:
            continue
        mine.append(seq)
    store.close()
    wins.put((name, mine))


def test_of_two_processes_that_race_for_a_seq_exactly_one_wins(sql_url: str, open_sql_store: OpenStore) -> None:
    barrier, wins = SPAWN.Barrier(2, timeout=PATIENCE), SPAWN.Queue()
    racers = [SPAWN.Process(target=race, args=(sql_url, name, barrier, wins), daemon=True) for name in ("one", "other")]
    for racer in racers:
        racer.start()
    won = dict(wins.get(timeout=PATIENCE) for _ in racers)
    for racer in racers:
        racer.join(PATIENCE)
    assert [racer.exitcode for racer in racers] == [0, 0]
    owners = sorted((seq, name) for name, seqs in won.items() for seq in seqs)
    assert [seq for seq, _ in owners] == list(range(ROUNDS))
    assert [(seq, open_sql_store().read(seq)) for seq in range(ROUNDS)] == [
        (seq, name.encode()) for seq, name in owners
    ]


def put_at_once(url: str, barrier: Any) -> None:
    store = SqlStore(url, f"job-{os.getpid()}")
    barrier.wait()
    store.put(0, b"x")
    store.close()


@pytest.mark.parametrize("round", range(4))
def test_two_processes_may_make_the_table_at_once(sql_url: str, round: int) -> None:
    barrier = SPAWN.Barrier(2, timeout=PATIENCE)
    openers = [SPAWN.Process(target=put_at_once, args=(sql_url, barrier), daemon=True) for _ in range(2)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(PATIENCE)
    assert [opener.exitcode for opener in openers] == [0, 0]
    assert execute(sql_url, f"SELECT count(*) FROM {JOURNAL_TABLE}") == [(2,)]


def put_and_die(url: str, event: str) -> None:
    store = SqlStore(url, JOB)
    assert list(store.list()) == [0]
    target = Engine if event == "commit" else Pool
    sa.event.listen(target, event, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    store.put(1, b"x")


@pytest.mark.parametrize(("event", "stands"), [("commit", None), ("checkin", b"x")], ids=["before", "after"])
def test_killed_before_or_after_the_commit_of_a_put(
    sql_url: str, open_sql_store: OpenStore, event: str, stands: bytes | None
) -> None:
    kept = open_sql_store()
    kept.put(0, b"first")
    child = SPAWN.Process(target=put_and_die, args=(sql_url, event), daemon=True)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    assert kept.read(1) == stands
    if stands is None:
        kept.put(1, b"again")
    assert sorted(kept.list()) == [0, 1]


def test_two_drivers_claim_decide_fence_and_trim(sql_url: str, open_sql_store: OpenStore) -> None:
    old, new = (Journal(open_sql_store(), keep_epochs=10, wait=lambda attempt: None) for _ in range(2))
    assert old.claim("query", "driver-1").generation == 1
    for epoch in range(12):
        old.decide(decided(epoch))
        old.trim()
    assert new.claim("query", "driver-2").generation == 2
    with pytest.raises(Fenced, match="driver-2"):
        old.decide(decided(12))
    new.decide(decided(12))
    log = Journal(open_sql_store(), wait=lambda attempt: None).read()
    assert log == new.log
    assert [claim.driver for claim in log.claims] == ["driver-1", "driver-2"]
    assert log.decision is not None
    assert (log.decision.epoch, log.decision.fingerprint) == (12, "input-12")
    decisions = [record.epoch for record in new.history() if isinstance(record, Decide)]
    assert decisions == list(range(2, 13))  # ten are kept, and what came after the deletion

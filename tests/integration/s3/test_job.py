"""A job whose checkpoint, journal, state and staged rows are all on S3: what its commands read and do there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from exactsink.cli.opened import Opened
from exactsink.contract import Fatal, JobContext, LineageError, Mark
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.driver import Driver
from exactsink.protocol.coordinator import State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.records import Decide, DecidedSink, Expected
from exactsink.testing import Session
from exactsink.toolkit.storage import ObjectPath
from tests.servers.s3 import S3
from tests.unit.conftest import Ended
from tests.unit.conftest import command as command  # the fixture

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})
Command = Callable[..., Ended]


@pytest.fixture
def job(tmp_path: Path, place: ObjectPath) -> str:
    """A job's file; its query is query-1, which has done batch 0 and begun batch 1."""
    checkpoint = place / "chk"
    for name, text in {"metadata": '{"id": "query-1"}', "offsets/0": "v1\n{}\n5", "offsets/1": "v1\n{}\n9"}.items():
        (checkpoint / name).replace(text.encode())
    (checkpoint / "commits/0").replace(b"v1\n{}")
    (checkpoint / "commits/.1.tmp").replace(b"v1\n{}")
    file = tmp_path / "job.toml"
    file.write_text(
        f'[job]\nname = "orders"\ncheckpoint = "{str(checkpoint).replace("s3:", "s3a:")}"\n'
        f'[sinks.table]\nbackend = "idempotent_upsert"\nurl = "sqlite:///{tmp_path}/t.db"\ntable = "t"\n'
        'keys = ["id"]\ncreate = true\n'
    )
    return str(file)


def decided(job: str, place: ObjectPath) -> Driver:
    """Leave epoch 1 decided and not committed, by a driver that seems to run; return it."""
    opened = Opened.of(job)
    driver = Driver(opened.history, opened.sinks, Events("orders", []))
    driver.coordinator.start("query-1", lambda epoch: True)
    claim = driver.journal.log.claims[-1]
    sink = opened.sinks["table"]
    ctx = JobContext("orders", "table", sink.staging, claim.generation, claim.lineage)
    session = Session(sink.backend, ctx, claim.token)
    birth, votes = session.put_birth(), session.prepare(0, [ROWS, ROWS])
    named = DecidedSink(sink.kind, sink.backend.strategy, sink.backend.target, tuple(votes))
    now = Mark(claim.lineage, 0, frozenset([claim.token]), 2)
    marks = (Expected("table", sink.backend.target, now, birth),)
    input_end = Checkpoint(place / "chk").fingerprint(0)
    driver.journal.decide(Decide(0, claim.generation, input_end, {"table": named}, marks=marks))
    driver.heartbeat.write(State(None, claim.generation, "host:17", time.time()))
    return driver


def test_commands_read_a_history_on_s3_and_recover_what_it_decided(
    job: str, place: ObjectPath, command: Command
) -> None:
    driver = decided(job, place)
    assert {name.partition("/")[0] for name in (place / "chk.exactsink").names()} == {
        "journal",
        "staging",
        "state.json",
    }
    status = command("status", job, "--within", "60", "--json")
    assert (status.code, status.body["last_decided_epoch"], status.body["driver_ended"]) == (0, 0, False)
    assert (status.body["state"], status.body["sinks"]["table"]["prepared"]) == ("at work", 2)
    assert "may be running" in command("recover", job).err
    driver.heartbeat.close()
    ended = command("recover", job)
    assert (ended.code, ended.err) == (0, "")
    assert (place / "chk.exactsink/staging/table").names() == []
    assert [line.split()[3] for line in command("history", job).out.splitlines()[1:3]] == ["claim", "decide"]
    assert command("rebase", job).code == 0
    status = command("status", job, "--within", "60", "--json")
    assert (status.code, status.body["last_complete_epoch"], status.body["driver_ended"]) == (0, 0, True)
    file = Path(job)
    file.write_text(file.read_text().replace("s3a://", "s3n://"))
    assert command("status", job, "--within", "60", "--json").body == status.body


def test_a_checkpoint_is_read_beside_the_marks_that_s3a_leaves(job: str, place: ObjectPath) -> None:
    checkpoint, folder = Checkpoint(place / "chk"), place / "chk"
    for mark in ("", "commits/", "state/"):
        folder.fs.call_s3("put_object", Bucket=place.url.split("/")[2], Key=f"jobs/chk/{mark}", Body=b"")
    assert (checkpoint.query_id(), checkpoint.next_batch(), checkpoint.is_stateful()) == ("query-1", 1, True)
    assert (checkpoint.previous(1), checkpoint.previous(0)) == (checkpoint.fingerprint(0), "")
    assert sorted((folder / "commits").names()) == [".1.tmp", "0"]
    assert checkpoint.source_ends(1) == ("9",)
    with pytest.raises(LineageError, match="no offsets of batch 2"):
        checkpoint.fingerprint(2)
    new = Checkpoint(place / "new")
    assert (new.query_id(), new.next_batch(), new.is_stateful()) == (None, 0, False)


@pytest.mark.parametrize("wrong", ["bucket", "secret"])
def test_a_checkpoint_that_cannot_be_read_is_never_taken_for_none(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    url = "s3://no-such-bucket-here/chk" if wrong == "bucket" else f"{place}/chk"
    new = Checkpoint(ObjectPath.of(url, skip_instance_cache=True))
    for read in (new.query_id, new.next_batch, new.is_stateful, partial(new.previous, 1), partial(new.fingerprint, 1)):
        with pytest.raises(Fatal, match="can't be read"):
            read()


def test_the_journals_place_is_tried_by_preflight(
    job: str, tmp_path: Path, place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = Opened.of(job).history
    assert list(history.check()) == []
    monkeypatch.setattr(ObjectPath, "create", lambda path, data: path.replace(data) is None)
    [refused] = history.check()
    assert (refused.severity, "postgresql+psycopg://" in refused.fix) == ("error", True)
    assert (place / "chk.exactsink").names() == []
    assert list(replace(history, journal_url=SecretStr("sqlite:///j.db")).check()) == []
    assert list(replace(history, folder=tmp_path).check()) == []


def test_no_secret_is_kept(job: str, place: ObjectPath, s3: S3) -> None:
    decided(job, place).close()
    kept = b"".join((place / name).read_bytes() for name in place.listed(deep=True))
    assert b"claim" in kept
    assert s3.environment["AWS_SECRET_ACCESS_KEY"].encode() not in kept

"""`status`: decided minus proven in each bad state of a job, and whether a person or a start is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job
from tests.unit.two_sinks import Shop

from exactsink.cli.opened import Opened
from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committer,
    Fatal,
    JobContext,
    Lost,
    Retryable,
    Standing,
    Unknown,
)
from exactsink.operate.views import look
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Resolve
from exactsink.testing.wrapped import WrappedCommitter
from exactsink_files.backend import FilesBackend
from exactsink_files.marks import MarkFolder

Command = Callable[..., Ended]
WAIT = ("--within", "60")  # a busy machine is no store that is down


@pytest.fixture
def status(command: Command) -> Callable[..., Ended]:
    def ask(job: Shop | Job, *more: str) -> Ended:
        return command("status", job.file, *WAIT, "--json", *more)

    return ask


def counts(body: Any, *words: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(sink[word] for word in words) for name, sink in body["sinks"].items()}


def test_what_is_decided_and_not_proven_is_counted_by_sink_with_what_it_waits_for(
    in_doubt: Shop, command: Command, status: Callable[..., Ended]
) -> None:
    ended = status(in_doubt)
    assert (ended.code, ended.body["state"], ended.body["exit_code"]) == (3, "in doubt", 3)
    assert counts(ended.body, "committed", "prepared") == {"lake": (0, 1), "table": (0, 1)}
    assert ended.body["sinks"]["lake"]["held_back_by"] == ["table"]
    assert (ended.body["last_decided_epoch"], ended.body["last_complete_epoch"]) == (1, 0)
    [listed] = ended.body["sinks"]["table"]["decided"]
    assert (listed["rows"], listed["state"], listed["evidence"]) == (3, "prepared", None)
    shown = command("status", in_doubt.file, *WAIT)
    lines = {
        f"{name}: {in_doubt.folder}/{place}"
        for name, place in (("checkpoint", "chk"), ("journal", "chk.exactsink/journal"))
    }
    assert {*lines, f"staging: {in_doubt.folder}/chk.exactsink/staging", "state: in doubt"} <= set(
        shown.out.splitlines()
    )
    assert f"  table: prepared {listed['ref']}\n" in shown.out
    assert "  lake: held back by table, which it comes after\n" in shown.out
    assert "2 of 2 decided participants of epoch 1 are not proven committed" in shown.err
    assert f"next: exactsink run {in_doubt.file}, or exactsink recover {in_doubt.file}" in shown.err


def test_a_driver_at_work_needs_nobody_until_its_heartbeat_is_old(in_doubt: Shop, status: Callable[..., Ended]) -> None:
    for age, code, state in ((1.0, 0, "at work"), (61.0, 3, "in doubt")):
        in_doubt.heartbeat(age)
        ended = status(in_doubt)
        assert (ended.code, ended.body["state"]) == (code, state)
        assert counts(ended.body, "prepared") == {"lake": (1,), "table": (1,)}


def test_a_store_that_is_away_is_the_drivers_to_wait_for(
    in_doubt: Shop, status: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: FilesBackend, ctx: JobContext) -> Committer:
        raise Retryable("the lake is away")

    monkeypatch.setattr(FilesBackend, "committer", away)
    for age, code in ((1.0, 0), (61.0, 3)):
        in_doubt.heartbeat(age)
        ended = status(in_doubt)
        assert (ended.code, counts(ended.body, "not_asked")["lake"]) == (code, (1,))


def test_once_recovered_all_is_proven_whatever_the_state_file_says(
    in_doubt: Shop, command: Command, status: Callable[..., Ended]
) -> None:
    in_doubt.sql("DROP TRIGGER closed")
    assert command("recover", in_doubt.file).code == 0
    (in_doubt.folder / "chk.exactsink" / "state.json").write_text("{")  # nonsense hides nothing else
    ended = status(in_doubt)
    assert (ended.code, ended.body["state"], ended.body["last_complete_epoch"]) == (0, "proven", 1)
    assert counts(ended.body, "committed", "prepared") == {"lake": (1, 0), "table": (1, 0)}
    assert status(in_doubt).body["heartbeat_age_seconds"] is None


@dataclass
class Answering(WrappedCommitter):
    """A committer that has found out how all that is decided stands."""

    real: Committer
    standing: Standing

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        return [self.standing] * len(committables)


@pytest.mark.parametrize(
    ("standing", "age", "code", "then"),
    [
        (Unknown("no trace"), 1.0, 3, "exactsink indoubt resolve {} --epoch 1 --sink lake --as committed --reason"),
        (Unknown("no trace"), 61.0, 3, "exactsink indoubt resolve {} --epoch 1 --sink lake --as committed --reason"),
        (Lost("rolled back"), 61.0, 3, "exactsink run {} (it writes them again)"),
        (Lost("rolled back"), 1.0, 0, ""),
    ],
)
def test_what_is_lost_needs_a_driver_and_what_is_unknown_a_person(
    in_doubt: Shop,
    standing: Lost | Unknown,
    age: float,
    code: int,
    then: str,
    status: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = FilesBackend.committer
    monkeypatch.setattr(FilesBackend, "committer", lambda self, ctx: Answering(real(self, ctx), standing))
    in_doubt.heartbeat(age)
    ended = status(in_doubt)
    word = type(standing).__name__.lower()
    assert (ended.code, counts(ended.body, word, "prepared")) == (code, {"lake": (1, 0), "table": (0, 1)})
    assert [d["evidence"] for d in ended.body["sinks"]["lake"]["decided"]] == [standing.evidence]
    assert then.format(in_doubt.file) in ended.err
    opened = Opened.of(in_doubt.file)
    with closing(opened.history.journal(lambda attempt: None)) as journal:
        journal.claim("query-1", "operator")
        refs = tuple(journal.log.decision.refs("lake"))  # type: ignore[union-attr]
        journal.keep(Resolve("me", "seen", 1, "lake", "committed", refs, 1))
    resolved = (1, 0) if word == "unknown" else (0, 1)
    assert counts(status(in_doubt).body, "committed", "lost")["lake"] == resolved, "a person's word is for the unknown"


def test_a_store_that_says_committed_where_its_mark_does_not_prove_it_is_not_believed(
    in_doubt: Shop, status: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FilesBackend.committer
    monkeypatch.setattr(FilesBackend, "committer", lambda self, ctx: Answering(real(self, ctx), AlreadyCommitted()))
    ended = status(in_doubt)
    assert (ended.code, counts(ended.body, "committed", "unknown")["lake"]) == (3, (0, 1))
    assert "the target is an older copy, and lacks rows of epochs 1 to 1" in ended.err


@pytest.mark.parametrize(
    ("older", "code", "state", "says"),
    [
        ("shop.db", 3, "in doubt", "the target is an older copy, and lacks rows of epochs 1 to 2"),
        ("chk.exactsink/journal", 5, "another history", "the journal went back in time"),
    ],
)
def test_a_target_or_a_journal_that_went_back_says_what_is_lacking(
    shop: Shop, older: str, code: int, state: str, says: str, status: Callable[..., Ended]
) -> None:
    place, copy = shop.folder / older, shop.folder / "copy"
    shop.epochs(0)
    shutil.copytree(place, copy) if place.is_dir() else shutil.copy(place, copy)
    shop.epochs(1, 2)
    assert status(shop).code == 0
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    copy.rename(place)
    ended = status(shop)
    assert (ended.code, ended.body["state"], says in ended.err) == (code, state, True), ended.err
    assert says in ended.body["sinks"]["table"]["problem"]["why"]


HANGS = """
import concurrent.futures, sys, threading
from exactsink.cli.main import main
from exactsink_idempotent_upsert.backend import UpsertBackend

def hang(*args):
    concurrent.futures.ThreadPoolExecutor().submit(threading.Event().wait).result()

UpsertBackend.committer = hang
sys.exit(main())
"""


def test_a_store_that_hangs_hides_no_other_sink_and_keeps_no_process(in_doubt: Shop) -> None:
    """Its connection never answers; only a process that leaves it behind ends."""
    arguments = [sys.executable, "-c", HANGS, "status", in_doubt.file]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 3, ended.stderr
    assert "table: not asked: sink table has not answered within 1.5 s" in ended.stdout
    assert "lake: prepared shop.lake.g" in ended.stdout


def test_foreign_work_has_a_code_of_its_own(job: Job, command: Command, status: Callable[..., Ended]) -> None:
    claim, votes = job.decided()
    job.vote(FOREIGN, 4, 9)
    assert status(job).code == 3, "what is decided comes first"
    job.session(claim).commit(0, votes[:2])
    job.checkpoint("query-1", 0)
    ended = status(job)
    assert (ended.code, ended.body["state"]) == (6, "foreign work")
    assert counts(ended.body, "committed", "undecided", "foreign") == {"lake": (2, 1, 1)}
    assert f"exactsink recover {job.file} --sweep-token ffffffffffff" in ended.err
    assert command("recover", job.file, "--sweep-token", "ffffffffffff", "--take-over").code == 0
    assert status(job).code == 0
    shutil.rmtree(job.history)
    job.vote(FOREIGN, 4, 9)
    ended = status(job)
    assert (ended.code, counts(ended.body, "foreign")) == (5, {"lake": (1,)}), "its marks are of a journal that is gone"


def test_in_the_midst_of_a_commit_rows_show_and_nothing_went_back(
    shop: Shop, command: Command, status: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have their names, and the mark is begun: so it stands in each commit, and when a driver dies there."""

    def dies(self: MarkFolder, name: str) -> None:
        raise Fatal("the driver dies here")

    shop.epochs(0)
    with monkeypatch.context() as patched:
        patched.setattr(MarkFolder, "finish", dies)
        shop.epochs(1)
    for age, code in ((1.0, 0), (61.0, 3)):
        shop.heartbeat(age)
        ended = status(shop)
        assert (ended.code, counts(ended.body, "prepared", "unknown")["lake"]) == (code, (1, 0))
        assert "rebase" not in ended.err
    assert command("recover", shop.file, "--take-over").code == 0
    assert status(shop).body["state"] == "proven"


def test_a_sink_that_the_config_lacks_may_hold_work_until_its_epoch_is_proven(
    in_doubt: Shop, command: Command, status: Callable[..., Ended]
) -> None:
    in_doubt.edit("[sinks.lake]", "[sinks.pond]")
    ended = status(in_doubt)
    [former] = ended.body["former_sinks"]
    assert (ended.code, former["sink"], former["not_asked"], former["asked"]) == (3, "lake", 1, False)
    assert "put [sinks.lake] back as it was" in ended.err
    assert "lake (not in the config)" in command("status", in_doubt.file, *WAIT).out
    in_doubt.edit("[sinks.pond]", "[sinks.lake]")
    in_doubt.sql("DROP TRIGGER closed")
    assert command("recover", in_doubt.file).code == 0
    in_doubt.edit("[sinks.lake]", "[sinks.pond]")
    ended = status(in_doubt)
    assert (ended.code, ended.body["former_sinks"]) == (0, [])


def test_a_job_that_never_ran_says_so_and_nothing_is_made(job: Job, command: Command) -> None:
    shown = command("status", job.file, *WAIT)
    assert (shown.code, "state: this job has not run yet" in shown.out.splitlines()) == (0, True)
    assert (command("runs", job.file).code, os.listdir(job.folder)) == (0, ["job.toml"])


def test_the_page_names_every_field(in_doubt: Shop, status: Callable[..., Ended]) -> None:
    body = status(in_doubt).body
    page = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()
    named = set(re.findall(r"`(\w+)`", page[page.index("## status") : page.index("## runs")]))
    sinks = body["sinks"].values()
    listed = [item for sink in sinks for part in ("decided", "held") for item in sink[part]]
    assert {key for part in (body, *sinks, *listed) for key in part} <= named


def test_another_jobs_journal_and_one_that_is_gone_are_no_health(in_doubt: Shop, status: Callable[..., Ended]) -> None:
    in_doubt.edit('name = "shop"', 'name = "store"')
    ended = status(in_doubt)
    assert (ended.code, "the journal belongs to job shop, and this is job store" in ended.err) == (5, True)
    in_doubt.edit('name = "store"', 'name = "shop"')
    in_doubt.edit("[sinks.lake]", f'journal = "sqlite:///{in_doubt.folder}/empty.db"\n[sinks.lake]')
    ended = status(in_doubt)
    assert (ended.code, ended.body["state"]) == (5, "another history")
    assert "the journal is empty, and this job has run" in ended.err


def test_a_driver_that_decides_while_it_is_asked_is_no_bad_state(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the journal is followed by an epoch: every mark is above what was read. Clients come first."""
    imported: list[str] = []
    monkeypatch.setattr("exactsink.operate.views.import_clients", lambda sinks, job: imported.append(job))
    shop.epochs(0)
    opened, epochs = Opened.of(shop.file), iter(range(1, 9))
    with closing(opened.operator()) as operator:

        def read() -> Log:
            log = operator.read()
            shop.epochs(next(epochs))
            return log

        log, views = look(opened.history, opened.sinks, read, operator.whole, seconds=60)
    assert log.decision is not None
    assert [(view.problem, view.is_proven) for view in views] == [(None, True), (None, True)]
    assert imported == ["shop"], "once, before all looks"


def test_work_of_a_claim_that_is_made_meanwhile_is_not_foreign(job: Job) -> None:
    claim, votes = job.decided()
    job.session(claim).commit(0, votes[:2])
    job.checkpoint("query-1", 0)
    opened = Opened.of(job.file)
    with closing(opened.operator()) as operator:

        def read() -> Log:
            log = operator.read()
            if log.last_generation == 1:
                job.vote(job.journal.claim("query-1", "host:18"), 1, 0)
            return log

        _, [view] = look(opened.history, opened.sinks, read, operator.whole, seconds=60)
    assert (view.is_proven, view.holds("undecided"), view.holds("foreign")) == (True, 2, 0)


def test_heartbeat_and_driver_are_said(in_doubt: Shop, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    at = time.time()
    in_doubt.heartbeat(0.0)
    monkeypatch.setattr("exactsink.cli.status.time.time", lambda: at + 12.34)
    assert 12.0 <= command("status", in_doubt.file, "--json", *WAIT).body["heartbeat_age_seconds"] <= 12.4


def test_a_heartbeat_of_the_future_is_no_driver_at_work(in_doubt: Shop, command: Command) -> None:
    in_doubt.heartbeat(-3600.0)
    for name, code in (("status", 3), ("recover", 4)):
        ended = command(name, in_doubt.file, *(WAIT if name == "status" else ()))
        assert (ended.code, "s ahead of this machine's clock" in ended.err) == (code, True), ended.err
    assert "s ahead of this machine's clock\n" in command("status", in_doubt.file, *WAIT).out
    in_doubt.heartbeat(-2.0)  # clocks differ a little
    assert command("status", in_doubt.file, *WAIT).code == 0


def test_undecided_work_of_a_dead_driver_needs_a_start(
    job: Job, command: Command, status: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks and open transactions hold up others."""
    job.checkpoint("query-1")
    job.vote(job.journal.claim("query-1", "host:17"), 0, 0)
    for at, code, word in ((time.time(), 0, "proven"), *((at, 3, "undecided work") for at in (time.time() - 61, 0.0))):
        job.heartbeat(at)
        ended = status(job)
        assert (ended.code, ended.body["state"]) == (code, word)
    assert ended.body["error"]["next"] == f"exactsink run {job.file}, or exactsink recover {job.file}"
    job.heartbeat(time.time())  # until its sinks have been looked at
    monkeypatch.setattr("exactsink.cli.status.look", lambda *a, **more: (look(*a, **more), job.heartbeat(0.0))[0])
    assert status(job).body["state"] == "proven"
    assert command("recover", job.file).code == status(job).code == 0


ODD = ["soon", None, True, [], float("nan"), float("inf"), -1.0, 10**400]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("field", ["heartbeat", "generation", "complete_epoch", "driver"])
def test_no_command_fails_on_an_odd_state_file(shop: Shop, command: Command, field: str, value: object) -> None:
    shop.epochs(0)
    path = shop.folder / "chk.exactsink" / "state.json"
    odd = {"complete_epoch": 0, "generation": 1, "driver": "host:1", "heartbeat": 1000.0, field: value}
    path.write_text(json.dumps(odd))
    codes = {name: command(name, shop.file).code for name in ("status", "stop", "recover")}
    assert (codes["status"], codes["recover"], codes["stop"] in (0, 75)) == (0, 0, True)

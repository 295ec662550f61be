"""What operators do to a job without Spark: recover, adopt, history, init. Each claims first, and nothing is lost."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job

from exactsink.contract import JobContext, Retryable
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.config import load_config
from exactsink.protocol.journal.records import Action, Clean, Settled
from exactsink.protocol.reach import Reach
from exactsink.protocol.sweep import Sweep

Command = Callable[..., Ended]


def _lose_a_decided_file(job: Job) -> None:
    job.decided()
    for path in (job.folder / "lake" / "_exactsink").rglob("*.tmp"):
        path.unlink()


def _bound(job: Job) -> tuple[str | None, int, int]:
    log = job.journal.read()
    return log.query_id, log.base, log.next_epoch


# recover


def test_recover_commits_what_is_decided_and_sweeps_the_rest(job: Job, command: Command) -> None:
    job.decided()
    assert job.rows() == 0
    ended = command("recover", job.file)
    assert ended.code == 0
    assert "epoch 0 is committed in every sink" in ended.out
    assert job.rows() == 6
    assert [path.name for path in (job.folder / "lake" / "_exactsink").iterdir()] == ["orders.lake"]  # its marks
    log = job.journal.read()
    [action] = [kept for kept in log.anchors if isinstance(kept, Action)]
    assert (log.last_generation, action.command, action.outcome) == (2, "recover", "recovered by an operator")
    assert action.who.endswith(platform.node())
    assert action.settled == (Settled("lake", committed=2, swept=1),)
    assert command("recover", job.file).code == 0
    assert job.rows() == 6
    body = command("status", job.file, "--json").body
    assert (body["last_complete_epoch"], body["driver_ended"]) == (0, True)


@pytest.mark.parametrize(
    ("query_id", "done", "expected"),
    [("query-1", (0,), True), ("query-1", (7,), True), ("query-1", (), False), ("query-9", (0,), False)],
)
def test_only_the_journals_own_query_says_that_an_epoch_is_done(
    job: Job, query_id: str, done: tuple[int, ...], expected: bool
) -> None:
    job.decided()
    job.checkpoint(query_id, *done)
    checkpoint, log = Checkpoint(job.folder / "chk"), job.journal.read()
    assert checkpoint.is_epoch_done(0, log) is expected
    adopted = job.journal
    adopted.claim("query-1", "operator")
    adopted.adopt("query-9", 5, "operator")
    assert checkpoint.is_epoch_done(0, adopted.read()), "committed in every sink before the checkpoint was adopted"
    job.checkpoint("query-9", 7)  # Spark has purged its older records
    assert [checkpoint.is_epoch_done(epoch, adopted.log) for epoch in (0, 6, 7, 8)] == [True, True, True, False]


def test_a_mistyped_token_is_refused_and_a_swept_one_may_come_again(job: Job, command: Command) -> None:
    job.decided()
    job.vote(FOREIGN, 4, 9)
    for more in ((), ("--dry-run",), ("--sink", "lake", "--take-over", "--yes", "--reason", "r")):
        given = [each for token in (FOREIGN.token, "ffffffffff0") for each in ("--sweep-token", token)]
        ended = command("recover", job.file, *given, *more)
        assert (ended.code, "of token ffffffffff0" in ended.err or "has token ffffffffff0" in ended.err) == (2, True)
    assert job.rows() == 0
    for _ in range(2):
        assert command("recover", job.file, "--sweep-token", FOREIGN.token, "--take-over").code == 0


@pytest.mark.parametrize("name", ["recover", "adopt"])
def test_a_job_whose_driver_may_live_is_refused_without_take_over(job: Job, name: str, command: Command) -> None:
    job.decided()
    shutil.rmtree(job.folder / "chk")
    job.heartbeat(time.time())
    ended = command(name, job.file)
    assert ended.code == 4
    assert "driver host:17 may be running" in ended.err
    assert "--take-over" in ended.err
    assert (job.journal.read().last_generation, job.rows()) == (1, 0)
    assert command(name, job.file, "--take-over").code == 0
    assert job.rows() == 6


def test_recover_of_an_empty_journal_does_nothing(job: Job, command: Command) -> None:
    ended = command("recover", job.file)
    assert (ended.code, "nothing to recover" in ended.out) == (0, True)
    assert not job.history.exists()


def test_what_a_deleted_journal_left_is_shown_and_swept_by_its_tokens(job: Job, command: Command) -> None:
    """Its marks stand in the target: they stop no sweep, but a start."""
    job.decided()
    token = job.journal.read().claims[-1].token
    job.sink.backend.committer(JobContext("orders", "lake", "", 1, token)).put_birth()
    shutil.rmtree(job.history)
    for options in ((), ("--dry-run",)):
        ended = command("recover", job.file, *options)
        assert (ended.code, f"--sweep-token {token}" in ended.err, job.history.exists()) == (5, True, False)
    sweep = ("recover", job.file, "--sweep-token", token, "--reason", "the folder was deleted")
    assert [(command(*sweep, *how).code, job.history.exists()) for how in ((), ("--dry-run",))] == [(4, False)] * 2
    dry = command(*sweep, "--take-over", "--dry-run")
    assert (dry.code, job.history.exists()) == (0, False)
    for path in (job.folder / "lake").rglob("*.e0.*"):
        os.utime(path, (time.time() - 61,) * 2)
    ended = command(*sweep)
    assert dry.out.endswith("none is decided, and nothing would be in doubt\n")
    assert ended.out.endswith("recovered: none is decided, and nothing is in doubt\n")
    _, action, clean = job.journal.read().anchors
    assert isinstance(action, Action)
    assert (action.reason, action.settled) == ("the folder was deleted", (Settled("lake", swept=3),))
    assert (isinstance(clean, Clean), job.rows()) == (True, 0)
    assert not list((job.folder / "lake" / "_exactsink").glob("*.e0.*"))
    ended = command("recover", job.file)
    assert (ended.code, "exactsink rebase" in ended.err) == (5, True)
    assert "another journal fed this target" in ended.err


def test_a_sweep_without_a_journal_is_not_clean_if_a_sink_gives_no_answer_meanwhile(
    job: Job, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(self: Sweep, committers: object, log: object, mine: object, tokens: object, reach: Reach) -> object:
        reach.aside["lake"] = Retryable("the store is away")
        return {}

    job.vote(FOREIGN, 4, 9)
    monkeypatch.setattr(Sweep, "older", older)
    assert command("recover", job.file, "--sweep-token", FOREIGN.token, "--take-over").code == 75
    assert [type(kept).__name__ for kept in job.journal.read().anchors] == ["Claim", "Action"]


def test_the_message_of_a_damaged_entry_names_a_way_that_works(job: Job, command: Command) -> None:
    claim, _ = job.decided()
    entry = next(job.history.rglob("*1.json"))
    entry.write_bytes(entry.read_bytes()[:-9])
    for name in ("recover", "rebase"):
        ended = command(name, job.file)
        assert (ended.code, "journal entry 1 is not a record" in ended.err) == (1, True)
        assert f"move the journal away, and `exactsink rebase {job.file}` begins one" in ended.err
    (job.history / "journal").rename(job.folder / "damaged")
    assert command("rebase", job.file, "--sink", "lake=birth", "--batch", "0", "--yes").code == 0
    assert command("recover", job.file, "--sweep-token", claim.token, "--take-over").code == 0
    assert command("status", job.file).code == 0


@pytest.mark.parametrize("name", ["recover", "adopt"])
def test_a_decided_file_that_is_gone_stops_with_the_evidence(job: Job, name: str, command: Command) -> None:
    _lose_a_decided_file(job)
    shutil.rmtree(job.folder / "chk")
    ended = command(name, job.file)
    assert (ended.code, "decided participants" in ended.err, "lost" in ended.err) == (3, True, True), ended.err
    assert (job.rows(), _bound(job)) == (0, ("query-1", 0, 1))


# adopt


def test_adopt_commits_what_was_decided_and_goes_on_with_a_new_checkpoint(job: Job, command: Command) -> None:
    job.decided()
    shutil.rmtree(job.folder / "chk")
    ended = command("adopt", job.file)
    assert (ended.code, "batch 0 of the checkpoint will be epoch 1" in ended.out) == (0, True)
    assert (job.rows(), _bound(job)) == (6, ("", 1, 1))
    job.journal.claim("query-2", "host:18")
    assert _bound(job) == ("query-2", 1, 1)
    assert command("adopt", job.file).code == 0, "the checkpoint is still not there: its query is given up too"


def test_adopt_takes_the_checkpoint_that_stands_there_from_its_next_batch_on(job: Job, command: Command) -> None:
    job.decided()
    job.checkpoint("query-2", *range(7))
    assert command("adopt", job.file).code == 0
    assert _bound(job) == ("query-2", 0, 7)
    job.checkpoint("query-3", 0)
    assert command("adopt", job.file).code == 0
    assert _bound(job) == ("query-3", 6, 7), "epochs never go back"


def test_a_checkpoint_that_is_put_back_keeps_the_epoch_of_its_last_batch(job: Job, command: Command) -> None:
    """The journal has decided the batch that Spark repeats: as a new epoch, its rows would be doubled."""
    job.decided()
    (job.folder / "chk").rename(job.folder / "old")
    assert command("adopt", job.file).code == 0
    (job.folder / "old").rename(job.folder / "chk")
    ended = command("adopt", job.file)
    assert (ended.code, "batch 0 of the checkpoint will be epoch 0" in ended.out) == (0, True)
    assert (job.rows(), _bound(job)) == (6, ("query-1", 0, 1))
    assert command("check", job.file, "--no-spark").code == 0, "the start skips it"


@pytest.mark.parametrize("refused_starts", [0, 1])
def test_adopt_binds_an_empty_journal_to_a_query_that_runs_already(
    job: Job, command: Command, refused_starts: int
) -> None:
    """A start claims before the first batch comes, and is refused."""
    job.checkpoint("query-1", 0, 1, 2)
    for _ in range(refused_starts):
        job.journal.claim("query-1", "host:17")
    assert command("adopt", job.file).code == 0
    assert _bound(job) == ("query-1", 0, 3)


def test_nothing_is_adopted_when_journal_and_checkpoint_belong_together(job: Job, command: Command) -> None:
    job.decided()
    job.checkpoint("query-1", 0)
    ended = command("adopt", job.file)
    assert (ended.code, "there is nothing to adopt" in ended.err) == (2, True)
    assert ended.err.endswith(f"next: exactsink run {job.file}\n")
    job.checkpoint("query-1", *range(7))
    assert f"exactsink rebase {job.file}" in command("adopt", job.file).err, "the journal went back"
    assert job.journal.read().last_generation == 1


# history and batch runs


def test_history_reports_claims_decisions_and_actions_in_their_order(job: Job, command: Command) -> None:
    job.decided()
    command("recover", job.file)
    words = [line.split(maxsplit=5) for line in command("history", job.file).out.splitlines()[1:]]
    assert [line[3] for line in words] == ["claim", "decide", "claim", "action", "clean"]
    assert (words[0][5], words[1][4:]) == ("generation 1 by host:17, query-1", ["0", "lake 6 rows"])
    action = json.loads(command("journal", "export", job.file).out.splitlines()[3])
    assert (action["who"].endswith(f" on {platform.node()}"), action["settled"][0]["committed"]) == (True, 2)
    out = command("history", job.file, "--last", "2").out.splitlines()
    assert (len(out), out[1].endswith("recovered by an operator")) == (3, True)


# init and script


def test_init_writes_a_job_that_loads_and_never_overwrites(tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "new" / "job"
    ended = command("init", str(folder), "--name", "my-orders")
    assert (ended.code, "next: exactsink check" in ended.out) == (0, True)
    config, _ = load_config(folder / "job.toml")
    assert config.job.name == "my-orders"
    assert (folder / "job.toml").read_text().partition("\n")[0] == "#:schema ./job.schema.json"
    assert json.loads((folder / "job.schema.json").read_text())["properties"]["job"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ended = command("init", str(folder))
    assert (ended.code, "job.toml exists already: init never overwrites" in ended.err) == (2, True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert command("init", str(tmp_path / "bad"), "--name", "Not a name").code == 2
    assert not (tmp_path / "bad").exists()


def test_the_script_for_spark_submit_is_the_command_line(job: Job, command: Command) -> None:
    script = command("script").out.strip()
    assert script.endswith(".py")
    (job.folder / "status.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run(
        [sys.executable, script, "status", job.file],
        capture_output=True,
        text=True,
        check=False,
        cwd=job.folder,
        env={**os.environ, "PYTHONPATH": str(job.folder)},
    )
    assert (done.returncode, "job: orders" in done.stdout) == (0, True), done.stderr

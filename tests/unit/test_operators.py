"""What operators do to a job without Spark: recover, adopt, history, init. Each claims first, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.hand_job import Job

from exactsink.cli.main import main
from exactsink.job.config import load_config
from exactsink.job.history import RUN_COMPLETE, JobHistory
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.records import Claim, Note

Output = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def _decided(job: Job, query_id: str = "query-1") -> Claim:
    """Leave epoch 0 decided with 6 rows and not committed, beside one undecided participant."""
    journal = job.journal
    claim = journal.claim(query_id, "host:17")
    votes = [job.vote(claim, 0, partition) for partition in range(3)]
    job.decide(journal, 0, *votes[:2])
    return claim


# recover


def test_recover_commits_what_is_decided_and_sweeps_the_rest(job: Job, capsys: Output) -> None:
    _decided(job)
    assert job.rows() == 0
    assert main(["recover", job.file]) == 0
    assert "epoch 0 is committed in every sink; 3 participants were in doubt, 0 are" in capsys.readouterr().out
    assert job.rows() == 6
    assert list((job.folder / "lake" / "_exactsink").iterdir()) == []
    log = job.journal.read()
    assert log.last_generation == 2
    assert [note.text for note in log.notes] == ["recovered by an operator"]
    assert main(["recover", job.file]) == 0
    assert job.rows() == 6
    code, body = job.status(capsys) if capsys.readouterr() else (0, {})
    assert (code, body["last_complete_epoch"], body["driver_ended"]) == (0, 0, True)


def test_dry_run_says_what_recover_would_do_and_changes_nothing(job: Job, capsys: Output) -> None:
    claim = _decided(job)
    journal = job.journal
    stranger = Claim(1, "ffffffffffff", "elsewhere", "query-9", "ffffffffffff")
    job.vote(stranger, 4, 9)
    before = journal.read().last_seq
    assert main(["recover", job.file, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "would commit epoch 0 again" in out
    assert out.count("would commit lake: ") == 2
    assert f"would sweep lake: orders.lake.g1-{claim.token}.e0.p2.a2" in out
    assert "would refuse (--sweep-token ffffffffffff would sweep it) lake: orders.lake.g1-ffffffffffff.e4.p9.a9" in out
    assert main(["recover", job.file, "--dry-run", "--sweep-token", "ffffffffffff"]) == 0
    assert "would sweep lake: orders.lake.g1-ffffffffffff.e4.p9.a9" in capsys.readouterr().out
    assert (journal.read().last_seq, job.rows()) == (before, 0)


def test_foreign_work_is_swept_only_when_the_operator_names_its_token(job: Job, capsys: Output) -> None:
    _decided(job)
    stranger = job.vote(Claim(1, "ffffffffffff", "elsewhere", "query-9", "ffffffffffff"), 4, 9)
    hidden = job.folder / "lake" / "_exactsink" / stranger.ref
    assert main(["recover", job.file]) == 5
    err = capsys.readouterr().err
    assert "exactsink recover JOB.toml --sweep-token ffffffffffff" in err
    assert hidden.exists()
    assert main(["recover", job.file, "--sweep-token", "ffffffffffff"]) == 0
    assert not hidden.exists()
    assert job.rows() == 6
    assert job.journal.read().notes[-1].text.endswith("swept the tokens ffffffffffff")


def test_a_token_of_this_journal_can_not_be_swept_by_name(job: Job) -> None:
    """The operator names a token that stands in the journal: its decided votes are committed all the same."""
    claim = _decided(job)
    assert main(["recover", job.file, "--sweep-token", claim.token]) == 0
    assert job.rows() == 6


@pytest.mark.parametrize("command", ["recover", "adopt"])
def test_a_job_whose_driver_may_live_is_refused_without_take_over(job: Job, command: str, capsys: Output) -> None:
    _decided(job)
    state = StateFile(job.history / "state.json")
    state.write(State(None, 1, "host:17", heartbeat=time.time()))
    assert main([command, job.file]) == 4
    err = capsys.readouterr().err
    assert "driver host:17 may be running" in err
    assert "--take-over" in err
    assert (job.journal.read().last_generation, job.rows()) == (1, 0)
    assert main([command, job.file, "--take-over"]) == 0
    assert job.rows() == 6


def test_an_old_heartbeat_is_no_living_driver(job: Job) -> None:
    _decided(job)
    StateFile(job.history / "state.json").write(State(None, 1, "host:17", heartbeat=time.time() - 61))
    assert main(["recover", job.file]) == 0
    assert job.rows() == 6


def test_recover_of_an_empty_journal_does_nothing(job: Job, capsys: Output) -> None:
    assert main(["recover", job.file]) == 0
    assert "nothing to recover" in capsys.readouterr().out
    assert not job.history.exists()


def test_recover_stops_with_the_evidence_when_a_decided_file_is_gone(job: Job, capsys: Output) -> None:
    _decided(job)
    for path in (job.folder / "lake" / "_exactsink").rglob("*.tmp"):
        path.unlink()
    assert main(["recover", job.file]) == 3
    assert "in doubt" in capsys.readouterr().err
    assert job.rows() == 0


# adopt


def test_adopt_commits_what_was_decided_and_goes_on_with_a_new_checkpoint(job: Job, capsys: Output) -> None:
    _decided(job)
    assert main(["adopt", job.file]) == 0
    assert "batch 0 of the checkpoint will be epoch 1" in capsys.readouterr().out
    assert job.rows() == 6
    log = job.journal.read()
    assert (log.query_id, log.base, log.next_epoch) == ("", 1, 1)
    job.journal.claim("query-2", "host:18")
    log = job.journal.read()
    assert (log.query_id, log.base, log.next_epoch) == ("query-2", 1, 1)
    assert main(["adopt", job.file]) == 0, "the checkpoint is still not there: its query is given up too"


def test_adopt_takes_the_checkpoint_that_stands_there_from_its_next_batch_on(job: Job) -> None:
    _decided(job)
    job.checkpoint("query-2", 0, 1, 2, 3, 4, 5, 6)
    assert main(["adopt", job.file]) == 0
    log = job.journal.read()
    assert (log.query_id, log.base, log.next_epoch) == ("query-2", 0, 7)
    job.checkpoint("query-3", 0)
    for batch in range(1, 7):
        (job.folder / "chk" / "commits" / str(batch)).unlink()
    assert main(["adopt", job.file]) == 0
    log = job.journal.read()
    assert (log.query_id, log.base, log.next_epoch) == ("query-3", 6, 7), "epochs never go back"


def test_adopt_binds_an_empty_journal_to_a_query_that_runs_already(job: Job) -> None:
    job.checkpoint("query-1", 0, 1, 2)
    assert main(["adopt", job.file]) == 0
    log = job.journal.read()
    assert (log.query_id, log.base, log.next_epoch) == ("query-1", 0, 3)


def test_nothing_is_adopted_when_journal_and_checkpoint_belong_together(job: Job, capsys: Output) -> None:
    _decided(job)
    job.checkpoint("query-1", 0)
    assert main(["adopt", job.file]) == 2
    assert "there is nothing to adopt" in capsys.readouterr().err
    assert job.journal.read().last_generation == 1


def test_adopt_refuses_while_the_last_decision_can_not_be_committed(job: Job) -> None:
    _decided(job)
    for path in (job.folder / "lake" / "_exactsink").rglob("*.tmp"):
        path.unlink()
    assert main(["adopt", job.file]) == 3
    assert job.journal.read().query_id == "query-1"


# history


def test_history_reports_claims_decisions_and_notes_in_their_order(job: Job, capsys: Output) -> None:
    _decided(job)
    assert main(["recover", job.file]) == 0
    capsys.readouterr()
    assert main(["history", job.file, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [(line["kind"], line["epoch"]) for line in lines] == [
        ("claim", None), ("decide", 0), ("claim", None), ("note", None),
    ]  # fmt: skip
    assert lines[1]["what"] == "lake 6 rows"
    assert "generation 1 by host:17, query-1" in lines[0]["what"]
    assert main(["history", job.file, "--last", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2
    assert out[1].endswith("recovered by an operator")


# batch runs


def test_a_batch_runs_history_is_its_own(job: Job, capsys: Output) -> None:
    config, _ = load_config(job.file)
    history = JobHistory.of(config, "2026-11-20")
    journal = history.journal(lambda attempt: None)
    journal.claim("run 2026-11-20", "host:17")
    journal.note(RUN_COMPLETE)
    assert main(["status", job.file, "--run", "2026-11-20", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["run"], body["run_complete"], body["generation"]) == ("2026-11-20", True, 1)
    assert main(["recover", job.file, "--run", "2026-11-20"]) == 0
    assert (journal.read().last_generation, job.journal.read().last_generation) == (2, 0)
    assert isinstance(journal.read().anchors[-1], Note)


# init and script


def test_init_writes_a_job_that_loads_and_never_overwrites(tmp_path: Path, capsys: Output) -> None:
    folder = tmp_path / "new" / "job"
    assert main(["init", str(folder), "--name", "my-orders"]) == 0
    assert "next: exactsink check" in capsys.readouterr().out
    config, _ = load_config(folder / "job.toml")
    assert config.job.name == "my-orders"
    assert (folder / "my_orders_transform.py").exists()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["init", str(folder)]) == 2
    assert "job.toml exists already: init never overwrites" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert main(["init", str(tmp_path / "bad"), "--name", "Not a name"]) == 2
    assert not (tmp_path / "bad").exists()


def test_the_script_for_spark_submit_is_the_command_line(job: Job, capsys: Output) -> None:
    assert main(["script"]) == 0
    script = capsys.readouterr().out.strip()
    assert script.endswith(".py")
    done = subprocess.run([sys.executable, script, "status", job.file], capture_output=True, text=True, check=False)
    assert (done.returncode, "job: orders" in done.stdout) == (0, True), done.stderr
    (job.folder / "status.py").write_text("raise SystemExit('the wrong module')")
    seen = subprocess.run(
        [sys.executable, script, "backends"], capture_output=True, text=True, check=False, cwd=job.folder,
        env={**os.environ, "PYTHONPATH": str(job.folder)},
    )  # fmt: skip
    assert seen.returncode == 0, seen.stderr

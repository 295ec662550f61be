"""Drivers on a cold JVM each, which dies with them: killed with SIGKILL where it hurts most."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e.jobs import ids, in_lake, in_table, write_job, write_source
from tests.e2e.lives import KILLED, Lives


def test_killed_before_the_decision_and_between_two_sinks_commits(tmp_path: Path, lives: Lives) -> None:
    write_source(tmp_path, 4)
    job = write_job(tmp_path)

    code, reported = lives.run(job, Fault("decide", "before", "kill", 1))
    assert code == KILLED, reported
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(1)

    code, reported = lives.run(job, Fault("commit:table", "before", "kill", 2), first="commit:lake")
    assert code == KILLED, reported
    assert in_lake(tmp_path) == ids(3), "the decided epoch is in the first sink"
    assert in_table(tmp_path) == ids(2), "and not yet in the second"

    code, reported = lives.run(job)
    assert code == 0, reported
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(4)
    assert list((tmp_path / "lake" / "_exactsink").iterdir()) == []
    assert list((tmp_path / "checkpoint.exactsink" / "staging" / "table").iterdir()) == []


def test_stateful_query_survives_a_kill_between_commit_and_sparks_commit_log(tmp_path: Path, lives: Lives) -> None:
    write_source(tmp_path, 4)
    (tmp_path / "counting.py").write_text("def by_kind(frame):\n    return frame.groupBy('kind').count()\n")
    sink = """
[sinks.counts]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "counts"
keys = ["kind"]
create = true
"""
    settings = 'transform = "counting:by_kind"\noutput_mode = "update"\n'
    job = write_job(tmp_path, sink, settings)

    code, reported = lives.run(job, Fault("return", "before", "kill", 1))
    assert code == KILLED, reported
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert _state(job) == {"last_decided_epoch": 1, "last_complete_epoch": 1, "generation": 1}

    code, reported = lives.run(job)
    assert code == 0, reported
    assert _state(job) == {"last_decided_epoch": 3, "last_complete_epoch": 3, "generation": 2}
    with closing(sqlite3.connect(tmp_path / "table.db")) as connection:
        counts = dict(connection.execute("SELECT kind, count FROM counts").fetchall())
    assert counts == {"k0": 4 * 167, "k1": 4 * 167, "k2": 4 * 166}


def _state(job: Path) -> dict[str, int]:
    history = job.with_name("checkpoint.exactsink")
    state = json.loads((history / "state.json").read_text())
    records = [json.loads(path.read_text()) for path in sorted((history / "journal").glob("*.json"))]
    decided = max(record["epoch"] for record in records if record["kind"] == "decide")
    return {
        "last_decided_epoch": decided,
        "last_complete_epoch": state["complete_epoch"],
        "generation": state["generation"],
    }

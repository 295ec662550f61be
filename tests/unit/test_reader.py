"""Up to which epoch a reader may cut all sinks: it may lag, and never leads. And `verify`, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import Job

from exactsink.cli.opened import Opened
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.records import Clean, Complete, Expected
from exactsink.reader import complete_epoch, last_complete_epoch

Command = Callable[..., Ended]


def test_the_last_epoch_counts_once_a_record_or_the_newest_driver_says_so(job: Job) -> None:
    journal = job.journal
    assert complete_epoch(journal.log, State(7, 1, "host:17", 0.0)) is None, "the state of another journal"
    journal.claim("query-1", "host:17")
    job.decide(journal, 0)
    mine = State(0, 1, "host:17", 0.0)
    assert [complete_epoch(journal.log, state) for state in (None, replace(mine, complete_epoch=None))] == [None, None]
    assert complete_epoch(journal.log, mine) == 0
    job.decide(journal, 1)
    assert complete_epoch(journal.log, mine) == 0, "decided once all before it are complete"
    assert complete_epoch(journal.log, replace(mine, complete_epoch=1)) == 1
    others = (replace(mine, complete_epoch=5), State(1, 2, "host:17", 0.0), State(1, 1, "host:18", 0.0))
    assert [complete_epoch(journal.log, state) for state in others] == [0, 0, 0], "of before a restore, or a copy's"
    journal.claim("query-1", "host:18")
    assert complete_epoch(journal.log, replace(mine, complete_epoch=1)) == 0, "the newest driver has yet to look"
    for record in (Clean(), Complete(1)):
        journal.keep(record)
        assert complete_epoch(journal.log, None) == 1
    job.decide(journal, 2)
    assert complete_epoch(journal.log, None) == 2, "a batch run is one epoch"


def test_after_a_rebase_nothing_is_known_until_the_next_epoch(job: Job) -> None:
    journal = job.journal
    journal.claim("query-1", "host:17")
    job.decide(journal, 3)
    journal.keep(Clean())
    journal.rebase([Expected("lake", "file://x", None, None)], "query-1", 0, 4, "operator")
    assert complete_epoch(journal.read(), State(3, 2, "operator", 0.0)) is None
    job.decide(journal, 4)
    assert complete_epoch(journal.read(), None) == 3


def test_a_readers_place_is_a_jobs_file_or_its_checkpoint(job: Job, command: Command) -> None:
    assert last_complete_epoch(job.file) is None
    job.decided()
    assert command("recover", job.file).code == 0
    places = (job.file, job.folder / "chk", f"file://{job.folder}/chk")
    assert [last_complete_epoch(place) for place in places] == [0, 0, 0]


def test_a_barrier_waits_for_the_epoch_that_was_decided_when_it_was_asked(
    job: Job, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("barrier", job.file).out == "none\n"
    job.decided()
    ended = command("barrier", job.file, "--timeout", "0")
    assert (ended.code, ended.out) == (75, "")
    assert "epoch 0 is not complete in every sink after 0 s" in ended.err
    assert f"exactsink recover {job.file}" in ended.err

    sleep, mine = time.sleep, threading.current_thread()

    def recovered(seconds: float) -> None:
        if threading.current_thread() is not mine:  # of a client that another test has left
            sleep(seconds)
            return
        with closing(Opened.of(job.file).operator()) as operator:
            assert operator.recover(take_over=False).left() is None

    monkeypatch.setattr("exactsink.toolkit.waiting.time.sleep", recovered)
    ended = command("barrier", job.file, "--json")
    assert (ended.code, ended.body) == (0, {"waited_for": 0, "last_complete_epoch": 0, "error": None})
    monkeypatch.undo()
    assert command("barrier", job.file, "--epoch", "1", "--timeout", "0").code == 75


def test_verify_speaks_of_what_the_journal_holds_and_of_no_open_epoch(job: Job, command: Command) -> None:
    assert "nothing to verify" in command("verify", job.file).out
    job.decided()
    ended = command("verify", job.file)
    assert ended.code == 0
    assert "it is decided, and not known to be complete" in ended.out
    assert command("recover", job.file).code == 0
    ended = command("verify", job.file)
    assert ended.code == 0
    assert ended.out.splitlines()[-2].split()[:5] == ["lake", "0", "proven", "6", "6"]
    assert "1 proven, 0 differs, 0 can't be known" in ended.out
    for epochs, said in (("3..9", "the journal has epochs 0 to 0"), ("9..3", "epochs 9 to 3"), ("x", "not a range")):
        ended = command("verify", job.file, "--epochs", epochs)
        assert (ended.code, said in ended.err) == (2, True)


def test_verify_names_a_sink_that_the_config_lacks(job: Job, command: Command) -> None:
    job.decided()
    assert command("recover", job.file).code == 0
    Path(job.file).write_text(Path(job.file).read_text().replace("[sinks.lake]", "[sinks.other]"))
    ended = command("verify", job.file)
    assert (ended.code, "the config has no such sink: it was files (rename) into" in ended.out) == (0, True)


UPSERTS = 'backend = "idempotent_upsert"\nurl = "sqlite:///x.db"\ntable = "t"\n'
NO_SENSE = {
    "keys": (UPSERTS + 'keys = ["id", "Epoch"]\n', "is in `keys`"),
    "exclude": (UPSERTS + 'keys = ["id"]\nexclude = ["epoch"]\n', "is in `exclude`"),
    "update_columns": (UPSERTS + 'keys = ["id"]\nupdate_columns = ["v"]\n', "`update_columns` lacks epoch_column"),
    "kafka": ('backend = "kafka"\nbootstrap_servers = "x:1"\ntopic = "t"\n', 'set epoch_header = "epoch" instead'),
}


@pytest.mark.parametrize(("sink", "said"), NO_SENSE.values(), ids=NO_SENSE)
def test_a_column_with_the_epoch_is_refused_where_it_makes_no_sense(
    job: Job, command: Command, sink: str, said: str
) -> None:
    head = Path(job.file).read_text().partition("[sinks.lake]")[0]
    Path(job.file).write_text(f'{head}[sinks.odd]\nepoch_column = "epoch"\n{sink}')
    ended = command("verify", job.file)
    assert (ended.code, said in ended.err) == (2, True), ended.err

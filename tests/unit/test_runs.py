"""`runs`: how far each batch run of a job is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import Ended
from tests.unit.two_sinks import Shop

from exactsink.cli.opened import Opened

Command = Callable[..., Ended]
WAIT = ("--within", "60")  # a busy machine is no store that is down


@pytest.mark.parametrize("journal", ["", 'journal = "sqlite:///{}/journal.db"'], ids=["files", "database"])
def test_batch_runs_are_listed_with_how_far_each_is(tmp_path: Path, journal: str, command: Command) -> None:
    runs = {name: Shop(tmp_path, journal.format(tmp_path), name) for name in ("done", "refused", "cut off")}
    runs["done"].epochs(0)
    runs["cut off"].epochs()
    runs["refused"].close_table()
    runs["refused"].epochs(0)
    Opened.of(runs["done"].file, "begun").history.make()
    file = runs["done"].file
    ended = command("runs", file, "--json")
    found = {run["run"]: (run["state"], run["rows"]) for run in ended.body}
    expected = {"done": ("committed", 6), "refused": ("in doubt", 6), "cut off": ("undecided", None)}
    assert (ended.code, found) == (3, {**expected, None: ("never decided", None)})
    assert "call write again, with run='refused'" in ended.err or "exactsink recover" in ended.err
    assert command("status", file, "--run", "refused", *WAIT).code == 3
    ended = command("status", file, "--run", "begun", *WAIT)
    assert (ended.code, "job shop has no batch run 'begun'" in ended.err) == (2, True)


def test_a_recovered_batch_run_is_complete_once_every_sink_is_committed(tmp_path: Path, command: Command) -> None:
    def state() -> str:
        [run] = command("runs", shop.file, "--json").body
        return str(run["state"])

    shop = Shop(tmp_path, run="day")
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    shop.close_table()
    shop.epochs(0)
    assert (command("recover", shop.file, "--run", "day").code, state()) == (1, "in doubt")
    shop.sql("DROP TRIGGER closed")
    for _ in range(2):
        assert (command("recover", shop.file, "--run", "day").code, state()) == (0, "complete")
    assert command("history", shop.file, "--run", "day").out.count(" complete ") == 2, "the record, and its words"

"""Commands on one sink of two: what the other sink, or the target itself, says against it stops them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.printed import commands
from tests.unit.conftest import Ended
from tests.unit.two_sinks import Shop

from exactsink.cli.opened import Opened
from exactsink.contract import JobContext, Mark, Retryable
from exactsink.operate.rebase import RebasePlan
from exactsink.protocol.journal.records import Action, Clean, Complete, Resolve
from exactsink.testing import Session
from exactsink_files.committer import FilesCommitter

Command = Callable[..., Ended]
Patch = pytest.MonkeyPatch
REASON = ("--reason", "seen", "--yes")


def words_kept(shop: Shop) -> list[object]:
    return [kept for kept in Opened.of(shop.file).operator().read().anchors if isinstance(kept, Action | Resolve)]


def lose(shop: Shop) -> None:
    """Drop what waits in the lake."""
    for waiting in (shop.folder / "lake/_exactsink").glob("shop.lake.*.e1.*"):
        shutil.rmtree(waiting)


def unmarked(shop: Shop) -> None:
    shutil.rmtree(shop.folder / "lake/_exactsink/shop.lake")


def test_a_sink_is_committed_after_those_that_it_comes_after_or_not_at_all(in_doubt: Shop, command: Command) -> None:
    words = ("recover", in_doubt.file, "--sink", "lake", *REASON)
    assert (command(*words).code != 0, in_doubt.lake_rows()) == (True, 3)
    in_doubt.sql("DROP TRIGGER closed")
    assert (command(*words).code, in_doubt.lake_rows()) == (0, 6)


@pytest.mark.parametrize("run", [None, "monday"])
def test_a_sink_that_is_settled_alone_completes_neither_its_epoch_nor_its_run(
    tmp_path: Path, command: Command, run: str | None
) -> None:
    shop, of = Shop(tmp_path, run=run), ("--run", run) if run else ()
    if run is None:
        shop.epochs(0)
    else:
        shop.sql("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    shop.close_table()
    shop.epochs(0 if run else 1)
    shop.sql("DROP TRIGGER closed")
    assert command("recover", shop.file, *of, "--sink", "table", *REASON).code == 0
    state = Opened.of(shop.file, run).history.last_state()
    assert (state and state.generation, state and state.complete_epoch) == ((2, None) if run else (3, 0))
    status = command("status", shop.file, *of, "--json")
    assert (status.code, status.body["sinks"]["table"]["prepared"], shop.lake_rows()) == (3, 0, 0 if run else 3)
    assert command("recover", shop.file, *of, "--sink", "lake", *REASON).code == 0
    kept = Opened.of(shop.file, run).operator().read().anchors
    assert not any(isinstance(record, Clean | Complete) for record in kept)
    assert command("recover", shop.file, *of).code == 0
    kept = Opened.of(shop.file, run).operator().read().anchors
    assert isinstance(kept[-2 if run else -1], Complete if run else Clean)


def test_another_sink_that_went_back_stops_a_commit(in_doubt: Shop, command: Command) -> None:
    in_doubt.sql("DROP TRIGGER closed")
    unmarked(in_doubt)
    ended = command("recover", in_doubt.file, "--sink", "table", *REASON)
    assert (ended.code, "sink lake: its target holds no mark" in ended.err, words_kept(in_doubt)) == (3, True, [])


def test_a_target_that_goes_back_during_a_commit_is_seen_after_it(
    in_doubt: Shop, command: Command, monkeypatch: Patch
) -> None:
    in_doubt.sql("DROP TRIGGER closed")
    before = Session(Opened.of(in_doubt.file).sinks["lake"].backend, JobContext("shop", "lake", ""), "").mark()
    monkeypatch.setattr(FilesCommitter, "mark", lambda self: before)
    ended = command("recover", in_doubt.file, "--sink", "lake", *REASON)
    assert (ended.code, "lacks rows of epochs 1 to 1" in ended.err, words_kept(in_doubt)) == (3, True, [])


def test_nothing_is_aborted_while_a_mark_may_show_that_the_journal_lacks_decisions(
    in_doubt: Shop, command: Command, monkeypatch: Patch
) -> None:
    in_doubt.sql("DROP TRIGGER closed")
    with monkeypatch.context() as patch:
        patch.setattr("exactsink.protocol.journal.journal.Journal.decide", _die)
        in_doubt.epochs(1, 2)
    unmarked(in_doubt)
    begun = [line["ref"] for line in command("indoubt", "list", in_doubt.file, "--json").body if line["epoch"] == 2]
    ended = command("recover", in_doubt.file, "--ref", begun[0], "--ref", begun[1], *REASON)
    assert (ended.code, "sink lake: its target holds no mark" in ended.err, words_kept(in_doubt)) == (3, True, [])
    assert len(list((in_doubt.folder / "lake/_exactsink").glob("shop.lake.*.e2.*"))) == 1


def _die(*_: object) -> None:
    raise Retryable("the process dies here")


def test_what_shows_is_not_given_up(in_doubt: Shop, command: Command, monkeypatch: Patch) -> None:
    """The store proves the rows lost, and the mark says that they show: one of the two is not this journal's."""
    in_doubt.sql("DROP TRIGGER closed")
    lose(in_doubt)
    mark, shows = FilesCommitter.mark, Mark(Opened.of(in_doubt.file).operator().read().lineage, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FilesCommitter, "mark", lambda self: mark(self) and shows)
        words = ("indoubt", "resolve", in_doubt.file, "--epoch", "1", "--sink", "lake", "--as", "given-up", *REASON)
        ended = command(*words)
        nothing = "nothing of epoch 1 in sink lake is proven lost" in ended.err
        assert (ended.code, nothing, words_kept(in_doubt)) == (2, True, [])
    assert (command(*words).code, len(words_kept(in_doubt))) == (0, 1)


def test_printed_commands_give_up_only_what_is_missing(tmp_path: Path, command: Command) -> None:
    """A staged epoch is lost as a whole: without --ref the rows that are still there would be given up, too."""
    shop = Shop(tmp_path)
    shop.rows_of_a_partition = 2
    shop.epochs(0)
    shop.close_table()
    shop.epochs(1)
    shop.sql("DROP TRIGGER closed")
    [gone] = (tmp_path / "chk.exactsink/staging/table").rglob("*.e1.p1.*")
    gone.unlink()
    for name in ("status", "recover"):
        [words] = [words for words in commands(command(name, shop.file).err) if "given-up" in words]
    assert command(*words[1:], "--yes").code == 0
    [kept] = [word for word in words_kept(shop) if isinstance(word, Resolve)]
    assert ([ref in gone.name for ref in kept.participants], kept.rows) == ([True], 1)
    assert command("recover", shop.file).code == 0


@pytest.mark.parametrize("name", ["adopt", "rebase"])
def test_lost_votes_are_not_passed_over_by_another_checkpoint(
    in_doubt: Shop, command: Command, monkeypatch: Patch, name: str
) -> None:
    """Those of a rebase go between its plan and its claim: what was lost before stands in the plan."""
    in_doubt.sql("DROP TRIGGER closed")
    shutil.rmtree(in_doubt.folder / "chk")
    check = RebasePlan.check_named
    monkeypatch.setattr(RebasePlan, "check_named", lambda plan, *words: lose(in_doubt) or check(plan, *words))
    words = ["--sink", "lake=0", "--sink", "table=0", "--batch", "0", *REASON]
    lose(in_doubt) if name == "adopt" else None
    ended = command(name, in_doubt.file, *(words if name == "rebase" else ()))
    log = Opened.of(in_doubt.file).operator().read()
    assert (ended.code, "participants of lake are lost" in ended.err, words_kept(in_doubt)) == (3, True, [])
    assert (log.query_id, log.decision and log.decision.rows) == ("query-1", {"lake": 3, "table": 3})

"""Marks of the `files` backend: what stands before the first name, and what a missing file proves."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.files_sink import EPOCH, TEXT, Files, files, lines, marks, temps, two_files, visible
from tests.unit.os_faults import Killed, around, at_step, each_step, kill, one_binds

from exactsink.contract import AlreadyCommitted, Committed, Fatal, LineageError, Lost, Mark, Retryable, Unknown
from exactsink_files.marks import FolderMark


def of(sink: Files, lineage: str) -> Files:
    return replace(sink, ctx=replace(sink.ctx, lineage=lineage))


def bound(root: Path) -> Files:
    """Return a session into a folder that its journal has bound."""
    sink = of(files(root, **TEXT), "L1")
    assert sink.mark() is None
    assert sink.put_birth() == sink.mark() == Mark("L1")
    return sink


def drop(sink: Files, root: Path, partition: int = 0) -> Path:
    """Remove a participant's only temp file."""
    temp = root / "_exactsink" / sink.id(partition) / "0.tmp"
    temp.unlink()
    return temp


def test_the_manifest_is_durable_before_the_first_name_and_done_after_the_last(tmp_path: Path) -> None:
    sink, voted = two_files(tmp_path)
    sink.put_birth()
    folder, log = tmp_path / "_exactsink" / "job.sink", list[str]()

    def note(name: str, path: str) -> None:
        place = "mark" if f"{path}/".startswith(f"{folder}/") else "file"
        done = any(name.endswith(".done") for name in marks(tmp_path))
        log.append(f"{name} {place}{' done' if done else ''}")

    with around(tmp_path, ["fsync", "replace", "link", "unlink"], note):
        sink.commit_marked(EPOCH, voted)
    begun = ["fsync mark", "replace mark", "fsync mark"]  # the file, its name, the folder
    named = ["link file"] * 2 + ["fsync file"] * 3  # both partition folders, the root
    assert log == [*begun, *named, "fsync mark done", "unlink file done", "unlink file done"]
    assert marks(tmp_path) == ["birth", f"e{EPOCH}.SET.done", f"e{EPOCH}.SET.manifest"]


def test_what_stands_of_a_mark_is_durable_before_anything_rests_on_it(tmp_path: Path) -> None:
    """Another process may have made it, and died before it synced: a birth opens an epoch, a done drops marks."""
    sink, folder, log = bound(tmp_path), tmp_path / "_exactsink" / "job.sink", list[str]()
    with around(tmp_path, ["fsync", "unlink"], lambda name, path: log.append(f"{name} {Path(path).name}")):
        assert sink.put_birth() == Mark("L1")
        assert log[-1] == f"fsync {folder.name}"
        sink.commit_marked(EPOCH, sink.vote(lines("a")))
        log.clear()
        sink.with_committer(lambda committer: committer.trim_marks())
    assert log[:2] == [f"fsync {folder.name}", "unlink birth"]


def test_a_participant_is_proven_by_a_set_that_names_it_and_is_done() -> None:
    stands = FolderMark(Mark("L1", 1), named=frozenset("ab"), done=frozenset("a"))
    found = [(stands.names(1, name), stands.proves(1, name)) for name in "abc"]
    assert found == [(True, True), (True, False), (False, False)]


def test_a_done_whose_sync_failed_is_made_again(tmp_path: Path) -> None:
    """A temp name goes on its ground, and a final one is its reader's then: both may be gone when it is, too."""
    sink, folder = bound(tmp_path), tmp_path / "_exactsink" / "job.sink"
    voted = sink.vote(lines("a"))

    def refuse(name: str, path: str) -> None:
        if path == str(folder) and list(folder.glob("*.done")):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with around(tmp_path, ["fsync"], refuse), pytest.raises(Retryable):
        sink.commit(EPOCH, voted)
    assert marks(tmp_path) == ["birth", f"e{EPOCH}.SET.manifest"]
    log: list[str] = []
    with around(tmp_path, ["fsync"], lambda _, path: log.append(path)):
        assert [sink.commit(EPOCH, voted) for _ in range(2)] == [[AlreadyCommitted()]] * 2
    assert log[-2:] == [str(folder)] * 2  # a process that finds it done does not know whether that was synced
    assert marks(tmp_path) == ["birth", f"e{EPOCH}.SET.done", f"e{EPOCH}.SET.manifest"]


def test_a_reader_that_searches_for_a_format_passes_marks_by(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    sink.commit(EPOCH, sink.vote(lines("{}")))
    assert list(tmp_path.rglob("*.csv")) == visible(tmp_path)


def test_the_mark_is_unfinished_until_all_is_named(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"), lines("b"))
    with around(tmp_path, ["link"], lambda *_: kill()), suppress(Killed):
        sink.commit_marked(EPOCH, voted)
    assert sink.mark() == Mark("L1", EPOCH, frozenset(["ab12"]), 0)
    assert visible(tmp_path) == []
    assert sink.commit_marked(EPOCH, voted) == [Committed()] * 2
    assert sink.mark() == Mark("L1", EPOCH, frozenset(["ab12"]))


def test_a_vote_that_is_gone_and_never_was_named_is_lost_and_the_others_stand(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"), lines("b"))
    drop(sink, tmp_path, 1)
    for first in (Committed(), AlreadyCommitted()):
        kept, lost = sink.commit_marked(EPOCH, voted)
        assert (kept, type(lost)) == (first, Lost)
        assert sink.mark() == Mark("L1", EPOCH, frozenset(["ab12"]), 0)
    assert temps(tmp_path) == []
    again = replace(sink, token="cd34").write(EPOCH, 1, sink.open(EPOCH, lines("b").schema), lines("b"), attempt=7)
    assert sink.commit_marked(EPOCH, [voted[0], again]) == [AlreadyCommitted(), Committed()]
    assert sink.mark() == Mark("L1", EPOCH, frozenset(["ab12", "cd34"]))
    assert [path.read_text() for path in visible(tmp_path)] == ["a\n", "b\n"]


def test_the_mark_has_no_token_of_a_lost_vote(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    other = replace(sink, token="cd34").write(EPOCH, 1, sink.open(EPOCH, lines("b").schema), lines("b"), attempt=7)
    voted = [*sink.vote(lines("a")), other]
    (tmp_path / "_exactsink" / other.txn.id / "0.tmp").unlink()
    kept, lost = sink.commit_marked(EPOCH, voted)
    assert (kept, type(lost)) == (Committed(), Lost)
    assert sink.mark() == Mark("L1", EPOCH, frozenset(["ab12"]), 0)


def test_without_a_mark_that_the_journal_knows_nothing_is_proven_lost(tmp_path: Path) -> None:
    sink = files(tmp_path, **TEXT)
    voted = sink.vote(lines("a"))
    drop(sink, tmp_path)
    assert isinstance(sink.commit_marked(EPOCH, voted)[0], Unknown)
    bound(tmp_path)
    assert isinstance(of(sink, "L1").commit(EPOCH, voted)[0], Unknown)  # nobody has looked at the mark


def test_what_was_named_and_is_gone_is_unknown_until_the_epoch_is_done_and_a_users_business_then(
    tmp_path: Path,
) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"), lines("b"))
    with around(tmp_path, ["link"], lambda *_: kill()), suppress(Killed):
        sink.commit_marked(EPOCH, voted)
    temp = drop(sink, tmp_path, 1)
    first, second = sink.commit_marked(EPOCH, voted)
    assert (first, type(second)) == (Committed(), Unknown)
    temp.write_text("b\n")
    assert sink.commit_marked(EPOCH, voted) == [AlreadyCommitted(), Committed()]
    for path in visible(tmp_path):
        path.unlink()
    assert sink.commit_marked(EPOCH, voted) == [AlreadyCommitted()] * 2
    assert visible(tmp_path) == []


def test_a_linked_file_that_goes_before_its_epoch_is_done_comes_again(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"))
    with around(tmp_path, ["link"], lambda *_: None, kill), suppress(Killed):
        sink.commit_marked(EPOCH, voted)
    visible(tmp_path)[0].unlink()
    assert (sink.commit_marked(EPOCH, voted), len(visible(tmp_path))) == ([Committed()], 1)


def test_a_file_that_a_user_moved_is_not_named_again_though_its_temp_is_left(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"))
    with around(tmp_path, ["unlink"], lambda *_: kill()), suppress(Killed):
        sink.commit_marked(EPOCH, voted)
    assert len(temps(tmp_path)) == 1
    visible(tmp_path)[0].unlink()
    assert sink.commit_marked(EPOCH, voted) == [AlreadyCommitted()]
    assert (visible(tmp_path), temps(tmp_path)) == ([], [])


def test_what_is_called_lost_is_never_named_by_a_driver_that_was_at_any_step_of_its_commit(
    tmp_path: Path, links: None
) -> None:
    lost = []

    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        sink, voted = two_files(root)
        sink.put_birth()

        def overtake() -> None:
            (root / "_exactsink" / sink.id() / "1.tmp").unlink(missing_ok=True)
            lost.append(isinstance(sink.commit_marked(EPOCH, voted)[0], Lost))

        with at_step(root, nth, overtake) as ran, suppress(Retryable):
            sink.commit_marked(EPOCH, voted)
        assert visible(root) == [] or not ran or not lost[-1]
        return ran

    each_step(run, least=20)
    assert True in lost
    assert False in lost


def test_what_is_below_the_highest_mark_is_trimmed_and_is_committed(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    sink.trim_marks()
    assert marks(tmp_path) == ["birth"]
    stalled, voted = sink.vote(lines("a")), sink.prepare(EPOCH + 1, [lines("b")])
    sink.commit(EPOCH, stalled)
    (tmp_path / "_exactsink/job.sink/e3.0123456789abcdef.done").touch()  # half of it is trimmed
    sink.commit(EPOCH + 1, voted)
    for _ in range(2):
        sink.trim_marks()
        kept = [f"e{epoch}.SET.{kind}" for epoch in (EPOCH, EPOCH + 1) for kind in ("done", "manifest")]
        assert marks(tmp_path) == kept  # which files they have is kept; that it is the mark is only said of the last
    assert sink.commit(EPOCH, stalled) == [AlreadyCommitted()]
    assert sink.put_birth() == sink.mark() == Mark("L1", EPOCH + 1, frozenset(["ab12"]))


def test_another_journals_mark_and_one_that_moved_stop_a_commit(tmp_path: Path) -> None:
    sink = bound(tmp_path)
    voted = sink.vote(lines("a"))
    committer = sink.backend.committer(sink.ctx)
    committer.mark()
    earlier = sink.prepare(EPOCH - 1, [lines("b")])
    sink.commit(EPOCH - 1, earlier)
    with pytest.raises(Retryable, match="not the one that was read before"):
        committer.commit(EPOCH, voted)
    assert len(visible(tmp_path)) == 1
    assert of(sink, "L2").put_birth() == Mark("L1", EPOCH - 1, frozenset(["ab12"]))
    with pytest.raises(LineageError, match="another one writes there"):
        of(sink, "L2").commit(EPOCH - 1, earlier)


@pytest.mark.parametrize("damaged", ["", "[]", '{"version": 2}'])
def test_a_damaged_mark_is_neither_taken_nor_passed_over(tmp_path: Path, damaged: str) -> None:
    sink = bound(tmp_path)
    (tmp_path / "_exactsink/job.sink/birth").write_text(damaged)
    with pytest.raises(Fatal, match="birth does not show"):
        sink.mark()


@pytest.mark.parametrize("then", ["dies", "is overtaken"])
def test_of_two_journals_at_any_step_one_binds_the_folder(tmp_path: Path, then: str) -> None:
    one_binds(tmp_path, then, lambda root, lineage: of(files(root, **TEXT), lineage))

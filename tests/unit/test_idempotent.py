"""The road for stores with keys only: rows put once whoever comes, proofs that hold, and what stops it."""

from __future__ import annotations

import errno
import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.os_faults import Killed, at_step, each_step, kill

from exactsink.contract import (
    AlreadyCommitted,
    BackendOptions,
    Committable,
    Committed,
    Fatal,
    JobContext,
    LineageError,
    Lost,
    Mark,
    Retryable,
    Unknown,
)
from exactsink.testing import Session
from exactsink.toolkit.roads import IdempotentBackend, Version
from exactsink.toolkit.roads.staged import Marker
from exactsink.toolkit.storage import DurableFile, durable

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class KeyedOptions(BackendOptions):
    folder: str
    keys: tuple[str, ...] = ("id",)


class KeyedFiles(IdempotentBackend):
    """Put each row into the file of its key, under a lock, and count there how often one was let through."""

    Options = KeyedOptions
    options: KeyedOptions
    strategy = "keyed"

    @property
    def target(self) -> str:
        return self.options.folder

    @property
    def keys(self) -> Sequence[str]:
        return self.options.keys

    def prepare(self, schema: pa.Schema) -> None:
        Path(self.options.folder).mkdir(exist_ok=True)

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        for own, row in version.rows(batches):
            self.put("-".join(str(row[key]) for key in self.keys), own, row)

    def put(self, key: str, version: Version, row: dict[str, Any]) -> None:
        path = Path(self.options.folder, f"{key}.json")
        with open(path.with_name("lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = json.loads(path.read_bytes()) if path.exists() else {"puts": 0}
            if version.replaces(Version.parse(held["version"]) if held["puts"] else None):
                new = path.with_suffix(".new")
                new.write_text(json.dumps({"version": version.text, "row": row, "puts": held["puts"] + 1}))
                new.replace(path)


def held(folder: Path) -> dict[str, Any]:
    """Read the store: what stands at each key."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


class Keyed(Session):
    """A session of sink `keyed` of job `orders` into such a store."""

    @property
    def staging(self) -> Path:
        return Path(self.ctx.staging)

    def vote(self, epoch: int, *partitions: Sequence[tuple[Any, str]]) -> list[Committable]:
        """Write and pre-commit one participant per partition; every row is a batch of its own."""
        parts = [[pa.record_batch([[key], [v]], schema=SCHEMA) for key, v in rows] for rows in partitions]
        return self.prepare(epoch, [pa.Table.from_batches(part) for part in parts])

    def rows(self) -> dict[str, str]:
        return {key: found["row"]["v"] for key, found in held(Path(self.backend.target)).items()}

    def puts(self) -> dict[str, int]:
        """Count the puts that were let through, by key."""
        return {key: found["puts"] for key, found in held(Path(self.backend.target)).items()}

    def left(self, suffix: str = "") -> list[str]:
        """Name what in the staging folder ends so."""
        return sorted(path.name for path in self.staging.iterdir() if path.name.endswith(suffix))


def keyed(folder: Path, lineage: str = "L1", generation: int = 1, backend: type[KeyedFiles] = KeyedFiles) -> Keyed:
    ctx = JobContext("orders", "keyed", str(folder / "staging"), generation, lineage)
    return Keyed(backend(KeyedOptions(folder=str(folder / "store"))), ctx, "aa")


PROOF = "orders.keyed.e{}.applied"


def test_rows_are_put_once_decided_and_the_last_of_a_key_wins(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    votes = sink.vote(1, [(1, "a"), (1, "b")], [(2, "c"), (1, "d")])
    assert sink.rows() == {}
    assert sink.commit(1, votes[::-1]) == [Committed()] * 2
    assert sink.rows() == {"1": "d", "2": "c"}
    later = keyed(tmp_path, generation=3)
    assert later.commit(2, later.vote(2, [(1, "e")])) == [Committed()]
    assert sink.rows() == {"1": "e", "2": "c"}
    assert sink.left() == [PROOF.format(2)]
    proof = json.loads((sink.staging / PROOF.format(2)).read_text())
    claim = {"lineage": "L1", "generation": 3, "token": "aa"}
    assert proof == {"job": "orders", "sink": "keyed", "epoch": 2, "complete": True, **claim}
    (sink.staging / PROOF.format(1)).write_text(json.dumps(proof | {"epoch": 1}))  # by a driver that died cleaning up
    for theirs in ("orders.keyed-2.e9.applied", "refunds.keyed.e9.applied"):
        (sink.staging / theirs).write_text("not ours to read")
    with pytest.raises(LineageError, match="already holds epoch 2"):
        sink.vote(2, [(1, "f")])


def test_a_proof_of_another_journal_or_of_a_later_epoch_stops_everything(tmp_path: Path) -> None:
    sink, other = keyed(tmp_path), keyed(tmp_path, lineage="L2")
    mine = sink.vote(7, [(1, "mine")])
    other.commit(3, other.vote(3, [(1, "theirs")]))
    with pytest.raises(LineageError, match="another journal"):
        sink.commit(7, mine)
    with pytest.raises(LineageError, match="another journal"):
        sink.vote(8, [(1, "mine")])
    with pytest.raises(LineageError, match="already holds epoch 3"):
        other.vote(3, [(1, "again")])
    assert (sink.rows(), len(sink.left(".arrow"))) == ({"1": "theirs"}, 1)


@pytest.mark.parametrize("damaged", ["", "[]", '{"job": "orders"}'])
def test_a_damaged_proof_is_neither_taken_nor_passed_over(tmp_path: Path, damaged: str) -> None:
    sink = keyed(tmp_path)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    (sink.staging / PROOF.format(1)).write_text(damaged)
    with pytest.raises(Fatal, match=r"e1\.applied does not say"):
        sink.vote(2, [(1, "b")])


def test_the_proof_is_durable_before_a_staged_row_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = keyed(tmp_path)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    votes = sink.vote(2, [(1, "b")])
    synced: list[list[str]] = []
    sync = durable.sync_folders

    def watched(folders: list[Path]) -> None:
        synced.append(sink.left())
        sync(folders)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folders", watched)
        sink.commit(2, votes)
    begun, staged = PROOF.format(2).replace("applied", "applying"), f"{votes[0].ref}.arrow"
    assert synced == [
        sorted([PROOF.format(1), begun, staged]),
        sorted([PROOF.format(1), PROOF.format(2), begun, staged]),
    ]
    assert sink.left() == [PROOF.format(2)]


def test_a_proof_that_cannot_be_written_is_worth_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(DurableFile):
        def write(self, data: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    sink = keyed(tmp_path)
    votes = sink.vote(1, [(1, "a")])
    with monkeypatch.context() as patch:
        patch.setattr(durable, "DurableFile", Full)
        with pytest.raises(Retryable, match=r"epoch 1 is applied: .*No space(?s:.*)still staged"):
            sink.commit(1, votes)
    assert sink.left(".applied") == []
    assert sink.commit(1, votes) == [Committed()]
    assert sink.puts() == {"1": 1}


def go_on(folder: Path, votes: Sequence[Committable]) -> None:
    """Be the driver that comes after: finish epoch 1, and do two more."""
    sink = keyed(folder, generation=2)
    outcomes = sink.commit(1, votes)
    for epoch, rows in ((2, [(2, "B")]), (3, [(3, "C"), (1, "A")])):
        assert sink.commit(epoch, sink.vote(epoch, rows)) == [Committed()]
    assert {type(outcome) for outcome in outcomes} <= {Committed, AlreadyCommitted}


@pytest.mark.parametrize("then", ["dies", "is overtaken for epochs"])
def test_a_driver_that_dies_or_is_overtaken_at_any_step_changes_nothing(tmp_path: Path, then: str) -> None:
    def run(nth: int) -> list[int]:
        folder = tmp_path / str(nth)
        sink = keyed(folder)
        votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
        act = kill if then == "dies" else partial(go_on, folder, votes)
        with at_step(sink.staging, nth, act) as ran, suppress(Killed):
            assert {type(outcome) for outcome in sink.commit(1, votes)} <= {Committed, AlreadyCommitted}
        if then == "dies" or not ran:
            go_on(folder, votes)
        assert (sink.rows(), sink.puts()) == ({"1": "A", "2": "B", "3": "C"}, dict.fromkeys("123", 2))
        assert sink.left() == [PROOF.format(3)]
        sink.vote(4, [(1, "next")])
        return ran

    each_step(run, least=20)


@pytest.mark.parametrize("before_row", [0, 1, 2])
def test_who_is_overtaken_between_two_rows_says_that_another_was_first(tmp_path: Path, before_row: int) -> None:
    puts = count()

    class Overtaken(KeyedFiles):
        def put(self, *args: Any) -> None:
            if next(puts) == before_row:
                go_on(tmp_path, votes)
            super().put(*args)

    sink = keyed(tmp_path, backend=Overtaken)
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
    assert sink.commit(1, votes) == [AlreadyCommitted()] * 2
    assert (sink.rows(), sink.puts()) == ({"1": "A", "2": "B", "3": "C"}, dict.fromkeys("123", 2))


class Lazy(KeyedFiles):
    """Reads the first batch only."""

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        super().apply(version, iter([next(batches)]))


class Down(KeyedFiles):
    """Does not answer."""

    def put(self, *args: object) -> None:
        raise Retryable("the store is down")


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [(Lazy, TypeError, r"Lazy\.apply left rows of epoch 1 unread"), (Down, Retryable, "the store is down")],
)
def test_an_apply_that_ends_early_proves_nothing_and_keeps_the_rows(
    tmp_path: Path, kind: type[KeyedFiles], error: type[Exception], message: str
) -> None:
    sink = keyed(tmp_path, backend=kind)
    votes = sink.vote(1, [(1, "a"), (2, "b")])
    with pytest.raises(error, match=message):
        sink.commit(1, votes)
    assert (len(sink.left(".arrow")), sink.left(".applied")) == (1, [])
    assert keyed(tmp_path).commit(1, votes) == [Committed()]


def test_the_mark_says_before_the_first_row_that_an_epoch_is_about_to_be_applied(tmp_path: Path) -> None:
    seen: list[Mark | None] = []

    class Looking(KeyedFiles):
        def put(self, *args: Any) -> None:
            seen.append(sink.mark())
            super().put(*args)

    sink = keyed(tmp_path, backend=Looking)
    assert sink.mark() is None
    assert [sink.put_birth(), keyed(tmp_path, lineage="L2").put_birth(), sink.mark()] == [Mark("L1")] * 3
    assert sink.commit_marked(1, sink.vote(1, [(1, "a"), (2, "b")])) == [Committed()]
    assert seen == [Mark("L1", 1, frozenset(["aa"]), 0)] * 2
    assert sink.mark() == sink.put_birth() == Mark("L1", 1, frozenset(["aa"]))
    assert sink.left() == [PROOF.format(1)]


@pytest.mark.parametrize(("begun", "outcome"), [(False, Lost), (True, Unknown)])
def test_a_set_with_a_staged_file_gone_is_lost_until_a_row_may_show(tmp_path: Path, begun: bool, outcome: type) -> None:
    sink = keyed(tmp_path, backend=Down if begun else KeyedFiles)
    sink.put_birth()
    votes = sink.vote(1, [(1, "a")], [(2, "b")])
    if begun:
        with pytest.raises(Retryable, match="the store is down"):
            sink.commit_marked(1, votes)
    (sink.staging / f"{votes[1].ref}.arrow").unlink()
    assert [type(found) for found in keyed(tmp_path).commit_marked(1, votes)] == [outcome] * 2
    assert sink.rows() == {}


def test_a_proof_of_the_first_releases_is_a_mark_without_a_token(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    path = sink.staging / PROOF.format(1)
    proof = json.loads(path.read_bytes())
    path.write_text(json.dumps({key: proof[key] for key in ("job", "sink", "lineage", "epoch", "generation")}))
    assert sink.mark() == sink.put_birth() == Mark("L1", 1)
    assert sink.commit_marked(2, sink.vote(2, [(1, "b")])) == [Committed()]
    assert sink.mark() == Mark("L1", 2, frozenset(["aa"]))


@pytest.mark.parametrize("then", ["dies", "is overtaken"])
def test_of_two_journals_at_any_step_one_binds_the_staging_folder(tmp_path: Path, then: str) -> None:
    def run(nth: int) -> list[int]:
        one, two = (keyed(tmp_path / str(nth), lineage=lineage) for lineage in ("L1", "L2"))
        found: list[Mark] = []
        action = kill if then == "dies" else lambda: found.append(two.put_birth())
        with at_step(tmp_path / str(nth), nth, action) as ran, suppress(Killed):
            found.append(one.put_birth())
        found += [two.put_birth(), one.put_birth()]
        assert len(set(found)) == 1
        return ran

    each_step(run, least=8)


def test_a_row_without_a_key_is_refused_before_the_vote(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    with pytest.raises(Fatal, match="key column id is NULL in 1 rows"):
        sink.vote(1, [(1, "a"), (None, "b")])
    assert sink.left() == []
    with pytest.raises(Fatal, match="no key column id"):
        sink.backend.check_batch(pa.record_batch({"v": ["a"]}))
    committer = sink.backend.committer(sink.ctx)
    assert list(committer.check(SCHEMA, None)) == []
    (finding,) = committer.check(pa.schema([("v", pa.string())]), None)
    assert finding.severity == "error"
    assert "the keys name column id" in finding.message


def test_versions_compare_by_epoch_then_generation_then_place() -> None:
    ascending = [Version("L1", *numbers) for numbers in [(0, 1, 0), (0, 1, 9), (0, 1, 10), (0, 2, 0), (9, 1), (10, 1)]]
    assert [version.text for version in ascending] == sorted(version.text for version in ascending)
    for position, version in enumerate(ascending):
        assert Version.parse(version.text) == version
        assert version.replaces(None)
        assert [version.replaces(other) for other in ascending] == [n < position for n in range(len(ascending))]
    with pytest.raises(LineageError, match="another journal"):
        Version("L2", 99, 9).replaces(ascending[0])
    assert Version("L2", 99, 9, succeeds=frozenset({"L1"})).replaces(ascending[0]), "an operator has rebased L2 onto it"
    with pytest.raises(ValueError, match="not the text of a version"):
        Version.parse("7.3.12.L1")


@pytest.mark.parametrize(("epoch", "goes_on"), [(6, True), (7, False), (8, False)])
def test_a_marker_of_another_journal_is_gone_on_from_only_below_this_epoch(epoch: int, goes_on: bool) -> None:
    """It was held against the journal, as after a rebase; rows of its epoch are not this journal's."""
    stored = Marker("job", "s", "theirs", epoch, 1)
    mine = Marker("job", "s", "mine", 7, 1, expected=stored)
    if goes_on:
        assert mine.must_apply(stored)
    else:
        with pytest.raises(LineageError):
            mine.must_apply(stored)
    with pytest.raises(LineageError):
        replace(mine, expected="any").must_apply(stored)

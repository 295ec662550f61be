"""Rows staged on S3: applied once and whole, swept with what their writers left unfinished, never a part for all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from exactsink.contract import AlreadyCommitted, Committed, Lost, Mark, Retryable, Txn, Unknown
from exactsink.toolkit.storage import ObjectPath, store_findings
from exactsink.toolkit.storage.object_file import ObjectFile
from tests.integration.s3.calls import RIGHTS, Calls
from tests.unit.keyed_store import Keyed, keyed, make_store, puts
from tests.unit.upsert_sink import Sink, upsert

WIDE = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def sink(tmp_path: Path, place: ObjectPath) -> Sink:
    sink = upsert(tmp_path)
    return replace(sink, ctx=replace(sink.ctx, staging=str(place)))


@pytest.fixture
def keys(tmp_path: Path, place: ObjectPath) -> Keyed:
    make_store(tmp_path)
    sink = keyed(tmp_path)
    return replace(sink, ctx=replace(sink.ctx, staging=str(place)))


def rows_of_parts(first: int) -> pa.RecordBatch:
    """Rows of 9 MB: two batches are more than a part."""
    return pa.record_batch([[first + n for n in range(9)], ["x" * 10**6] * 9], schema=WIDE)


def test_an_epoch_is_applied_once_and_its_objects_are_dropped_in_one_request(
    sink: Sink, place: ObjectPath, calls: Calls
) -> None:
    assert sink.check() == []
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")], [(4, "d")])
    assert len(place.names()) == 3
    assert {(held.ref, held.epoch) for held in sink.listed()} == {(vote.txn.id, 1) for vote in votes}
    calls.sent.clear()
    assert sink.commit(1, votes) == [Committed()] * 3
    assert calls.sent.count("DeleteObjects") == 1
    assert sink.at(2).commit(1, votes) == [AlreadyCommitted()] * 3
    assert sink.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert (place.names(), sink.listed()) == ([], [])


def test_many_rows_are_uploaded_in_parts_and_read_back_as_they_were(
    sink: Sink, place: ObjectPath, calls: Calls
) -> None:
    ticket = sink.open(1, WIDE)
    writer = sink.writer(1, 0, WIDE, ticket)
    for first in (0, 9, 18, 27):
        writer.write(rows_of_parts(first))
    assert place.names() == []
    vote = writer.pre_commit()
    assert calls.sent.count("UploadPart") == 3
    assert sink.commit(1, [vote]) == [Committed()]
    assert sink.rows("SELECT count(*), min(length(v)), max(id) FROM t") == [(36, 10**6, 35)]


@pytest.mark.parametrize("end", ["abort", "dies"])
def test_a_writer_that_ends_early_leaves_nothing_that_the_sweep_does_not_find(
    sink: Sink, place: ObjectPath, end: str
) -> None:
    writer = sink.writer(1, 0, WIDE, sink.open(1, WIDE))
    for first in (0, 9):
        writer.write(rows_of_parts(first))
    assert (place.names(), [upload.name for upload in place.uploads()]) == ([], [f"{sink.txn(1, 0).id}.arrow"])
    other = place / "other.table.e1.x.arrow"
    foreign = other.fs.open(other.url, "wb", autocommit=False, block_size=5 * 2**20)
    foreign.write(b"x" * 6 * 2**20)
    if end == "abort":
        writer.abort()
    else:
        [held] = sink.listed()
        assert Txn.parse(held.ref) == sink.txn(1, 0)
        sink.abort(held)
        with pytest.raises(Retryable):  # it was only stalled
            writer.pre_commit()
    assert sink.listed() == []
    assert (place.names(), [upload.name for upload in place.uploads()]) == ([], [other.name])
    foreign.closed = True


def test_a_file_that_is_not_sealed_never_stands(place: ObjectPath) -> None:
    """Nor does one that nobody closes: fsspec's own file publishes what it has."""
    for close in (ObjectFile.close, ObjectFile.__del__):
        file = ObjectFile(place / "half.arrow")
        file.write(b"x" * 17 * 2**20)
        assert len(place.uploads()) == 1
        close(file)
        assert (place.names(), place.uploads()) == ([], [])


@pytest.mark.parametrize("damage", ["gone", "half", "other bytes"])
def test_what_is_not_what_was_voted_is_never_applied(sink: Sink, place: ObjectPath, damage: str) -> None:
    sink.run(0, [(9, "before")])
    votes = sink.vote(1, [(1, "a")], [(2, "b")])
    staged = place / f"{votes[0].txn.id}.arrow"
    data = staged.read_bytes()
    if damage == "gone":
        staged.unlink()
    else:
        staged.replace(data[: len(data) // 2] if damage == "half" else data[:-1] + b"\1")
    [outcome, _] = sink.commit_marked(1, votes)
    assert isinstance(outcome, Lost if damage == "gone" else Unknown)
    assert sink.rows() == [(9, "before")]


@pytest.mark.parametrize("operation", RIGHTS)
def test_what_staging_calls_is_tried_before_the_first_row_and_its_rights_are_on_the_page(
    sink: Sink, keys: Keyed, place: ObjectPath, calls: Calls, operation: str
) -> None:
    for each in (sink, keys):
        writers = [each.writer(1, number, WIDE, each.open(1, WIDE)) for number in range(2)]
        for first in (0, 9):
            for writer in writers:
                writer.write(rows_of_parts(first))
        each.abort(*each.listed())
    keys.put_birth()
    assert keys.commit_marked(0, keys.vote(0, [(1, "a")])) == [Committed()]
    (place / "stop.json").unlink(missing_ok=True)
    used, before = set(calls.sent), len(calls.sent)
    assert list(store_findings(place, "staged rows", "", large=True)) == []
    assert place.names() == ["orders.keyed.e0.applied"]
    tried = set(calls.sent[before:])
    assert used - tried == set()
    page = (Path(__file__).parents[3] / "docs/how-to/object-stores.md").read_text()
    assert set(re.findall("s3:[A-Z][A-Za-z]+", page)) == {RIGHTS[one] for one in tried}
    calls.refuse(operation, 403, "AccessDenied")
    found = list(store_findings(place, "staged rows", "", large=True))
    assert [one.severity for one in found] == (["error"] if operation in tried else [])


def test_the_marks_of_a_store_with_keys_stand_beside_its_staged_rows(
    keys: Keyed, place: ObjectPath, tmp_path: Path
) -> None:
    other = replace(keys, ctx=replace(keys.ctx, lineage="L2"))
    assert keys.mark() is None
    assert keys.put_birth() == other.put_birth() == Mark("L1")
    votes = keys.vote(0, [(1, "a")], [(2, "b")])
    assert keys.commit_marked(0, votes) == [Committed()] * 2
    assert keys.commit_marked(0, votes) == [AlreadyCommitted()] * 2
    assert keys.commit_marked(1, keys.vote(1, [(1, "A")])) == [Committed()]
    assert puts(tmp_path) == {1: 2, 2: 1}
    assert place.names() == ["orders.keyed.e1.applied"]
    assert keys.mark() == Mark("L1", 1, frozenset({"aa"}), None)

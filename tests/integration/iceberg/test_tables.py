"""Tables that are changed by the job or beside it: columns, branches, snapshots, and other writers all the time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Mark, PreflightError
from exactsink.testing.target import ROWS
from exactsink_iceberg.marks import ancestors
from exactsink_iceberg.options import IcebergOptions
from tests.integration.iceberg.lake import KEY, Lake, epochs, interrupted, rows

DAY, OWN = datetime(2026, 1, 2), [pa.field("id", pa.int32(), False), pa.field("kind", pa.string(), False)]


def found(lake: Lake, schema: pa.Schema = ROWS, **options: Any) -> list[str]:
    """Return what preflight finds."""
    with_committer = lake.session(**options).with_committer
    return [f"{f.severity}: {f.message}" for f in with_committer(lambda committer: list(committer.check(schema, None)))]


def compacted(lake: Lake) -> None:
    """Put one file in the place of all that are read, and try again beside others, as `rewrite_data_files` does."""
    table = lake.table()
    read = [task.file for task in table.scan().plan_files()]
    written = [*_dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io)]
    for _ in range(100):
        with suppress(CommitFailedException):
            with lake.table().transaction() as change, change.update_snapshot().overwrite() as replaced:
                for file in read:
                    replaced.delete_data_file(file)
                for file in written:
                    replaced.append_data_file(file)
            return
    raise CommitFailedException("others were faster a hundred times")


@contextmanager
def all_the_time(*works: tuple[Callable[[], object], float]) -> Iterator[Counter[str]]:
    """Let others work beside the block, each after its seconds again; count what they have done."""
    ended, done = threading.Event(), Counter[str]()

    def run(name: str, work: Callable[[], object], seconds: float) -> None:
        while not ended.is_set():
            with suppress(CommitFailedException, ValidationException):  # theirs to repeat
                work()
                done[name] += 1
            ended.wait(seconds)

    threads = [threading.Thread(target=run, args=(str(n), *work)) for n, work in enumerate(works)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.proof
@pytest.mark.parametrize("number", [20, 100])
def test_epochs_beside_an_appender_a_compaction_and_an_expiry_that_go_on(lake: Lake, number: int) -> None:
    sink, given = lake.session(keep_snapshots=3), iter(range(-1, -100_000, -1))
    sink.put_birth()
    epochs(sink, 0)
    theirs = list[int]()

    def append() -> None:
        mine = next(given)
        lake.table().append(rows(mine))
        theirs.append(mine)

    def expire() -> None:
        old = datetime.now() - timedelta(milliseconds=200)
        lake.table().maintenance.expire_snapshots().older_than(old).commit()

    with all_the_time((append, 0.1), (lambda: compacted(lake), 1), (expire, 1)) as done:
        for epoch in range(1, number):
            assert set(sink.commit_marked(epoch, sink.prepare(epoch, [rows(epoch)]))) == {Committed()}
            sink.trim_marks()
            assert sink.mark() == Mark("ab", epoch, frozenset(["ab"]))
    assert len(done) == 3, "each has worked"
    assert lake.ids() == Counter([*range(number), *theirs])


def test_columns_are_refused_added_or_widened_when_an_epoch_is_opened(lake: Lake) -> None:
    """Columns of the table that may not be NULL stay so, also if the rows' may be; a new one may be NULL."""
    narrow = pa.table([pa.array([0], pa.int32()), ["k"], [1.0]], pa.schema([*OWN, ROWS.field("amount")]))
    price, note = pa.array([Decimal("1.5")], pa.decimal128(10, 2)), pa.field("note", pa.string(), False)
    sink = lake.session()
    sink.commit(0, sink.prepare(0, [narrow.append_column("price", price)]))
    wider = rows(1).append_column(note, pa.array(["n"])).append_column("price", price.cast(pa.decimal128(12, 2)))
    assert found(lake, wider.schema) == [
        "error: column id is int64, the table's is int32", "error: the table has no column note",
        "error: column price is decimal128(12, 2), the table's is decimal128(10, 2)",
    ]  # fmt: skip
    with pytest.raises(PreflightError, match=r"id is int64(.|\n)*TABLE shop.orders ADD COLUMN `note` string; or"):
        sink.prepare(1, [wider])
    adding = lake.session(on_schema_change="add_columns")
    assert [line.split(":")[0] for line in found(lake, wider.schema, on_schema_change="add_columns")] == ["warning"] * 3
    voted = adding.prepare(1, [wider])
    adding.open(1, wider.schema)  # as after a crash: it is there by now
    lake.table().update_schema().add_column("later", StringType()).commit()
    assert adding.commit(1, voted) == [Committed()]
    read = lake.table().scan().to_arrow().select(["id", "price", "note", "later"]).sort_by("id").to_pylist()
    assert [list(row.values()) for row in read] == [[n, price[0].as_py(), "n" if n else None, None] for n in (0, 1)]
    assert [field.name for field in lake.table().schema().fields if field.required] == ["id", "kind"]
    odd = pa.schema([*wider.schema, ("NOTE", pa.string()), ("gap", pa.duration("s"))])
    assert [line.split(":")[1] for line in found(lake, odd, on_schema_change="add_columns")] == [
        " the table has no column NOTE, and note differs from it only in case",
        " Iceberg can't have column gap",
    ]
    voted = adding.prepare(2, [wider])
    lake.table().update_schema().delete_column("note").commit()
    with pytest.raises(Fatal, match="can't take decided rows"):
        adding.commit(2, voted)


@pytest.mark.parametrize("change", [
    lambda table: table.update_schema().delete_column("amount"), lambda it: it.update_spec().add_identity("amount"),
], ids=["column", "partitions"])  # fmt: skip
def test_a_table_whose_columns_or_partitions_change_inside_the_commit_takes_no_file_of_the_old_ones(
    lake: Lake, change: Any
) -> None:
    sink = lake.session()
    sink.put_birth()
    epochs(sink, 0)
    voted = sink.prepare(1, [rows(1)])

    with pytest.raises(Fatal, match="can't take decided rows"):
        interrupted(sink, 1, voted, lambda: change(lake.table()).commit())
    assert sink.mark() == Mark("ab", 0, frozenset(["ab"]))


def test_a_branch_begins_at_main_and_is_published_by_a_fast_forward(lake: Lake) -> None:
    epochs(lake.session(), 0)
    audit = lake.session(branch="audit", sink="audit", keep_snapshots=1)
    audit.put_birth()
    voted = audit.prepare(0, [rows(10)])
    assert interrupted(audit, 0, voted, lambda: lake.table().append(rows(9))) == {Committed()}
    assert audit.commit_marked(1, audit.prepare(1, [rows(11)])) == [Committed()]
    audit.trim_marks()
    assert (lake.ids(), lake.ids("audit")) == (Counter([0, 9]), Counter([0, 10, 11]))
    line = [each.parent_snapshot_id for each in ancestors(lake.table().metadata, "audit")[0]]
    assert line[-2:] == [lake.table().snapshots()[0].snapshot_id, None], "unbroken, as a fast forward needs it"
    head = lake.table().metadata.refs["audit"].snapshot_id
    lake.table().manage_snapshots().set_current_snapshot(snapshot_id=head).commit()
    assert lake.ids() == Counter([0, 10, 11])
    assert audit.mark() == Mark("ab", 1, frozenset(["ab"]))
    lake.table().manage_snapshots().remove_branch("audit").commit()
    assert audit.mark() == Mark("ab", 1, frozenset(["ab"])), "main has these rows"
    assert audit.commit_marked(2, audit.prepare(2, [rows(12)])) == [Committed()]
    audit.trim_marks()
    assert (lake.ids("audit"), len(lake.table().snapshots())) == (Counter([0, 10, 11, 12]), 4), "main has the second"
    lake.table().manage_snapshots().remove_branch("audit").commit()
    lake.table().append(rows(13))
    lake.table().maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert audit.mark() == Mark("ab"), "nobody knows"
    moved = lake.session(branch="other")  # of the sink that wrote to main
    assert moved.mark() == Mark("ab", 0, frozenset(["ab"]))
    voted, other = moved.prepare(1, [rows(1)]), lake.table().manage_snapshots().remove_branch("other")
    assert interrupted(moved, 1, voted, other.commit) == {Committed()}
    assert lake.ids("other") == lake.ids() + Counter([1])
    lake.table().manage_snapshots().create_tag(lake.table().snapshots()[-1].snapshot_id, "audit").commit()
    assert found(lake, branch="audit") == ["error: audit is a tag of the table"]


@pytest.mark.parametrize(("change", "shown"), [
    (lambda table: table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id), 2),
    (lambda table: table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id), 4),
], ids=["rollback", "expiry"])  # fmt: skip
def test_an_expiry_of_ours_beside_another_change_removes_no_head(lake: Lake, change: Any, shown: int) -> None:
    epochs(sink := lake.session(keep_snapshots=2), 0, 1, 2, 3)
    interrupted(sink, 4, [], lambda: change(lake.table()).commit())
    assert lake.ids() == Counter(range(shown))


def test_older_snapshots_of_ours_are_expired_if_asked_and_no_others(lake: Lake) -> None:
    sink = lake.session(keep_snapshots=2)
    epochs(sink, 0, 1)
    lake.table().append(rows(9))
    first = lake.table().snapshots()[0].snapshot_id
    lake.table().manage_snapshots().create_tag(first, "kept").commit()
    for epoch in range(2, 6):
        epochs(sink, epoch)
        sink.trim_marks()
    kept = [snapshot.summary for snapshot in lake.table().snapshots()]
    assert [s is not None and KEY in s.additional_properties for s in kept] == [True, False, True, True]
    assert sink.mark() == Mark("ab", 5, frozenset(["ab"]))
    assert lake.ids() == Counter([*range(6), 9])


@pytest.mark.parametrize(("by", "kind", "values"), [
    ("kind", pa.string(), ["a", None, "c"]), ("day(kind)", pa.timestamp("us"), [datetime(1969, 5, 5), None, DAY]),
    ("kind", pa.date32(), [date(1969, 5, 5), None, DAY.date()]), ("bucket(4, kind)", pa.int64(), [3, None, 6]),
    ("kind", pa.bool_(), [True, None, False]), ("kind", pa.bool_(), [None, False, True]),
])  # fmt: skip
def test_a_run_that_overwrites_replaces_the_partitions_of_its_rows_in_one_snapshot(
    lake: Lake, by: str, kind: pa.DataType, values: list[Any]
) -> None:
    """Rows of one `kind`, then of it and another by a run; what another appends in between is replaced, too."""

    def of_kind(place: int, *numbers: int) -> pa.Table:
        return rows(*numbers).set_column(1, "kind", pa.array([values[place]] * len(numbers), kind))

    first = lake.session(partition_by=(by,))
    first.commit(0, first.prepare(0, [of_kind(0, 1, 2), of_kind(1, 3), of_kind(2, 4)]))
    run = lake.session(sink="run", mode="overwrite_partitions", partition_by=(by,))
    run.put_birth()
    assert (run.backend.traits.batch_only, run.backend.strategy) == (True, "overwrite")
    voted = run.prepare(0, [of_kind(0, 11), pa.concat_tables([of_kind(0, 12), of_kind(1, 13)])])
    before = len(lake.table().snapshots())
    late, by_us = first.prepare(1, [of_kind(1, 14)]), "(" in by  # pyiceberg appends only to plain partitions
    between = (lambda: first.commit(1, late)) if by_us else (lambda: lake.table().append(of_kind(1, 14)))
    assert interrupted(run, 0, voted, between) == {Committed()}
    assert lake.ids() == Counter([4, 11, 12, 13])
    assert run.commit_marked(0, voted) == [AlreadyCommitted()] * 2
    assert (len(lake.table().snapshots()) - before, lake.ids()) == (2, Counter([4, 11, 12, 13]))
    assert first.mark() == Mark("ab", int(by_us), frozenset(["ab"]))
    lake.table().update_spec().add_identity("id").commit()
    with pytest.raises(Fatal, match="files of earlier partitions"):
        run.commit_marked(1, run.prepare(1, [of_kind(0, 21)]))
    assert lake.ids() == Counter([4, 11, 12, 13])
    other = found(lake, table="shop.whole", mode="overwrite_partitions")
    assert other == ["error: a table without partitions has no partitions to overwrite"]


def test_preflight_names_what_does_not_fit_and_a_start_refuses_it(lake: Lake) -> None:
    no_main = "error: the table has no snapshot of main, at which the branch audit could begin"
    assert found(lake, branch="audit") == [no_main]
    assert found(lake, create=False) == ["error: the catalog has no table shop.orders"]
    assert "error: Iceberg can't have a table for these rows" in found(lake, pa.schema([("x", pa.duration("s"))]))[0]
    assert "is not a partition" in found(lake, partition_by=("day(",))[0]
    other = found(lake, uri=None, catalog_options={"type": "in-memory"})
    assert other == ["warning: the catalog is of the kind in-memory, with which exactsink is not tested"]
    assert "y is" in found(lake, partition_by=("amount",))[0].replace("amount: identity of amount", "y is")
    catalog = lake.catalog()
    catalog.create_namespace("shop")
    strict = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "kind", IntegerType()))
    by = SortOrder(SortField(1, IdentityTransform()), SortField(2, BucketTransform(4)))
    sorts = "warning: the table is sorted by bucket[4] of column kind: only the columns before it sort the rows"
    catalog.create_table("shop.orders", strict, sort_order=by, properties={"write.format.default": "avro"})
    assert found(lake, pa.schema([("kind", pa.string())]), branch="audit") == [
        no_main, sorts, "error: the table requires this of its writers: avro",
        "error: column kind is string, the table's is int32", "error: the rows have no column id",
    ]  # fmt: skip
    lake.table().transaction().remove_properties("write.format.default").commit_transaction()
    assert "warning: the table is partitioned by nothing" in found(lake, partition_by=("kind",))[0]
    fitting = pa.table({"id": [3, 1, 2], "kind": pa.array([1, 2, 3], pa.int32())})
    sink = lake.session()
    sink.commit(0, sink.prepare(0, [fitting]))
    assert lake.table().scan().to_arrow()["id"].to_pylist() == [1, 2, 3], "as the table is sorted"
    with pytest.raises(Fatal, match="column id is NOT NULL"):
        sink.prepare(1, [pa.table({"id": pa.array([None], pa.int64()), "kind": pa.array([1], pa.int32())})])


@pytest.mark.parametrize(("options", "said"), [
    ({"keys": ["id"]}, "use backend = \"idempotent_upsert\""), ({"uri": None}, "give uri"),
    ({"table": "orders"}, "NAMESPACE.NAME"), ({"warehouse": "gs://bucket/lake"}, "not supported"),
    ({"mode": "overwrite_partitions", "keep_snapshots": 9}, "leave keep_snapshots out"),
])  # fmt: skip
def test_an_option_that_can_not_be_is_refused_by_name(lake: Lake, options: dict[str, Any], said: str) -> None:
    given = {"uri": lake.uri, "warehouse": lake.warehouse, "table": "shop.orders", **options}
    with pytest.raises(ValidationError, match=said):
        IcebergOptions.model_validate(given)


def test_a_catalog_of_aws_without_a_region_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Fatal, match="NoRegionError: You must specify a region"):
        lake.session(uri=None, catalog_options={"type": "glue"}).mark()

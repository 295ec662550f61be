"""Preflight: compare a table's columns with the rows', and check the table's requirements for writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform

from exactsink.contract import Finding
from exactsink.toolkit.storage import is_object_url, object_scheme
from exactsink.toolkit.tabular.tables import lacking
from exactsink_iceberg.options import PROVEN_CATALOGS, IcebergOptions
from exactsink_iceberg.partitions import partition_of, partition_types_fit

__all__ = [
    *("misfits", "new_columns", "new_spec", "new_table_problems"),
    *("plain", "sink_problems", "stage_columns", "table_problems"),
]

_MANY_SNAPSHOTS = 300
_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def sink_problems(options: IcebergOptions) -> Iterator[Finding]:
    """Find a catalog that exactsink is not tested with."""
    if options.catalog_kind not in PROVEN_CATALOGS.values():
        what = f"the catalog is of the kind {options.catalog_kind}, with which exactsink is not tested"
        yield Finding("warning", what, "test crashes with it before you rely on it, or use a SQL or REST catalog")


def table_problems(table: Table, options: IcebergOptions) -> Iterator[Finding]:
    """Find requirements of the table that this writer does not meet."""
    location = table.location()
    if is_object_url(location) and object_scheme(location) != "s3":
        fix = "write to a table in a folder or on S3: other stores are not supported"
        yield Finding("error", f"the table is in {location}", fix)
    ref = table.metadata.refs.get(options.branch)
    if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        yield Finding("error", f"{options.branch} is a tag of the table", "name a branch")
    yield from _no_main(table, options.branch)
    yield from _other_partitions(table, options.partition_by)
    if options.mode == "overwrite_partitions" and not table.spec().fields:
        yield Finding("error", "the table has no partitions to overwrite", 'set mode = "append"')
    if (many := len(table.metadata.snapshots)) >= _MANY_SNAPSHOTS:
        fix = f"CALL system.expire_snapshots('{options.table}'), or set keep_snapshots = 100"
        yield Finding("warning", f"the table has {many} snapshots, and each commit lists all of them again", fix)
    for field in table.sort_order().fields:
        if not isinstance(field.transform, IdentityTransform):
            column = table.schema().find_column_name(field.source_id)
            what = f"the table is sorted by {field.transform} of column {column}"
            yield Finding("warning", f"{what}: only the columns before it sort the rows", "do nothing if you want that")
    if table.format_version != 2:
        fix = "write to a table of format version 2"
        yield Finding("error", f"the table has format version {table.format_version}; pyiceberg can't write it", fix)
    kind = table.properties.get("write.format.default", "parquet")
    if kind != "parquet":
        yield Finding("error", f"the table requires this of its writers: {kind}", "set write.format.default to parquet")
    for wrong in partition_types_fit(table.spec(), table.schema()):
        yield Finding("error", f"this backend does not write the partition {wrong}", "write to another table")


def _no_main(table: Table | None, branch: str) -> Iterator[Finding]:
    if branch != MAIN_BRANCH and (table is None or not {branch, MAIN_BRANCH} & {*table.metadata.refs}):
        message = f"the table has no snapshot of main, at which the branch {branch} could begin"
        yield Finding("error", message, f"write rows to main, or make {branch}, before you start the job")


def _other_partitions(table: Table, partition_by: Sequence[str]) -> Iterator[Finding]:
    """Find partitions of the table that differ from the option: the table's own count, also for an overwrite."""
    own, wanted = [], list[str]()
    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        own.append(f"{field.transform} of {name}")
    for text in partition_by:
        name, transform = partition_of(text)
        wanted.append(f"{transform} of {name}")
    if wanted and own != wanted:
        message = f"the table is partitioned by {', '.join(own) or 'nothing'}, which counts here, not partition_by"
        yield Finding("warning", message, "leave partition_by out")


def new_columns(schema: pa.Schema) -> Schema:
    """Return the rows' columns with Iceberg's types. Raises TypeError or ValueError if Iceberg has no such type."""
    try:
        columns = pa.schema([field.with_type(plain(field.type)) for field in schema])
        return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))
    except (UnsupportedPyArrowTypeException, ValidationError) as error:
        raise TypeError(str(error)) from error


def new_spec(columns: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """Return a new table's partitions. Raises ValueError for a column that does not exist."""
    fields = []
    for number, text in enumerate(partition_by):
        name, transform = partition_of(text)
        source = columns.find_field(name)
        if not transform.can_transform(source.field_type):
            raise ValueError(f"{text} can't be made of {source.field_type}")
        kind = str(transform).partition("[")[0]
        named = name if kind == "identity" else f"{name}_{kind}"
        fields.append(PartitionField(source.field_id, 1000 + number, transform, named))
    return PartitionSpec(*fields)


def new_table_problems(schema: pa.Schema, options: IcebergOptions) -> Iterator[Finding]:
    """Find columns and partitions of these rows that a new table can't have."""
    if options.mode == "overwrite_partitions" and not options.partition_by:
        fix = 'set partition_by, or mode = "append"'
        yield Finding("error", "a table without partitions has no partitions to overwrite", fix)
    yield from _no_main(None, options.branch)
    try:
        columns = new_columns(schema)
        wrong = partition_types_fit(new_spec(columns, options.partition_by), columns)
    except (TypeError, ValueError) as error:
        yield Finding("error", f"Iceberg can't have a table for these rows: {error}", "cast or leave out the column")
        return
    for partition in wrong:
        yield Finding("error", f"this backend does not write the partition {partition}", "choose another partition_by")


def misfits(schema: pa.Schema, table: Table, *, adds: bool = False) -> Iterator[Finding]:
    """Compare the rows' columns with the table's. With `adds`, a change by the first epoch is only a warning."""
    there = {field.name: field for field in table.schema().as_arrow()}
    for field in schema:
        kind = there[field.name].type if field.name in there else None
        if kind is None:
            known = [*there, *schema.names]
            try:
                new_columns(pa.schema([field]))
                yield lacking(".".join(table.name()), field.with_type(plain(field.type)), known, adds=adds)
            except (TypeError, ValueError) as error:
                yield Finding("error", f"Iceberg can't have column {field.name}: {error}", "cast it, or leave it out")
        elif adds and _is_wider(field.type, kind):
            wide = f"column {field.name} is {kind}: the first epoch makes it {field.type}"
            yield Finding("warning", wide, "do nothing if you want that")
        elif plain(field.type) != plain(kind):
            yield Finding("error", f"column {field.name} is {field.type}, the table's is {kind}", f"cast it to {kind}")
    sources = {table.schema().find_column_name(each.source_id) for each in table.spec().fields}
    for name, field in there.items():
        if name not in schema.names and (name in sources or not field.nullable):
            yield Finding("error", f"the rows have no column {name}", f"select {name} into this sink")


def stage_columns(schema: pa.Schema, table: Table) -> UpdateSchema:
    """Stage the columns that rows have and the table lacks, and wider types. A new column may be NULL, as old rows are.

    A column of the table that may not be NULL stays so, whatever the rows' is.
    """
    change, columns, there = table.update_schema(), new_columns(schema), table.schema().as_arrow()
    for field in schema:
        kind = columns.find_field(field.name).field_type
        if field.name not in there.names:
            change.add_column((field.name,), kind)
        elif _is_wider(field.type, there.field(field.name).type):
            change.update_column((field.name,), kind)
    return change


def _is_wider(kind: pa.DataType, than: pa.DataType) -> bool:
    """Return whether Iceberg can widen a column to `kind`."""
    if pa.types.is_decimal(kind) and pa.types.is_decimal(than):
        return bool(kind.scale == than.scale and kind.precision > than.precision)
    return (plain(than), plain(kind)) in _WIDER


def plain(kind: pa.DataType) -> pa.DataType:
    """Return Iceberg's type for a type: Iceberg has one text, one list, and whole numbers of 32 and of 64 bits."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    return kind

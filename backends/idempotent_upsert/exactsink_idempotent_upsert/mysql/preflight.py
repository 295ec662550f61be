"""What keeps rows out of a table of MariaDB or MySQL, found before the first one."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.mysql.catalog import Catalog, Column
from exactsink_idempotent_upsert.mysql.statements import Statements, in_order, quoted
from exactsink_idempotent_upsert.mysql.values import column_type
from exactsink_idempotent_upsert.questions import frame_findings, keys_there
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["table_findings"]

_LEAST_PACKET = 1024 * 1024
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set", "uuid", "inet6")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TAKEN = {
    "BIGINT": (*_WHOLE, "decimal", "varchar", "text", "longtext"),
    "BIGINT UNSIGNED": (*_WHOLE, "decimal", "varchar", "text", "longtext"),
    "BOOLEAN": (*_WHOLE, "decimal"),
    "DOUBLE": ("double",),
    "DECIMAL": ("decimal",),
    "LONGTEXT": (*_TEXTS, *_BYTES),
    "LONGBLOB": _BYTES,
    "DATETIME(6)": ("datetime", "timestamp"),
    "DATE": ("date", "datetime"),
    "TIME(6)": ("time",),
}
"""Types of columns that keep all of a value, by the type that a table made here would have."""


def table_findings(table: Table, schema: pa.Schema | None, catalog: Catalog) -> Iterator[Finding]:
    """Find what keeps such rows from being upserted, or without a schema rows of any columns. Changes nothing."""
    first = [*frame_findings(table, schema, "MariaDB and MySQL", column_type), *_expression_problems(table)]
    if first:
        yield from first
        return  # what follows would repeat it in other words
    stored = None if schema is None else pa.schema([schema.field(name) for name in table.stored(schema.names)])
    statements = Statements(table)
    if catalog.packet < _LEAST_PACKET:
        yield Finding("error", f"the server takes packets of {catalog.packet} bytes only", "raise max_allowed_packet")
    if catalog.columns:
        yield from _table_problems(table, stored, catalog, statements)
    elif not table.create:
        fix = "set create = true"
        if stored is not None:
            kinds = {field.name: column_type(field.type, key=field.name in table.keys) or "" for field in stored}
            fix = f"{fix}, or run: {statements.created_for(kinds, catalog.exact_collation)};"
        yield Finding("error", f"table {table.name} does not exist", fix)


def _expression_problems(table: Table) -> Iterator[Finding]:
    try:
        in_order(dict(table.expressions))
    except CycleError as error:
        message = (
            f"`set` reads {', '.join(sorted(set(error.args[1])))} in a circle: one would see what the other has set"
        )
        yield Finding("error", message, "let none of them read a column that another one sets")


def _table_problems(
    table: Table, schema: pa.Schema | None, catalog: Catalog, statements: Statements
) -> Iterator[Finding]:
    kind, engine, transactions = catalog.engine or ("", None, None)
    if kind != "BASE TABLE":
        yield Finding("error", f"{table.name} is no table but a {kind.lower()}", "name a table in `table`")
        return
    if transactions != "YES":
        message = f"table {table.name} is of engine {engine}, which has no transactions"
        yield Finding("error", message, f"ALTER TABLE {statements.name} ENGINE=InnoDB;")
    if schema is None:
        yield from keys_there(table, [column.name for column in catalog.columns.values()])
    else:
        yield from _column_problems(table, schema, catalog, statements)
    if not catalog.meets(table.keys):
        message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}, whole"
        yield Finding("error", message, statements.with_unique_keys())
    for index in catalog.other_unique(table.keys):
        message = f"unique index {index} of table {table.name} may refuse a row after the decision, which stops the job"
        yield Finding(
            "warning",
            message,
            f"see that rows can't collide there, or: DROP INDEX {quoted(index)} ON {statements.name};",
        )
    for what, name in catalog.constraints:
        message = f"{what} {name} of table {table.name} may refuse a row after the decision, which stops the job"
        yield Finding("warning", message, "filter such rows before this sink")


def _column_problems(table: Table, schema: pa.Schema, catalog: Catalog, statements: Statements) -> Iterator[Finding]:
    names = [*schema.names, *(GUARD if table.guarded else ())]
    for name in catalog.missing(names):
        if name in GUARD:
            message = f"table {table.name} has no column {name}, as strategy direct needs it"
            yield Finding("error", message, f"{statements.with_column(name, 'BIGINT')};")
        elif not table.add_columns:
            fix = f"{statements.with_column(name, column_type(schema.field(name).type))};"
            yield Finding("error", f"table {table.name} has no column {name}", fix)
    given = {name.lower() for name in names}
    for key, column in catalog.columns.items():
        if key not in given and not column.is_filled:
            message = f"column {column.name} of table {table.name} is NOT NULL without a default, and the rows lack it"
            yield Finding("error", message, f"select {column.name} into this sink, or give it a DEFAULT in the table")
    for field in schema:
        column_ = catalog.columns.get(field.name.lower())
        if column_ is not None:
            yield from _type_problems(table, field, column_)


def _type_problems(table: Table, field: pa.Field, column: Column) -> Iterator[Finding]:
    found = f"column {column.name} of table {table.name} is {column.declared}"
    wanted = column_type(field.type) or ""
    taken = _TAKEN.get(wanted.partition("(")[0] if wanted.startswith("DECIMAL") else wanted, ())
    if column.is_own:
        yield Finding("error", f"{found}, and generated", f"put {field.name} into `exclude`")
    elif column.kind not in taken and not (pa.types.is_float32(field.type) and column.kind == "float"):
        message = f"{found}, the rows have {field.type}: it would be cut, rounded or refused"
        yield Finding("error", message, f"make the column {wanted}, or cast {field.name} in the transform")
    elif column.kind in ("char", "binary") and not pa.types.is_fixed_size_binary(field.type):
        message = f"{found}, which changes the ends of what is shorter or ends in spaces"
        yield Finding("warning", message, f"make the column VAR{column.declared.upper()}")
    elif column.kind in ("enum", "set", "json", "uuid", "inet6") or column.charset not in (
        None,
        "utf8mb4",
        "utf8",
        "utf8mb3",
    ):
        of = f" {column.charset}" if column.charset else ""
        message = f"{found}{of}, which refuses some texts after the decision, and that stops the job"
        yield Finding("warning", message, "filter such rows before this sink, or make the column VARCHAR of utf8mb4")

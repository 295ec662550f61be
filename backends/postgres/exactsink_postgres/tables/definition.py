"""A table and the rows for it: which column takes which, what keeps rows out, the statements that make and widen it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from exactsink.contract import Fatal, Finding
from exactsink_postgres.rows.fits import Column, cast_for, column_type, json_text, matches, misfit
from exactsink_postgres.tables.catalog import Table, TableName, quoted

__all__ = ["add_column_statements", "chosen_columns", "create_statement", "problems"]


def create_statement(name: TableName, schema: pa.Schema) -> str:
    """Return the CREATE TABLE IF NOT EXISTS for rows. Raises Fatal for a type that no column can have."""
    columns = [f"{_declared(str(name), field)}{'' if _nullable(field) else ' NOT NULL'}" for field in schema]
    return f"CREATE TABLE IF NOT EXISTS {name.sql} ({', '.join(columns)})"


def add_column_statements(table: Table, schema: pa.Schema) -> list[str]:
    """Return the ALTER TABLE for every column of the rows that the table lacks; NULL stands in the rows there are."""
    return [_added(table, field) for field, found in _matched(table, schema) if not found]


def chosen_columns(table: Table, schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that the rows' go into, in the rows' order. Raises Fatal where names don't report them."""
    for finding in _unnamed(table, schema, add_columns=False):
        raise Fatal(finding.message, next=finding.fix)
    return tuple(found[0] for _, found in _matched(table, schema))


def problems(table: Table, schema: pa.Schema, *, add_columns: bool = False) -> list[Finding]:
    """Find what keeps rows from going into a table, each with what fixes it.

    With `add_columns` columns that the table lacks are no error, as they will be added.
    """
    found = list(_unnamed(table, schema, add_columns=add_columns))
    pairs = [(field, columns[0]) for field, columns in _matched(table, schema) if len(columns) == 1]
    for field, column in pairs:
        why = None if column.computed else misfit(field, column)
        if why is not None:
            message = f"table {table}, column {column.name}: {why}"
            found.append(Finding("error", message, _fit_fixes(table, field, column)))
    rest = [column for column in table.columns if column not in [column for _, column in pairs]]
    found += [_missing(table, column) for column in rest if not column.optional and not column.computed]
    given = [f"{column.name} ({column.default or 'NULL'})" for column in rest if column.optional or column.computed]
    if given:
        message = f"table {table} has columns that the rows lack, and what they get: {', '.join(given)}"
        found.append(Finding("warning", message, "add them to the frame where that is not wanted"))
    return found


def _unnamed(table: Table, schema: pa.Schema, *, add_columns: bool) -> Iterator[Finding]:
    """Find fields that no column, or not one alone, is for."""
    owners: dict[str, str] = {}
    for field, found in _matched(table, schema):
        where = f"table {table}, column {field.name}"
        if not found and not add_columns:
            fix = "leave it out of columns"
            if column_type(field.type) is not None:
                fix = f'{_added(table, field)}; or set on_schema_change = "add_columns"'
            yield Finding("error", f"table {table} has no column {field.name}", fix)
        elif not found and column_type(field.type) is None:
            yield Finding("error", f"{where}: {_untyped(field)}", _UNTYPED_FIX)
        elif len(found) > 1:
            names = ", ".join(column.name for column in found)
            yield Finding("error", f"{where} may be any of {names}", "rename it in the frame to one of them, exactly")
        elif found and found[0].name in owners:
            message = f"{where}: {owners[found[0].name]} and {field.name} of the rows both go into {found[0].name}"
            yield Finding("error", message, "rename one of them in the frame, or leave it out of columns")
        elif found and found[0].computed:
            fix = "leave it out of columns"
            yield Finding("error", f"table {table}, column {found[0].name}: the server computes it", fix)
        if len(found) == 1:
            owners.setdefault(found[0].name, field.name)


def _matched(table: Table, schema: pa.Schema) -> Iterator[tuple[pa.Field, list[Column]]]:
    return zip(schema, matches(schema.names, table.columns), strict=True)


def _nullable(field: pa.Field) -> bool:
    """Return whether values may be NULL; of JSON the struct around it never is, and the text may be."""
    return bool(field.nullable or json_text(field.type))


def _fit_fixes(table: Table, field: pa.Field, column: Column) -> str:
    cast, wanted = cast_for(field, column), column_type(field.type)
    fixes = [f"write {cast} in the frame"] if cast else []
    if wanted is not None:
        fixes.append(f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} TYPE {wanted}")
    return ", or ".join(fixes) or "leave it out of columns"


def _missing(table: Table, column: Column) -> Finding:
    alter = f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)}"
    message = f"table {table}, column {column.name}: the rows lack it, and it is NOT NULL without a default"
    return Finding("error", message, f"add it to the frame, or {alter} DROP NOT NULL, or {alter} SET DEFAULT ...")


def _added(table: Table, field: pa.Field) -> str:
    return f"ALTER TABLE {table.sql} ADD COLUMN IF NOT EXISTS {_declared(str(table), field)}"


def _declared(table: str, field: pa.Field) -> str:
    kind = column_type(field.type)
    if kind is None:
        raise Fatal(f"table {table}, column {field.name}: {_untyped(field)}", next=_UNTYPED_FIX)
    return f"{quoted(field.name)} {kind}"


_UNTYPED_FIX = "cast it in the frame, CAST(NULL AS STRING) say, or leave it out of columns"


def _untyped(field: pa.Field) -> str:
    return f"there is no type of the server for the rows' {field.type}"

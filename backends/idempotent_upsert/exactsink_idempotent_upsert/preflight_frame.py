"""What keeps a frame out of every table of a database, found before the first row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["frame_findings", "keys_there", "named_findings"]


def keys_there(table: Table, there: Collection[str], fold: Callable[[str], str] = str.lower) -> Iterator[Finding]:
    """Find keys that are no columns of the table, for rows that are not known yet; `fold` as below."""
    known = set(map(fold, there))
    for key in table.keys:
        if fold(key) not in known:
            message = f"`keys` names column {key}, table {table.name} has {', '.join(there)}"
            yield Finding("error", message, f"add {key} to table {table.name}, or correct `keys`")


def named_findings(table: Table, schema: pa.Schema) -> Iterator[Finding]:
    """Find columns that the options name and a frame lacks."""
    single = {"order_by": table.order_by, "version": table.version}
    named = {"keys": table.keys, "update_columns": table.update_columns or ()}
    for option, names in (named | {option: (name,) for option, name in single.items() if name is not None}).items():
        for name in names:
            if name not in schema.names:
                message = f"`{option}` names column {name}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")


def frame_findings(
    table: Table,
    schema: pa.Schema | None,
    product: str,
    column_type: Callable[[pa.DataType], str | None],
    fold: Callable[[str], str] = str.lower,
) -> Iterator[Finding]:
    """Find what keeps a frame out of any table of this product, whose types `column_type` names; silent without one.

    `fold` makes one of the names that are one column to it.
    """
    if schema is None:
        return
    yield from named_findings(table, schema)
    seen: dict[str, str] = {}
    for name in (*schema.names, *(GUARD if table.guarded else ())):
        if fold(name) in seen:
            message = f"columns {seen[fold(name)]} and {name} are one column to {product}"
            yield Finding("error", message, f"rename one of them: withColumnRenamed({name!r}, ...)")
        seen[fold(name)] = name
    for field in schema:
        if column_type(field.type) is None:
            expression = f"to_json({field.name})" if pa.types.is_nested(field.type) else f"cast({field.name} AS STRING)"
            message = f"column {field.name} is of type {field.type}, which {product} can't hold"
            yield Finding("error", message, f"convert it in the transform: {expression} AS {field.name}")

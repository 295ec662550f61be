"""Convert a sink's options for PostgreSQL: the URL for libpq, and the table's columns for the rows.

The driver reads the table, and tasks get the result in the ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from exactsink.contract import ConfigError, Fatal
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.postgres.statements import ORDER, ROW
from exactsink_idempotent_upsert.questions import named_findings
from exactsink_idempotent_upsert.table import DELETED, GUARD, Table
from exactsink_postgres import public as pg
from exactsink_postgres.public import pinned

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["ROW_COLUMN", "TableColumns", "as_named", "choose", "held_in", "judged", "libpq_url", "numbered"]
__all__ += ["ordered_in", "own_options"]

ROW_COLUMN = pg.Column(ROW, "bigint", "int8", not_null=True, optional=False)
_DELETED_COLUMN = pg.Column(DELETED, "boolean", "bool", not_null=True, optional=False)


def libpq_url(given: URL) -> str:
    """Return a URL that libpq and SQLAlchemy both read. Tasks connect where the driver does. Raises ValueError."""
    query = {name: value if isinstance(value, str) else ",".join(value) for name, value in given.query.items()}
    if isinstance(hosts := given.query.get("host"), tuple):  # SQLAlchemy has several as host:port each
        parts = [host.partition(":") for host in hosts]
        query["host"], query["port"] = (",".join(part[place] for part in parts) for place in (0, 2))
    named = {"host": given.host, "port": given.port, "user": given.username, "password": given.password}
    named["dbname"] = given.database
    query |= {name: str(value) for name, value in named.items() if value}
    try:
        read = conninfo_to_dict(pinned(make_conninfo("", **query)))
    except ProgrammingError:
        raise ValueError("libpq can't read its query: write postgresql://user@host/database?sslmode=require") from None
    place = {name: str(value) for name, value in read.items()}
    known = {name: place.pop(name, "") for name in ("user", "password", "dbname")}
    login = quote(known["user"], safe="") + (f":{quote(known['password'], safe='')}" if known["password"] else "")
    server, port = place.get("host", ""), place.get("port", "")
    if server and not {"/", ","} & {*server, *port}:
        server = place.pop("host") + (f":{place.pop('port')}" if port else "")
    else:
        server = ""
    at = f"{login}@{server}" if login else server
    more = urlencode(place, quote_via=quote, safe="/,")
    return f"postgresql://{at}/{quote(known['dbname'], safe='')}{'?' if more else ''}{more}"


class DirectOptions(pg.PostgresOptions):
    """The options for parts of the `postgres` backend, with a strategy that it lacks itself."""

    strategy: Literal["direct"] = "direct"  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The table that was found or made, and its column for each stored column of the rows, with those `beside` it."""

    table: pg.Table
    columns: Mapping[str, pg.Column]
    beside: Sequence[pg.Column]


def own_options(url: str, table: Table, wait_seconds: float, staging_schema: str | None) -> pg.PostgresOptions:
    """Return the options in the form of the `postgres` backend."""
    name = quoted(table.schema, table.name) if table.schema else quoted(table.name)
    change = "add_columns" if table.add_columns else "fail"
    given: dict[str, Any] = {"conninfo": url, "table": name, "create": table.create, "on_schema_change": change}
    given |= {"lock_timeout_seconds": max(wait_seconds, 0.001)}
    given |= {} if staging_schema is None else {"staging_schema": staging_schema}
    return DirectOptions(**given) if table.guarded else pg.PostgresOptions(strategy="staged", **given)


def choose(
    session: psycopg.Connection, options: pg.PostgresOptions, sink: str, table: Table, schema: pa.Schema
) -> TableColumns:
    """Make or widen the table as the options require, and choose. Raises Fatal, ConfigError, and psycopg's errors."""
    for finding in named_findings(table, schema):
        raise Fatal(f"sink {sink}: {finding.message}", next=finding.fix)
    return _chosen(pg.ensure_table(session, options, sink, held_in(table, schema), table.keys), table, schema)


def judged(there: pg.Table, table: Table, schema: pa.Schema) -> dict[str, pg.Column]:
    """Return the columns that rows are checked against before they are written, by the rows' names."""
    return {
        name: replace(column, name=name, not_null=column.not_null or name in table.keys)
        for name, column in _chosen(there, table, schema).columns.items()
    }


def _chosen(there: pg.Table, table: Table, schema: pa.Schema) -> TableColumns:
    held = held_in(table, schema)
    columns = dict(zip(held.names, pg.chosen_columns(there, held), strict=True))
    beside = {}
    if table.order_by is not None and table.order_by not in columns:
        beside[table.order_by] = _order_column(schema.field(table.order_by))
    if table.deletes:
        beside[DELETED] = _DELETED_COLUMN
    return TableColumns(there, columns | beside, list(beside.values()))


def held_in(table: Table, schema: pa.Schema) -> pa.Schema:
    """Return the columns that the table must have: the stored columns of the rows, and those of the guard."""
    names = table.stored(schema.names)
    guard = [pa.field(name, pa.int64()) for name in GUARD] if table.guarded else []
    return pa.schema([*(field for field in schema if field.name in names), *guard])


def as_named(table: Table, columns: Sequence[str]) -> Table:
    """Return the same with the names that the columns have in the table."""
    as_columns = [pg.Column(name, "", "") for name in columns]

    def named(names: Iterable[str]) -> tuple[str, ...]:
        given = list(names)
        return tuple(
            found[0].name if found else name for name, found in zip(given, pg.matches(given, as_columns), strict=True)
        )

    expressions = dict(table.expressions)
    return replace(
        table,
        keys=named(table.keys),
        order_by=table.order_by and named([table.order_by])[0],
        version=table.version and named([table.version])[0],
        update_columns=None if table.update_columns is None else named(table.update_columns),
        expressions=tuple(zip(named(expressions), expressions.values(), strict=True)),
    )


def ordered_in(schema: pa.Schema, table: Table, columns: Sequence[pg.Column]) -> pa.Schema:
    """Return the rows' schema with ORDER for `order_by`, if the table has no such column."""
    if ORDER not in {column.name for column in columns}:
        return schema
    place = schema.get_field_index(table.order_by)
    return schema.set(place, schema.field(place).with_name(ORDER))


def numbered(before: int, count: int) -> pa.Array:
    """Return the numbers of so many rows of a task: a key may come more than once in an epoch."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=pa.scalar(before, pa.int64()))


def _order_column(field: pa.Field) -> pg.Column:
    """Return the column in which rows bring their order. Raises ConfigError for a type that has none."""
    kind = pg.column_type(field.type)
    known = psycopg.postgres.types.get((kind or "").partition("(")[0])
    if kind is None or known is None or kind.endswith("[]"):
        what = f"`order_by` names column {field.name}, whose type {field.type} has no order in PostgreSQL"
        raise ConfigError(what, next="cast it in the frame, or take another column")
    return pg.Column(ORDER, kind, known.name)

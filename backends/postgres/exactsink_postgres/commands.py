"""Names and statements as SQL writes them, run here or printed for users to run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from exactsink.contract import Fatal
from exactsink.toolkit.json_columns import is_json_text
from exactsink_postgres.type_mapping import column_type

__all__ = [
    "AGAIN",
    "FIX_VALUES",
    "TableName",
    "add_column",
    "create_table",
    "end_prepared",
    "end_session",
    "grant",
    "in_frame",
    "quoted",
    "set_on_server",
]

AGAIN = "start the job again"
FIX_VALUES = "cast or filter such values before this sink"

_IDENTIFIER = r'(?:[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*|"(?:[^"]|"")+")'
_NAME = re.compile(rf"(?:(?P<schema>{_IDENTIFIER})\.)?(?P<name>{_IDENTIFIER})")


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`; unquoted is lower case."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a name. Raises ValueError."""
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f'{text!r} is no table name: write orders, sales.orders or sales."Odd Name"')
        return cls(_plain(found["schema"]) if found["schema"] else None, _plain(found["name"]))

    @property
    def sql(self) -> str:
        """The name, quoted, for statements."""
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def create_table(name: TableName, schema: pa.Schema) -> str:
    """Return the CREATE TABLE IF NOT EXISTS for rows. Raises Fatal for a type that no column can have."""
    columns = []
    for field in schema:
        nullable = field.nullable or is_json_text(field.type)  # the struct around JSON is never NULL, its text may be
        columns.append(f"{_declared(str(name), field)}{'' if nullable else ' NOT NULL'}")
    return f"CREATE TABLE IF NOT EXISTS {name.sql} ({', '.join(columns)})"


def add_column(table: TableName, field: pa.Field) -> str:
    """Return the ALTER TABLE for one more column. Raises Fatal for a type that no column can have."""
    return f"ALTER TABLE {table.sql} ADD COLUMN IF NOT EXISTS {_declared(str(table), field)}"


def in_frame(cast: str | None) -> str:
    """Return how a column's values are made to fit."""
    return f"write {cast} in the frame" if cast else "make it fit in the frame, or leave it out of columns"


def grant(rights: str, on: str, role: str) -> str:
    return f"GRANT {rights} ON {on} TO {role};"


def set_on_server(settings: Mapping[str, object], *, restart: bool) -> str:
    """Return the statements that change settings of the whole server."""
    after = "then restart the server" if restart else "SELECT pg_reload_conf();"
    return " ".join([*(f"ALTER SYSTEM SET {name} = {value};" for name, value in settings.items()), after])


def end_session(pid: int) -> str:
    return f"SELECT pg_terminate_backend({pid})"


def end_prepared(gid: str) -> str:
    literal = "'" + gid.replace("'", "''") + "'"
    return f"COMMIT PREPARED {literal} or ROLLBACK PREPARED {literal}"


def _declared(table: str, field: pa.Field) -> str:
    kind = column_type(field.type)
    if kind is None:
        raise Fatal(
            f"table {table}, column {field.name}: there is no type of the server for the rows' {field.type}",
            next="cast it in the frame, CAST(NULL AS STRING) say, or leave it out of columns",
        )
    return f"{quoted(field.name)} {kind}"


def _plain(identifier: str) -> str:
    return identifier[1:-1].replace('""', '"') if identifier.startswith('"') else identifier.lower()

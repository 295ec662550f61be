"""Check server and table before the first row, and map Arrow's types to the table's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pymysql
from exactsink.contract import Finding

__all__ = ["MARKS", "MARKS_TABLE", "Column", "Rows", "created", "findings", "quoted", "read_columns", "table_findings"]

MARKS = "exactsink_xa"
"""The table with the marks, beside the sink's: a row for a journal's birth, and for each committed participant."""
_NAME = "VARCHAR(199) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
MARKS_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} (job {_NAME}, sink {_NAME}, epoch BIGINT NOT NULL, ref {_NAME},"
    f" lineage {_NAME}, token {_NAME}, PRIMARY KEY (job, sink, epoch, ref)) ENGINE=InnoDB"
)
_COLUMNS = """
    SELECT LOWER(COLUMN_NAME), DATA_TYPE, COLUMN_TYPE, NUMERIC_SCALE, DATETIME_PRECISION,
        IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL AND EXTRA = ''
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_TABLE = """
    SELECT TABLE_TYPE, ENGINE, (SELECT XA FROM information_schema.ENGINES AS e WHERE e.ENGINE = t.ENGINE)
    FROM information_schema.TABLES AS t WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s
"""
_SETTINGS = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', 'read_only', 'super_read_only',
        'innodb_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'xa_detach_on_prepare')
"""
_LEAST = {"MariaDB": (10, 5, 2), "MySQL": (8, 0, 30)}
_DENIED = (1044, 1142, 1143)
_PRIVILEGED = {
    "XA RECOVER": ("XA_RECOVER_ADMIN", "it finds no branch that another session prepared", (1227, 1401)),
    "SHOW ENGINE INNODB STATUS": ("PROCESS", "it can't see which session holds a branch", (1227,)),
}
"""The driver's statements that need a privilege: the privilege, the effect without it, the codes of its refusal."""

_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("varchar", "char", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set", "uuid", "inet6")
_BYTES = ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_is = pa.types
_KINDS = (
    (_is.is_boolean, "BOOLEAN", (*_WHOLE, "decimal")),
    (_is.is_integer, "BIGINT", (*_WHOLE, "decimal", *_TEXTS)),
    (_is.is_float32, "DOUBLE", ("double", "float")),
    (_is.is_float64, "DOUBLE", ("double",)),
    (_is.is_decimal, "DECIMAL({0.precision}, {0.scale})", ("decimal",)),
    (_is.is_string, "LONGTEXT", (*_TEXTS, *_BYTES)),
    (_is.is_large_string, "LONGTEXT", (*_TEXTS, *_BYTES)),
    (_is.is_binary, "LONGBLOB", _BYTES),
    (_is.is_large_binary, "LONGBLOB", _BYTES),
    (_is.is_timestamp, "DATETIME(6)", ("datetime", "timestamp")),
    (_is.is_date32, "DATE", ("date", "datetime")),
)
"""Arrow's types: the column that `create` makes, and those that keep all of a value, or refuse it by an error."""


class Rows(Protocol):
    """The part of a session that this module uses: a statement's rows."""

    def rows(self, statement: str, *values: object) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `required` if the server has no value for a row without it."""

    name: str
    kind: str
    declared: str
    scale: int | None
    precision: int | None
    required: bool


def quoted(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


def read_columns(session: Rows, table: str) -> dict[str, Column]:
    """Return a table's columns by their names in lower case; none where there is no table."""
    return {row[0]: Column(*row) for row in session.rows(_COLUMNS, table)}


def created(table: str, schema: pa.Schema) -> str:
    """Return the statement that makes a table for such rows."""
    columns = ", ".join(f"{quoted(field.name)} {_made(field.type) or 'LONGTEXT'}" for field in schema)
    return f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"


def findings(session: Rows, table: str, schema: pa.Schema | None, *, create: bool) -> Iterator[Finding]:
    """Find problems that would fail every epoch, or could lose decided rows. Changes nothing."""
    settings = {name: value for name, value in session.rows(_SETTINGS)}
    yield from _server_findings(settings)
    [(user, database)] = session.rows("SELECT CURRENT_USER(), DATABASE()")
    who = "{!r}@{!r}".format(*user.rpartition("@")[::2])
    for statement, (privilege, why, codes) in _PRIVILEGED.items():
        asked = statement == "XA RECOVER" or "mariadb" in settings["version"].lower()
        if asked and _refusal(session, statement, codes):
            yield Finding("error", f"{user} lacks {privilege}: {why}", f"GRANT {privilege} ON *.* TO {who};")
    yield from table_findings(session, table, schema, create=create)
    for where, privileges in _denied(session, table, schema, create=create).items():
        granted = ", ".join(privileges)
        fix = f"GRANT {granted} ON {quoted(database)}.{quoted(where)} TO {who};"
        yield Finding("error", f"{user} may not {granted} in table {where}", fix)


def _denied(session: Rows, table: str, schema: pa.Schema | None, *, create: bool) -> dict[str, list[str]]:
    """Return the privileges that the user lacks, by table: PREPARE makes the server check a statement, not run it."""
    names = [] if schema is None else [field.name for field in schema]
    columns, values = ", ".join(map(quoted, names)), ", ".join("?" for _ in names)
    wanted = [
        (table, "INSERT", f"INSERT INTO {quoted(table)} ({columns}) VALUES ({values})"),
        (MARKS, "INSERT", f"INSERT INTO {MARKS} (job) VALUES (?)"),
        (MARKS, "SELECT", f"SELECT job FROM {MARKS}"),
        (MARKS, "DELETE", f"DELETE FROM {MARKS} WHERE job = ?"),
    ]
    if not read_columns(session, MARKS):
        wanted.append((MARKS, "CREATE", MARKS_TABLE))
    if create and schema is not None and not read_columns(session, table):
        wanted.append((table, "CREATE", created(table, schema)))
    denied: dict[str, list[str]] = {}
    for where, privilege, statement in wanted:
        if _refusal(session, "PREPARE exactsink FROM %s", _DENIED, statement):
            denied.setdefault(where, []).append(privilege)
    return denied


def table_findings(session: Rows, table: str, schema: pa.Schema | None, *, create: bool) -> Iterator[Finding]:
    """Find problems that keep such rows out of the table, or would change them. Changes nothing."""
    columns = read_columns(session, table)
    if columns:
        [(kind, engine, is_xa)] = session.rows(_TABLE, table)
        if kind != "BASE TABLE":
            yield Finding("error", f"{table} is a {kind.lower()}, not a table", "name a table in `table`")
        elif is_xa != "YES":
            message = f"table {table} is of engine {engine}, which XA does not undo"
            yield Finding("error", message, f"ALTER TABLE {quoted(table)} ENGINE=InnoDB;")
    elif not create:
        fix = "set create = true" + (f", or run: {created(table, schema)};" if schema is not None else "")
        yield Finding("error", f"table {table} does not exist", fix)
    if schema is None:
        return
    for field in schema:
        yield from _field_findings(table, columns, field)
    brought = {name.lower() for name in schema.names}
    for column in columns.values():
        if column.required and column.name not in brought:
            message = f"column {column.name} of table {table} is NOT NULL without a default, and the rows lack it"
            yield Finding("error", message, f"select {column.name} into this sink, or give it a DEFAULT in the table")


def _server_findings(settings: Mapping[str, str]) -> Iterator[Finding]:
    version = settings["version"]
    product = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < (least := _LEAST[product]):
        message = f"{product} {version} loses prepared branches, or does not release them"
        yield Finding("error", message, f"upgrade to {'.'.join(map(str, least))}, or use idempotent_upsert")
    if settings.get("xa_detach_on_prepare") == "OFF":
        message = "xa_detach_on_prepare is OFF: only the branch's own session could commit it"
        yield Finding("error", message, "SET PERSIST xa_detach_on_prepare = ON;")
    if settings.get("wsrep_on") == "ON":
        yield Finding("error", "the server is a Galera node, which has no XA", "use idempotent_upsert")
    for name in ("read_only", "super_read_only", "innodb_read_only"):
        if settings.get(name, "OFF") not in ("OFF", "0"):
            yield Finding("error", f"the server is read-only ({name} is {settings[name]})", "name the primary in url")
    flush = settings["innodb_flush_log_at_trx_commit"]
    if flush not in ("1", "3"):
        message = f"innodb_flush_log_at_trx_commit is {flush}: votes and commits may vanish in a crash"
        yield Finding("error", message, "SET GLOBAL innodb_flush_log_at_trx_commit = 1;")
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        message = f"sync_binlog is {settings.get('sync_binlog')}: after a crash, the binary log may lack committed rows"
        yield Finding("error", message, "SET GLOBAL sync_binlog = 1;")
    if settings.get("log_bin") == "ON" and product == "MariaDB":
        message = (
            "MariaDB's binary log is not safe against a crash inside XA PREPARE or XA COMMIT: a replica may differ"
        )
        yield Finding("warning", message, "compare XA RECOVER on server and replicas after a crash")


def _field_findings(table: str, columns: Mapping[str, Column], field: pa.Field) -> Iterator[Finding]:
    made = _made(field.type)
    if made is None:
        message = f"column {field.name} is {field.type}: no column type of the server takes it"
        yield Finding("error", message, f"to_json({field.name}), or a cast, in the transform")
        return
    if not columns:
        return
    column = columns.get(field.name.lower())
    if column is None:
        fix = f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(field.name)} {made};"
        yield Finding("error", f"table {table} has no column {field.name}", fix)
        return
    found = f"column {column.name} of table {table} is {column.declared}"
    taken = next(kinds for fits, _, kinds in _KINDS if fits(field.type))
    is_cut = _is.is_decimal(field.type) and column.scale is not None and column.scale < field.type.scale
    if column.kind not in taken or is_cut:
        message = f"{found}, the rows have {field.type}: it would be cut, rounded or refused"
        yield Finding("error", message, f"make the column {made}, or cast {field.name} in the transform")
    elif column.kind == "char":
        yield Finding(
            "warning", f"{found}, which drops spaces at the end", f"make the column VAR{column.declared.upper()}"
        )


def _made(type: pa.DataType) -> str | None:
    """Return the column type for values of an Arrow type, None if no column takes them."""
    return next((made.format(type) for fits, made, _ in _KINDS if fits(type)), None)


def _refusal(session: Rows, statement: str, codes: Sequence[int], *values: object) -> bool:
    """Return whether the server refuses a statement with one of these codes. Other checks find other errors."""
    try:
        session.rows(statement, *values)
    except pymysql.MySQLError as error:
        return bool(error.args) and error.args[0] in codes
    return False

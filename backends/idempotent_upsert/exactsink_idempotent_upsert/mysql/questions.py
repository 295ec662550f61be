"""Check a table of MariaDB or MySQL. For the role's rights, the server judges the real statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.database import MARKER_TABLE, OWNER_TABLE, VOTE_TABLE
from exactsink_idempotent_upsert.mysql.catalog import Catalog, Column, code_of
from exactsink_idempotent_upsert.mysql.statements import Statements, column_type, in_order, quoted
from exactsink_idempotent_upsert.questions import SchemaQuestions, collated, forgotten, frame_findings, text
from exactsink_idempotent_upsert.table import GUARD, Table

if TYPE_CHECKING:
    import pymysql

__all__ = ["MysqlQuestions"]

_LEAST_PACKET = 1024 * 1024
_WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
_PLAIN_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_SOME_TEXTS = ("json", "enum", "set", "uuid", "inet6")
_TEXTS = (*_PLAIN_TEXTS, *_SOME_TEXTS)
_UNICODE = (None, "utf8mb4", "utf8", "utf8mb3")
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
"""Types of columns that keep a value exactly, by the type that a table made by exactsink would have."""

_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_IN_ITS_ORDER = ("_nopad_bin", "_0900_bin")
"""Collations that compare texts by their bytes. The other binary ones ignore trailing spaces."""

_SETTINGS = (
    (
        "@@GLOBAL.innodb_flush_log_at_trx_commit NOT IN (1, 3)",
        *("error", "innodb_flush_log_at_trx_commit is neither 1 nor 3: a crash of the machine loses committed epochs"),
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1;",
    ),
    (
        "@@GLOBAL.log_bin AND @@GLOBAL.sync_binlog <> 1",
        *("error", "sync_binlog is not 1: a crash of the machine can undo committed rows"),
        "SET GLOBAL sync_binlog = 1;",
    ),
    (
        "@@GLOBAL.innodb_doublewrite IN ('0', 'OFF')",
        *("warning", "innodb_doublewrite is off: a page that is written in part as the machine crashes is lost"),
        "set innodb_doublewrite = 1 in the server's configuration, and restart it",
    ),
    (
        "@@GLOBAL.read_only",
        *("error", "read_only is on: this server is a standby, and its primary would lack the rows"),
        "name the primary in `url`; or, if this is it, run: SET GLOBAL read_only = OFF;",
    ),
)
"""Each problem with its severity, its text, and its fix."""

_OPEN_ENDED = "MAX(partition_description LIKE '%MAXVALUE%' OR partition_description = 'DEFAULT')"
_BOUNDED = " AND (partition_method LIKE 'RANGE%' OR partition_method LIKE 'LIST%') GROUP BY partition_method"
_REFERRED = ("referenced_table_schema", "referenced_table_name")
_DENIED = (1044, 1142, 1143, 1227)
_NO_TABLE = 1146


class MysqlQuestions(SchemaQuestions):
    """The answers of the server that a session leads to. All raise the driver's errors."""

    def __init__(self, connection: pymysql.Connection[Any], table: Table) -> None:
        self._connection, self._table = connection, table
        self._catalog = Catalog.read(connection, table)
        self._statements = Statements(table, other_unique=bool(self._catalog.other_unique(table.keys)))
        self._schema = text(table.schema) if table.schema else "DATABASE()"
        self._kind, self._engine, self._transactions = self._catalog.engine or ("", None, None)

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            return tuple(cursor.fetchall())

    def frame(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from frame_findings(self._table, schema, "MariaDB and MySQL", column_type)
        try:
            in_order(dict(self._table.expressions))
        except CycleError as error:
            read = ", ".join(sorted(set(error.args[1])))
            message = f"`set` reads {read} in a circle: each would read the value that the other has set"
            yield Finding("error", message, "let none of them read a column that another one sets")

    def absent(self, schema: pa.Schema | None) -> Iterator[Finding]:
        name = self._table.name
        if self._catalog.columns:
            yield Finding("error", f"{name} is a {self._kind.lower()}, not a table", "name a table in `table`")
        elif not self._table.create:
            hidden = [*self._may(self._statements.name, {"SELECT": f"SELECT 1 FROM {self._statements.name}"})]
            fix = "set create = true" if schema is None else f"set create = true, or run: {self._created(schema)};"
            yield from hidden or [Finding("error", f"table {name} does not exist", fix)]

    def there(self) -> Mapping[str, tuple[str, bool]]:
        columns = self._catalog.columns if self._kind in _TABLES else {}
        return {key: (column.name, column.is_filled) for key, column in columns.items()}

    def added(self, name: str, schema: pa.Schema) -> str:
        kind = "BIGINT" if name in GUARD else column_type(schema.field(name).type)
        return f"{self._statements.with_column(name, kind)};"

    def rest(self, schema: pa.Schema) -> Sequence[str]:
        brought = self._table.stored(schema.names)
        return self._catalog.defaulted(brought) if self._table.mode == "replace" else ()

    def children(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        columns = "constraint_name, table_name, GROUP_CONCAT(referenced_column_name)"
        for name, child, of in self._of("key_column_usage", columns, _REFERRED, " GROUP BY 1, 2"):
            yield name, child, of.split(",")

    def dropped(self, index: str) -> str:
        return f", or: DROP INDEX {quoted(index)} ON {self._statements.name};" if index != "PRIMARY" else ""

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from super().columns(schema)
        if self._catalog.packet < _LEAST_PACKET:
            message = f"the server takes packets of {self._catalog.packet} bytes only"
            yield Finding("error", message, f"SET GLOBAL max_allowed_packet = {16 * _LEAST_PACKET};")
        if self.there() and self._transactions != "YES":
            message = f"table {self._table.name} is of engine {self._engine}, which has no transactions"
            yield Finding("error", message, f"ALTER TABLE {self._statements.name} ENGINE=InnoDB;")

    def _created(self, schema: pa.Schema) -> str:
        stored = [schema.field(name) for name in self._table.stored(schema.names)]
        kinds = {field.name: column_type(field.type, key=field.name in self._table.keys) or "" for field in stored}
        return self._statements.created_for(kinds, self._catalog.exact_collation)

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from forgotten(self._table)
        if schema is None or not self.there():
            return
        for field in (schema.field(name) for name in self._table.stored(schema.names)):
            column = self._catalog.columns.get(field.name.lower())
            if column is None:
                continue
            if found := self._loses(field, column):
                what = f"column {column.name} of table {self._table.name} is {column.declared}{found[1]}"
                yield Finding(found[0], what, found[2])
            if field.name in self._table.keys and column_type(field.type) == "LONGTEXT" and not _is_in_order(column):
                yield collated(self._table, field.name, column.collation or column.declared)

    def _loses(self, field: pa.Field, column: Column) -> tuple[Literal["error", "warning"], str, str] | None:
        """Return how a column changes values: severity, text and fix."""
        wanted, name = column_type(field.type) or "", field.name
        widened = f"make the column {wanted}, or cast {name} in the transform"
        is_text, of = wanted == "LONGTEXT", f", the rows have {field.type}: "
        taken = _TAKEN.get(wanted.partition("(")[0] if wanted.startswith("DECIMAL") else wanted, ())
        if column.is_own:
            return "error", ", and generated", f"put {name} into `exclude`"
        if column.kind not in taken and not (pa.types.is_float32(field.type) and column.kind == "float"):
            return "error", f"{of}it would be cut, rounded or refused", widened
        if name in (*self._table.keys, self._table.version) and _is_odd(column, is_text):
            role = "a key" if name in self._table.keys else "`version`"
            return "error", f"{of}as {role} it has another order than the rows", widened
        if name == self._table.version and is_text and not _is_in_order(column):
            exact = f"VARCHAR({column.characters or 255}) COLLATE {self._catalog.exact_collation}"
            fix = f"{self._altered(column, exact)} or cast {name} to a number or a timestamp in the transform"
            return "error", f" {column.collation or ''}, and a `version` must be compared by its bytes", fix
        if column.kind in ("char", "binary") and not pa.types.is_fixed_size_binary(field.type):
            fix = self._altered(column, f"VAR{column.declared.upper()}")
            return "warning", ", which changes the ends of values (pads them, or drops spaces)", fix
        if column.kind in _SOME_TEXTS or column.charset not in _UNICODE:
            fix = "filter such rows before this sink, or make the column VARCHAR of utf8mb4"
            what = f" {column.charset or ''}, which refuses some texts, and stops the job after the decision"
            return "warning", what, fix
        return None

    def _altered(self, column: Column, kind: str) -> str:
        required = " NOT NULL" if column.required else ""
        return f"ALTER TABLE {self._statements.name} MODIFY {quoted(column.name)} {kind}{required};"

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        if self.there() and not self._catalog.meets(table.keys):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly"
            yield Finding("error", f"{message} {', '.join(table.keys)}, whole", self._statements.with_unique_keys())

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Have the server read the statements of an epoch, of its marker, and of strategy direct: it runs none."""
        table = self._table
        if self.fits(schema) or (table.create and schema is not None and not self._catalog.columns):
            yield from self._may(self._statements.name, dict(self._sent(schema)), f"correct `set` of {table.name}")
        if table.deletes:
            yield from self._may("*", {"CREATE TEMPORARY TABLES": "CREATE TEMPORARY TABLE exactsink_tried (one INT)"})
        for name in (MARKER_TABLE, *((OWNER_TABLE, VOTE_TABLE) if table.guarded else ())):
            sent = {"SELECT": f"SELECT * FROM {name} FOR UPDATE", "INSERT": f"INSERT INTO {name} VALUES ()"}
            if name == VOTE_TABLE:
                sent["DELETE"] = f"DELETE FROM {name}"
            else:
                sent["UPDATE"] = f"UPDATE {name} SET lineage = ''"
            if not self.rows(f"SHOW TABLES LIKE {text(name)}"):
                sent["CREATE"] = f"CREATE TABLE {name} (one INT)"
            yield from self._may(quoted(name), sent)

    def _sent(self, schema: pa.Schema | None) -> Iterator[tuple[str, str]]:
        """Return the statements for an epoch's rows, by the rights that they need."""
        table, statements, catalog = self._table, self._statements, self._catalog
        names = list(table.keys) if schema is None else table.stored(schema.names)
        if not catalog.columns and schema is not None:
            yield "CREATE", self._created(schema)
        elif more := catalog.missing(names):
            yield "ALTER", statements.with_column(more[0], "INT")
            names = [name for name in names if name not in more]
        names += list(GUARD) if table.guarded else []
        if schema is not None:
            statements = replace(statements, rest=tuple(self.rest(schema)))
        yield "SELECT", f"SELECT {'max(1) OVER ()' if table.deletes else 1} FROM {statements.name}"
        row = f"{statements.insert(names)}({', '.join(['1'] * len(names))})"
        yield "INSERT", row
        if table.deletes:
            yield "DELETE", f"DELETE FROM {statements.name}"
        yield "UPDATE", f"{row}{statements.on_duplicate(names)}"

    def _may(self, on: str, sent: Mapping[str, str], fix: str = "remove the cause of this error") -> Iterator[Finding]:
        """Find the first right that is missing, or another refusal of the server, unless the table does not exist."""
        from pymysql.err import MySQLError

        for statement in sent.values():
            try:
                self.rows("PREPARE exactsink FROM " + text(statement.replace("\\", r"\\")))
            except MySQLError as error:
                code, said = code_of(error), error.args[-1]
                if code in _DENIED:
                    [(user, database)] = self.rows("SELECT CURRENT_USER(), DATABASE()")
                    place = on if "." in on else f"{quoted(database)}.{on}"
                    role = text(user).replace("@", "'@'")
                    grant = f"GRANT {', '.join(sent)} ON {place} TO {role};"
                    yield Finding("error", f"the server refuses a statement of the commit: {said}", grant)
                    return
                if code != _NO_TABLE:
                    yield Finding("error", f"the server refuses a statement of an epoch: {said}", fix)
                    return

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        [found] = self.rows(f"SELECT {', '.join(wrong for wrong, *_ in _SETTINGS)}")
        for is_wrong, (_, severity, message, fix) in zip(found, _SETTINGS, strict=True):
            if is_wrong:
                yield Finding("error" if severity == "error" else "warning", message, fix)

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        for method, open_ended in self._of("partitions", f"partition_method, {_OPEN_ENDED}", more=_BOUNDED):
            if not open_ended:
                message = f"table {self._table.name} is partitioned by {method}: a row that has no partition is refused"
                more = "pmax VALUES LESS THAN MAXVALUE" if method == "RANGE" else "a partition for all other rows"
                yield self.late(message, f"ALTER TABLE {self._statements.name} ADD PARTITION ({more});")


def _is_odd(column: Column, is_text: bool) -> bool:
    return column.kind == "float" or (column.kind in _PLAIN_TEXTS and not is_text)


def _is_in_order(column: Column) -> bool:
    return column.kind in _BYTES or (column.kind in _PLAIN_TEXTS and str(column.collation).endswith(_IN_ITS_ORDER))

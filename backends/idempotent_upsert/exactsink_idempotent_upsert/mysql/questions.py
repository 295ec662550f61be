"""The questions about a table of MariaDB or MySQL. What the role may do, the server says of the very statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from exactsink.contract import Finding
from exactsink_idempotent_upsert.database import MARKER_TABLE, OWNER_TABLE, VOTE_TABLE
from exactsink_idempotent_upsert.mysql.catalog import Catalog, Column
from exactsink_idempotent_upsert.mysql.errors import code_of
from exactsink_idempotent_upsert.mysql.statements import Statements, in_order, quoted
from exactsink_idempotent_upsert.mysql.values import column_type
from exactsink_idempotent_upsert.questions import Questions, frame_findings, keys_there
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
"""Types of columns that keep all of a value, by the type that a table made here would have."""

_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_IN_ITS_ORDER = ("_nopad_bin", "_0900_bin")
"""Collations that compare texts as their bytes are: the other ones of bytes ignore spaces at the end."""

_SETTINGS = """
    SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, NOT @@GLOBAL.log_bin OR @@GLOBAL.sync_binlog = 1,
        @@GLOBAL.innodb_doublewrite, @@GLOBAL.read_only
"""
_PARTITIONS = """
    SELECT PARTITION_METHOD, MAX(PARTITION_DESCRIPTION LIKE '%%MAXVALUE%%' OR PARTITION_DESCRIPTION = 'DEFAULT')
    FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s
    GROUP BY PARTITION_METHOD HAVING PARTITION_METHOD LIKE 'RANGE%%' OR PARTITION_METHOD LIKE 'LIST%%'
"""
_TRIGGERS = """
    SELECT TRIGGER_NAME, EVENT_MANIPULATION FROM information_schema.TRIGGERS
    WHERE EVENT_OBJECT_SCHEMA = COALESCE(%s, DATABASE()) AND EVENT_OBJECT_TABLE = %s ORDER BY 1
"""
_CHECKS = """
    SELECT CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS
    WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s AND CONSTRAINT_TYPE = 'CHECK' ORDER BY 1
"""
_PARENTS = """
    SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
    WHERE CONSTRAINT_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s ORDER BY 1
"""
_CHILDREN = """
    SELECT CONSTRAINT_NAME, TABLE_NAME, GROUP_CONCAT(REFERENCED_COLUMN_NAME) FROM information_schema.KEY_COLUMN_USAGE
    WHERE REFERENCED_TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND REFERENCED_TABLE_NAME = %s GROUP BY 1, 2 ORDER BY 1
"""
_STOPS = "stops the job after the decision"
_DENIED = (1044, 1142, 1143, 1227)
_NO_TABLE = 1146


class MysqlQuestions(Questions):
    """The answers of the server that a session leads to. All raise the driver's errors."""

    def __init__(self, connection: pymysql.Connection[Any], table: Table) -> None:
        self._connection, self._table = connection, table
        self._catalog = Catalog.read(connection, table)
        self._statements = Statements(table, other_unique=bool(self._catalog.other_unique(table.keys)))

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, catalog = self._table, self._catalog
        found = [*frame_findings(table, schema, "MariaDB and MySQL", column_type), *self._circles()]
        if found:
            yield from found
            return  # what follows would repeat it in other words
        if catalog.packet < _LEAST_PACKET:
            message = f"the server takes packets of {catalog.packet} bytes only"
            yield Finding("error", message, f"SET GLOBAL max_allowed_packet = {16 * _LEAST_PACKET};")
        kind, engine, transactions = catalog.engine or ("", None, None)
        if not catalog.columns:
            if not table.create:
                hidden = list(self._may(self._statements.name, {"SELECT": f"SELECT 1 FROM {self._statements.name}"}))
                yield from hidden or [self._absent(schema)]
        elif not self._there:
            yield Finding("error", f"{table.name} is no table but a {kind.lower()}", "name a table in `table`")
        elif transactions != "YES":
            message = f"table {table.name} is of engine {engine}, which has no transactions"
            yield Finding("error", message, f"ALTER TABLE {self._statements.name} ENGINE=InnoDB;")
        if self._there and schema is None:
            yield from keys_there(table, [column.name for column in catalog.columns.values()])
        elif self._there and schema is not None:
            yield from self._column_problems(self._stored(schema))

    def _circles(self) -> Iterator[Finding]:
        try:
            in_order(dict(self._table.expressions))
        except CycleError as error:
            read = ", ".join(sorted(set(error.args[1])))
            message = f"`set` reads {read} in a circle: one would see what the other has set"
            yield Finding("error", message, "let none of them read a column that another one sets")

    def _absent(self, schema: pa.Schema | None) -> Finding:
        fix = "set create = true"
        if schema is not None:
            fix = f"{fix}, or run: {self._created(schema)};"
        return Finding("error", f"table {self._table.name} does not exist", fix)

    def _created(self, schema: pa.Schema) -> str:
        stored = self._stored(schema)
        kinds = {field.name: column_type(field.type, key=field.name in self._table.keys) or "" for field in stored}
        return self._statements.created_for(kinds, self._catalog.exact_collation)

    def _column_problems(self, stored: pa.Schema) -> Iterator[Finding]:
        table, catalog, statements = self._table, self._catalog, self._statements
        names = [*stored.names, *(GUARD if table.guarded else ())]
        for name in catalog.missing(names):
            if name in GUARD:
                message = f"table {table.name} has no column {name}, as strategy direct needs it"
                yield Finding("error", message, f"{statements.with_column(name, 'BIGINT')};")
            elif not table.add_columns:
                fix = f"{statements.with_column(name, column_type(stored.field(name).type))};"
                yield Finding("error", f"table {table.name} has no column {name}", fix)
        given = {name.lower() for name in names}
        for key, column in catalog.columns.items():
            if key not in given and not column.is_filled:
                message = f"column {column.name} of table {table.name} is NOT NULL without a default"
                fix = f"select {column.name} into this sink, or give it a DEFAULT in the table"
                yield Finding("error", f"{message}, and the rows lack it", fix)

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        for field in self._stored(schema) if self._there and schema is not None else ():
            column = self._catalog.columns.get(field.name.lower())
            if column is not None:
                yield from self._type_problems(field, column)

    def _type_problems(self, field: pa.Field, column: Column) -> Iterator[Finding]:
        table, found = self._table, f"column {column.name} of table {self._table.name} is {column.declared}"
        wanted = column_type(field.type) or ""
        taken = _TAKEN.get(wanted.partition("(")[0] if wanted.startswith("DECIMAL") else wanted, ())
        finds = field.name in (*table.keys, table.version)
        text = wanted == "LONGTEXT"
        if column.is_own:
            yield Finding("error", f"{found}, and generated", f"put {field.name} into `exclude`")
        elif column.kind not in taken and not (pa.types.is_float32(field.type) and column.kind == "float"):
            message = f"{found}, the rows have {field.type}: it would be cut, rounded or refused"
            yield Finding("error", message, f"make the column {wanted}, or cast {field.name} in the transform")
        elif finds and (column.kind == "float" or (column.kind in _PLAIN_TEXTS and not text)):
            message = f"{found}, the rows have {field.type}: as {'a key' if field.name in table.keys else '`version`'}"
            fix = f"make the column {wanted}, or cast {field.name} in the transform"
            yield Finding("error", f"{message} it is compared otherwise than the rows are", fix)
        elif field.name == table.version and text and not _is_in_order(column):
            message = f"{found} {column.collation or ''}, and as `version` compared otherwise than by its bytes"
            fix = self._altered(column, f"VARCHAR({column.characters or 255}) COLLATE {self._catalog.exact_collation}")
            yield Finding("error", message, f"{fix} or cast {field.name} to a number or a timestamp in the transform")
        elif column.kind in ("char", "binary") and not pa.types.is_fixed_size_binary(field.type):
            message = f"{found}, which changes the ends of what is shorter or ends in spaces"
            yield Finding("warning", message, self._altered(column, f"VAR{column.declared.upper()}"))
        elif column.kind in _SOME_TEXTS or column.charset not in _UNICODE:
            of = f" {column.charset}" if column.charset else ""
            message = f"{found}{of}, which refuses some texts after the decision, and that stops the job"
            yield Finding(
                "warning", message, "filter such rows before this sink, or make the column VARCHAR of utf8mb4"
            )

    def _altered(self, column: Column, kind: str) -> str:
        required = " NOT NULL" if column.required else ""
        return f"ALTER TABLE {self._statements.name} MODIFY {quoted(column.name)} {kind}{required};"

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        if self._there and not self._catalog.meets(table.keys):
            message = (
                f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}, whole"
            )
            yield Finding("error", message, self._statements.with_unique_keys())

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Have the server read the statements of an epoch, of its marker, and of strategy direct: it runs none."""
        table = self._table
        if self._fits(schema) or (table.create and schema is not None and not self._catalog.columns):
            yield from self._may(self._statements.name, dict(self._sent(schema)), f"correct `set` of {table.name}")
        if table.deletes:
            yield from self._may("*", {"CREATE TEMPORARY TABLES": "CREATE TEMPORARY TABLE exactsink_tried (one INT)"})
        for name in (MARKER_TABLE, *((OWNER_TABLE, VOTE_TABLE) if table.guarded else ())):
            sent = {"SELECT": f"SELECT * FROM {name} FOR UPDATE", "INSERT": f"INSERT INTO {name} VALUES ()"}
            if name == VOTE_TABLE:
                sent["DELETE"] = f"DELETE FROM {name}"
            else:
                sent["UPDATE"] = f"UPDATE {name} SET lineage = ''"
            if not self._rows("SHOW TABLES LIKE %s", name):
                sent["CREATE"] = f"CREATE TABLE {name} (one INT)"
            yield from self._may(quoted(name), sent)

    def _sent(self, schema: pa.Schema | None) -> Iterator[tuple[str, str]]:
        """Return what an epoch's rows cause, by the rights that it needs."""
        table, statements, catalog = self._table, self._statements, self._catalog
        names = list(table.keys) if schema is None else self._stored(schema).names
        if not catalog.columns and schema is not None:
            yield "CREATE", self._created(schema)
        elif more := catalog.missing(names):
            yield "ALTER", statements.with_column(more[0], "INT")
            names = [name for name in names if name not in more]
        names += list(GUARD) if table.guarded else []
        if table.mode == "replace":
            statements = replace(statements, rest=tuple(catalog.defaulted(names)))
        yield "SELECT", f"SELECT {'max(1) OVER ()' if table.deletes else 1} FROM {statements.name}"
        row = f"{statements.insert(names)}({', '.join(['1'] * len(names))})"
        yield "INSERT", row
        if table.deletes:
            yield "DELETE", f"DELETE FROM {statements.name}"
        yield "UPDATE", f"{row}{statements.on_duplicate(names)}"

    def _may(self, on: str, sent: Mapping[str, str], fix: str = "fix what it says") -> Iterator[Finding]:
        """Find the first right that is missing, or what else the server refuses; but for a table that is not there."""
        from pymysql.err import MySQLError

        for statement in sent.values():
            try:
                self._rows("PREPARE exactsink FROM %s", statement)
            except MySQLError as error:
                code, said = code_of(error), error.args[-1]
                if code in _DENIED:
                    [(user, database)] = self._rows("SELECT CURRENT_USER(), DATABASE()")
                    user = "'" + user.replace("@", "'@'") + "'"
                    on = on if "." in on else f"{quoted(database)}.{on}"
                    yield Finding(
                        "error",
                        f"the server refuses what a commit needs: {said}",
                        f"GRANT {', '.join(sent)} ON {on} TO {user};",
                    )
                    return
                if code != _NO_TABLE:
                    yield Finding("error", f"the server does not take a statement of an epoch: {said}", fix)
                    return

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        [(flushed, logged, doubled, closed)] = self._rows(_SETTINGS)
        lost = "a crash of its machine loses epochs that are committed"
        if flushed not in (1, 3):
            message = f"innodb_flush_log_at_trx_commit is {flushed}: {lost}"
            yield Finding("error", message, "SET GLOBAL innodb_flush_log_at_trx_commit = 1;")
        if not logged:
            message = (
                f"sync_binlog is not 1, and the server keeps a binary log: {lost}, as what the log lacks is undone"
            )
            yield Finding("error", message, "SET GLOBAL sync_binlog = 1;")
        if str(doubled) in ("0", "OFF"):
            message = "innodb_doublewrite is off: a page that is written in part as the machine crashes is lost"
            yield Finding(
                "warning", message, "set innodb_doublewrite = 1 in the server's configuration, and restart it"
            )
        if closed:
            message = "the server is read-only: a standby, whose rows its primary would not have"
            yield Finding(
                "error", message, "name the primary in `url`; or, if this is it, run: SET GLOBAL read_only = OFF;"
            )

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Only those are seen that the role has the right TRIGGER for."""
        updates = self._table.guarded or self._table.mode != "insert_if_absent"
        events = ["INSERT", *(["UPDATE"] if updates else []), *(["DELETE"] if self._table.deletes else [])]
        for name, event in self._of(_TRIGGERS):
            if event in events:
                message = f"trigger {name} of table {self._table.name} ON {event} may change a row, or refuse it"
                yield self._late(message, "see that it does neither")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        for index in self._catalog.other_unique(table.keys) if self._there else ():
            message = f"unique index {index} of table {table.name} may refuse a row"
            drop = f", or: DROP INDEX {quoted(index)} ON {self._statements.name};" if index != "PRIMARY" else ""
            yield self._late(message, f"see that rows can't collide there{drop}")
        for (name,) in self._of(_CHECKS):
            yield self._late(
                f"CHECK {name} of table {table.name} may refuse a row", "filter such rows before this sink"
            )

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        changed = {name.lower() for name in self._changed(schema)}
        for name, parent in self._of(_PARENTS):
            message = f"FOREIGN KEY {name} of table {table.name} to {parent} may refuse a row"
            yield self._late(
                message, f'if a sink of this job writes {parent}, set after = "..." (its name) on this one'
            )
        for name, child, columns in self._of(_CHILDREN):
            message = f"FOREIGN KEY {name} of table {child} to {table.name} may refuse"
            if table.deletes:
                yield self._late(f"{message} a delete, and one that cascades goes unseen", f"delete from {child} first")
            if moved := sorted(changed & set(columns.lower().split(","))):
                fix = f"leave {', '.join(moved)} out of what is set (update_columns)"
                yield self._late(f"{message} a change of {', '.join(moved)}", fix)

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        for method, open_ended in self._of(_PARTITIONS):
            if not open_ended:
                message = (
                    f"table {self._table.name} is partitioned by {method}: a row that no partition is for is refused"
                )
                more = "pmax VALUES LESS THAN MAXVALUE" if method == "RANGE" else "one that takes all other rows"
                yield self._late(message, f"ALTER TABLE {self._statements.name} ADD PARTITION ({more});")

    def _late(self, message: str, fix: str) -> Finding:
        """Return a warning: of strategy direct the task meets it, before the decision."""
        return Finding("warning", f"{message}, which {'fails the epoch' if self._table.guarded else _STOPS}", fix)

    def _changed(self, schema: pa.Schema | None) -> Sequence[str]:
        """Name the columns that a row sets where its key is there."""
        stored = [] if schema is None else self._stored(schema).names
        rest = self._catalog.defaulted(stored) if self._table.mode == "replace" and schema is not None else []
        return [*self._table.updated(stored), *dict(self._table.expressions), *rest]

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([schema.field(name) for name in self._table.stored(schema.names)])

    @property
    def _there(self) -> bool:
        kind = self._catalog.engine and self._catalog.engine[0]
        return kind in _TABLES

    def _fits(self, schema: pa.Schema | None) -> bool:
        return self._there and not any(found.severity == "error" for found in self.columns(schema))

    def _of(self, statement: str) -> Sequence[Any]:
        return self._rows(statement, self._table.schema, self._table.name) if self._there else ()

    def _rows(self, statement: str, *values: object) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return tuple(cursor.fetchall())


def _is_in_order(column: Column) -> bool:
    return column.kind in _BYTES or (column.kind in _PLAIN_TEXTS and str(column.collation).endswith(_IN_ITS_ORDER))

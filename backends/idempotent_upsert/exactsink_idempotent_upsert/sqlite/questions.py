"""Check a table of SQLite, and read the limits for its tasks."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.local_paths import full_disk
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink_idempotent_upsert.questions import TableQuestions, collated, forgotten, frame_findings
from exactsink_idempotent_upsert.sqlite.rows import met_by, other_unique, unique_rules
from exactsink_idempotent_upsert.sqlite.statements import Statements, column_type, other_spelling
from exactsink_idempotent_upsert.sqlite.trial import Catalog, affinity, lost
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["SqliteQuestions"]

_TRIGGER = "SELECT tbl_name, sql FROM main.sqlite_master WHERE type = 'trigger' AND name = ?"
_PARENTS = 'SELECT DISTINCT "table" FROM pragma_foreign_key_list(?) ORDER BY 1'
_CHILDREN = """
    SELECT child.name, key."to" FROM main.sqlite_master AS child, pragma_foreign_key_list(child.name) AS key
    WHERE child.type = 'table' AND lower(key."table") = lower(?) ORDER BY 1
"""
_KEPT_AS, _NUMBERS = {"TEXT": "'text'", "BLOB": "'blob'"}, "'integer', 'real'"
_TAKEN_AS_IT_IS = re.compile(r"(?:\b(?:coalesce|ifnull)\s*\(|[\w\s.,\")])*", re.IGNORECASE)  # names, and no arithmetic
_OVERRIDDEN = re.compile(r"\b(INSERT|UPDATE)\s+OR\s+(IGNORE|REPLACE)\b|\bREPLACE\s+INTO\b", re.IGNORECASE)
_FIRES, _LACKING = "-- TRIGGER ", "columns are lacking"
_MOUNTS, _REMOTE = Path("/proc/self/mounts"), re.compile("nfs|cifs|smb|9p|ceph|lustre|gluster|beegfs|afs|sshfs")
_STOPS = "the job would stop after the decision, when a row breaks it"
_UNHELD = "SQLite leaves that to each connection, and exactsink's do not check it"


class SqliteQuestions(TableQuestions):
    """The checks of a file, by a connection that is opened when needed. If there is no file, none is created."""

    fold = staticmethod(ascii_lower)

    def __init__(self, path: Path, table: Table, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path, self._table, self._connect = path, table, connect

    def close(self) -> None:
        if "_catalog" in self.__dict__:
            self._catalog.connection.close()

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Run all checks. After a problem with the frame or the place, the others would repeat it in other words."""
        first = [*self.frame(schema), *self.privileges(schema)]
        yield from first or super().findings(schema)

    def frame(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return frame_findings(self._table, schema, "SQLite", column_type, ascii_lower)

    def absent(self, schema: pa.Schema | None) -> Iterator[Finding]:
        if not self._table.create:
            made = "" if schema is None else f", or run: {Statements(self._table).created_for(schema)};"
            message = f"table {self._table.name} does not exist in {self._path}"
            yield Finding("error", message, f"set create = true{made}")

    def there(self) -> Mapping[str, tuple[str, bool]]:
        return {key: (column["name"], not column["required"]) for key, column in self._catalog.columns.items()}

    def added(self, name: str, schema: pa.Schema) -> str:
        kind = "BIGINT" if name in GUARD else column_type(schema.field(name).type)
        return Statements(self._table).with_column(name, kind)

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        yield from forgotten(table)
        if schema is None:
            return
        yield from self._sums_of_texts(schema)
        for field in map(schema.field, table.stored(schema.names)):
            there = self._catalog.columns.get(ascii_lower(field.name))
            declared = there["type"] if there else column_type(field.type) or ""
            yield from lost(table, field, declared)
            if field.name in table.keys and there:
                yield from self._spelt(field, affinity(declared))

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Let SQLite itself judge a conflict target, a view, a generated column, and `set`."""
        table, error = self._table, self._error(schema)
        if error.startswith("ON CONFLICT clause does not match"):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}"
            yield Finding("error", message, Statements(table).with_unique_keys())
        elif error not in ("", _LACKING):
            fix = "correct `set`, or " * bool(table.expressions) + f"name another table, or fix {table.name}"
            yield Finding("error", f"table {table.name} can't be upserted into: {error}", fix)

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """SQLite has no others than those of the files: it makes some beside the database."""
        path = self._path
        if not path.parent.is_dir():
            yield Finding("error", f"folder {path.parent} of the database does not exist", f"mkdir -p {path.parent}")
        elif path.is_dir():
            yield Finding("error", f"{path} is a folder", "name a file in `url`")
        elif (closed := _closed(path)) is not None:
            yield closed
        elif path.exists():
            try:
                self._catalog.connection.execute(_PARENTS, ("",)).close()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # busy, say
                yield Finding("error", f"{path} is not a SQLite database: {error}", "name another file in `url`")

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """The sink's connections set `synchronous` and WAL themselves; OFF and MEMORY are a connection's own."""
        if _REMOTE.search(kind := _file_system(self._path)):
            message = f"{self._path} is on a network file system ({kind}), whose locks and syncs may not hold"
            yield Finding("warning", message, f"put {self._path.name} on a disk of the host that writes it")

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find the triggers that SQLite's own programs for an epoch's statements fire, directly or through others."""
        if self._error(schema):
            return
        table, names, statements = self._table, self._names(schema), self._statements(schema)
        where, changed = f"main.{quoted(table.name)}", statements.changed(names)
        sets = ", ".join(f"{quoted(name)} = ?" for name in changed)
        updating = self._fired(f"UPDATE {where} SET {sets}", changed) if sets else []
        fired = self._fired(statements.insert(names), names) + self._fired(f"DELETE FROM {where}", ()) * table.deletes
        for name in dict.fromkeys(updating + fired):
            of, sql = self._catalog.connection.execute(_TRIGGER, (name,)).fetchone()
            found = f"trigger {name} of table {of}"
            if name in updating and (clause := _OVERRIDDEN.search(sql)):
                message = f"{found}: an upsert takes its {clause[0]} for OR ABORT, so a conflict there stops the job"
                yield Finding("error", message, f"drop {name}; make it again with ON CONFLICT DO NOTHING or DO UPDATE")
            elif not table.guarded:  # else tasks meet it before the decision
                message = f"{found} can't be tried before the decision: if it refuses a row, the job stops"
                yield Finding("warning", message, f"see that {name} takes every row")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, names = self._table, self._names(schema)
        if self._error(schema):
            return
        silent, filled = self._catalog.clauses(names)
        for of in silent:
            message = f"UNIQUE ({of}) has ON CONFLICT REPLACE or IGNORE: rows of other keys, or these, would vanish"
            yield Finding("error", message, f"make table {table.name} again without that, or key the sink by {of}")
        for name, _, _, default, *_ in map(self._catalog.columns.__getitem__, map(ascii_lower, names)):
            if name in filled:
                message = f"column {name} of table {table.name} is NOT NULL ON CONFLICT REPLACE: of a NULL SQLite"
                fix = f"coalesce({name}, ...) in the transform, or make table {table.name} again without that clause"
                yield Finding("warning", f"{message} would store {default}, unreported", fix)
        if table.guarded:  # tasks meet the others before the decision
            return
        for of in map(", ".join, other_unique(self._catalog.connection, table, names)):
            message = f"UNIQUE ({of}) of table {table.name} can't be checked against rows there and of other tasks"
            yield Finding("warning", f"{message}: {_STOPS}", f"make {of} unique before this sink, or drop the rule")
        kept = len(names) < sum(not one["hidden"] for one in self._catalog.columns.values())
        partly = table.expressions or table.update_columns is not None or (kept and table.mode == "upsert")
        if partly and "CHECK" in self._catalog.form[0].upper():
            message = f"table {table.name} has CHECK, and a row there keeps some columns, which tasks can't know"
            yield Finding("warning", f"{message}; {_STOPS}", "select all columns that CHECK reads, or drop it")

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """SQLite enforces foreign keys only in connections that enable them, and this sink's don't."""
        table = self._table
        for (parent,) in self._catalog.connection.execute(_PARENTS, (table.name,)):
            message = f"table {table.name} has a FOREIGN KEY to {parent}: {_UNHELD}, so rows may show before theirs"
            fix = f'if another sink of this job feeds {parent}, set after = "..." (its name) on this one'
            yield Finding("warning", message, fix + ", or on that one where rows are deleted" * table.deletes)
        changed = set(map(ascii_lower, self._statements(schema).changed(self._names(schema))))
        children = self._catalog.connection.execute(_CHILDREN, (table.name,)).fetchall()
        for child in dict.fromkeys(child for child, _ in children):
            message = f"table {child} has a FOREIGN KEY to {table.name}: {_UNHELD}, so a"
            if moved := ", ".join(to for of, to in children if of == child and to and ascii_lower(to) in changed):
                fix = f"leave {moved} out of `update_columns`"
                yield Finding("warning", f"{message} change of {moved} neither stops nor cascades", fix)
            if table.deletes:
                fix = f'also delete from {child}; if a sink of this job does, set after = "..." here'
                yield Finding("warning", f"{message} delete neither stops nor cascades", fix)

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return iter(())  # SQLite has none

    @cached_property
    def _catalog(self) -> Catalog:
        return Catalog(self._connect() if self._path.exists() else sqlite3.connect(":memory:"), self._table)

    def _names(self, schema: pa.Schema | None) -> list[str]:
        """Name the columns that rows set in the present table; without a schema, all of its columns."""
        if schema is None:
            return [column["name"] for column in self._catalog.columns.values() if not column["hidden"]]
        names = [*self._table.stored(schema.names), *self.guard]
        return [name for name in names if ascii_lower(name) in self._catalog.columns]

    def _statements(self, schema: pa.Schema | None) -> Statements:
        return Statements.of(self._catalog.connection, self._table, self._names(schema))

    def _error(self, schema: pa.Schema | None) -> str:
        """Return SQLite's error for an upsert, or that columns are missing."""
        keyed = self._catalog.columns.keys() >= {*map(ascii_lower, self._table.keys), *self.guard}
        if not keyed or (schema is not None and self.lacking(schema)):
            return _LACKING
        try:
            self._fired(self._statements(schema).upsert(self._names(schema)), self._names(schema))
        except sqlite3.OperationalError as error:
            return str(error)
        return ""

    def _fired(self, statement: str, values: Sequence[str]) -> list[str]:
        """Name the triggers whose programs are part of a statement's program."""
        program = self._catalog.connection.execute(f"EXPLAIN {statement}", [None] * len(values)).fetchall()
        return [str(one[5]).removeprefix(_FIRES) for one in program if str(one[5]).startswith(_FIRES)]

    def _sums_of_texts(self, schema: pa.Schema) -> Iterator[Finding]:
        """Find decimals that `set` computes with: they are stored as text, with which SQLite computes in floats."""
        for column, sql in self._table.expressions:
            for one in (field for field in schema if pa.types.is_decimal(field.type)):
                read = one.name == column or re.search(rf"\b{re.escape(one.name)}\b", sql, re.IGNORECASE)
                if read and not _TAKEN_AS_IT_IS.fullmatch(sql):
                    message = f"`set` computes {column} of {one.name}, a {one.type}: SQLite would round it"
                    fix = f"bring it as a whole number in the transform: cast({one.name} * 100 AS BIGINT)"
                    yield Finding("error", message, fix)

    def _spelt(self, field: pa.Field, to: str) -> Iterator[Finding]:
        """Find a key that the table holds in another spelling than these rows: each such value would be two rows."""
        name, kind, table = quoted(field.name), column_type(field.type) or "", self._table
        number = to not in ("TEXT", "BLOB") and pa.types.is_decimal(field.type)
        other = "false" if number else other_spelling(field.type, name)
        if to == "BLOB" or (to == "TEXT" and kind in _KEPT_AS):
            other += f" OR typeof({name}) NOT IN ({_KEPT_AS.get(kind, _NUMBERS)})"
        query = f"SELECT {name} FROM main.{quoted(table.name)} WHERE {name} IS NOT NULL AND ({other}) LIMIT 1"
        for (held,) in self._catalog.connection.execute(query):
            message = f"key {field.name} of table {table.name} holds {held!r}, and rows of {field.type} spell it"
            fix = f"cast {field.name} to its earlier type in the transform, or rewrite the column as these rows are"
            yield Finding("error", f"{message} otherwise: one value would be two rows", fix)
        by = met_by(unique_rules(self._catalog.connection, table), table.keys).get(ascii_lower(field.name), "BINARY")
        if by != "BINARY" and kind == "TEXT":
            yield collated(table, field.name, by)


def _closed(path: Path) -> Finding | None:
    """Find files and folders that the driver's user may not write, and their owner; or a full disk."""
    beside = (Path(f"{path}{end}") for end in ("", "-wal", "-shm", "-journal"))
    needed = {path.parent: os.W_OK | os.X_OK, **dict.fromkeys(beside, os.R_OK | os.W_OK)}
    # It exists still, because another connection that ends removes its files at any moment.
    if (place := next((at for at, mode in needed.items() if not os.access(at, mode) and at.exists()), None)) is None:
        return full_disk(path.parent)
    me, owner, written = os.geteuid(), place.stat().st_uid, shlex.quote(str(place))
    message = f"{place} is not writable by user {me}, and user {owner} owns it: SQLite writes there, and makes files"
    fix = f"chmod u+rwX {written}" if me == owner else f"run the driver as user {owner}, or: chown {me} {written}"
    return Finding("error", message, fix)


def _file_system(path: Path) -> str:
    """Name the type of a path's file system, empty if no list of mounts has it."""
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()] if _MOUNTS.exists() else []
    return next((kind for at in path.resolve().parents for _, on, kind, *_ in reversed(mounts) if on == str(at)), "")

"""The questions about a table of SQLite, and what its tasks are to hold their rows against."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.limits import Limit
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.questions import Questions, frame_findings, keys_there
from exactsink_idempotent_upsert.sqlite.rows import met_by, other_unique, unique_rules
from exactsink_idempotent_upsert.sqlite.statements import Statements, column_type, listed, stored_values
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = ["SqliteQuestions"]

_COLUMNS = 'SELECT name, type, "notnull", dflt_value AS value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid'
_MADE = "SELECT type, name, tbl_name, sql FROM main.sqlite_master WHERE sql IS NOT NULL"
_COMPUTED = """
    SELECT 1 FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS part WHERE list.partial OR part.cid = -2
"""
_PARENTS = 'SELECT DISTINCT "table" FROM pragma_foreign_key_list(?) ORDER BY 1'
_CHILDREN = """
    SELECT child.name, key."to" FROM main.sqlite_master AS child, pragma_foreign_key_list(child.name) AS key
    WHERE child.type = 'table' AND lower(key."table") = lower(?) ORDER BY 1
"""
_AFFINITIES = {"INTEGER": "INT", "TEXT": "CHAR|CLOB|TEXT", "BLOB": "BLOB|^$", "REAL": "REAL|FLOA|DOUB", "NUMERIC": ""}
_KEPT_AS, _NUMBERS = {"TEXT": "'text'", "BLOB": "'blob'"}, "'integer', 'real'"
_STRICTLY = {"BIGINT": ("INT", "INTEGER"), "BOOLEAN": ("INT", "INTEGER"), "DOUBLE": ("REAL",)}
_DIGITS = 15  # SQLite keeps that many of a number that it turns into text, and of a text that it turns into a number
_WHOLE = 2**53  # beyond it a float skips whole numbers
_TAKEN_AS_IT_IS = re.compile(r"(?:\b(?:coalesce|ifnull)\s*\(|[\w\s.,\")])*", re.IGNORECASE)  # names, and no arithmetic
_CONSTRAINED = re.compile(r"\b(CHECK|CONFLICT)\b", re.IGNORECASE)
_STRICT = re.compile(r"\)[^)]*\bSTRICT\b[^)]*$", re.IGNORECASE)
_SILENT = re.compile(r"\bON\s+CONFLICT\s+(REPLACE|IGNORE)\b", re.IGNORECASE)
_REPLACE = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)
_OVERRIDDEN = re.compile(r"\b(INSERT|UPDATE)\s+OR\s+(IGNORE|REPLACE)\b|\bREPLACE\s+INTO\b", re.IGNORECASE)
_UNIQUE_CODES, _NULL_REFUSED = (1555, 2067, 2579), ("HaltIfNull", 1299)  # a primary key, UNIQUE, a row's number; NULL
_FIRES, _LACKING = "-- TRIGGER ", "columns are lacking"
_MOUNTS, _REMOTE = Path("/proc/self/mounts"), re.compile("nfs|cifs|smb|9p|ceph|lustre|gluster|beegfs|afs|sshfs")
_STOPS = "the job would stop after the decision, when a row breaks it"
_UNHELD = "SQLite leaves that to each connection, and this sink's don't check it"


class SqliteQuestions(Questions):
    """The answers of a file, by a connection that is opened when it is needed; none is made where there is no file."""

    def __init__(self, path: Path, table: Table, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path, self._table, self._connect = path, table, connect

    def close(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Ask all; of a frame or a place that no table has, the others would repeat it in other words."""
        first = [*self._frame(schema), *self.privileges(schema)]
        yield from first or super().findings(schema)

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from self._frame(schema)
        table, columns, statements = self._table, self._columns, Statements(self._table)
        if not columns and not table.create:
            made = "" if schema is None else f", or run: {statements.created_for(schema)};"
            yield Finding("error", f"table {table.name} does not exist in {self._path}", f"set create = true{made}")
        if not columns or schema is None:
            return
        for field in self._lacking(schema):
            statement = statements.with_column(field.name, column_type(field.type))
            yield Finding("error", f"table {table.name} has no column {field.name}", statement)
        if unguarded := [name for name in self._guard if name not in columns]:
            message = f"table {table.name} has no columns for whose write a row is, as strategy direct needs them"
            yield Finding("error", message, " ".join(statements.with_column(name, "BIGINT") for name in unguarded))
        given = set(map(ascii_lower, [*table.stored(schema.names), *self._guard]))
        for folded, one in columns.items():
            drawn = one["value"] is not None or one["hidden"] or (one["pk"] and one["type"].upper() == "INTEGER")
            if one["notnull"] and not drawn and folded not in given:
                message = (
                    f"column {one['name']} of table {table.name} is NOT NULL without a default, and the rows lack it"
                )
                yield Finding(
                    "error", message, f"select {one['name']} into this sink, or give it a DEFAULT in the table"
                )

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        if table.version is not None and table.deletes:
            message = "a row that `delete_when` deletes takes its version along: an older one that comes late is new"
            yield Finding("warning", message, "keep deleted rows, with a column that says so, if old ones come late")
        if schema is None:
            return
        yield from self._sums_of_texts(schema)
        for field in map(schema.field, table.stored(schema.names)):
            there = self._columns.get(ascii_lower(field.name))
            declared = there["type"] if there else column_type(field.type) or ""
            yield from _lost(table, field, declared)
            if field.name in table.keys and there:
                yield from self._spelt(field, _affinity(declared))

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Ask SQLite itself: it has the last word on a conflict target, a view, a generated column, `set`."""
        table, error = self._table, self._error(schema)
        if schema is None and self._columns:
            yield from keys_there(table, self._names(None), ascii_lower)
        if error.startswith("ON CONFLICT clause does not match"):
            message = f"table {table.name} has no PRIMARY KEY or UNIQUE index over exactly {', '.join(table.keys)}"
            yield Finding("error", message, Statements(table).with_unique_keys())
        elif error not in ("", _LACKING):
            what = "correct `set`, or " if table.expressions else ""
            message = f"table {table.name} can't be upserted into: {error}"
            yield Finding("error", message, f"{what}name another table, or fix {table.name}")

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """SQLite has no others than those of the files: it makes some beside the database."""
        path, folder = self._path, self._path.parent
        if not folder.is_dir():
            yield Finding("error", f"folder {folder} of the database does not exist", f"mkdir -p {folder}")
        elif path.is_dir():
            yield Finding("error", f"{path} is a folder", "name a file in `url`")
        elif (closed := _closed(path)) is not None:
            yield closed
        elif path.exists():
            try:
                self._connection.execute(_MADE).close()
            except sqlite3.OperationalError:
                raise  # busy, say
            except sqlite3.DatabaseError as error:
                yield Finding("error", f"{path} is not a SQLite database: {error}", "name another file in `url`")

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """The sink's connections set `synchronous` and WAL themselves; OFF and MEMORY are a connection's own."""
        if _REMOTE.search(kind := _file_system(self._path)):
            message = f"{self._path} is on a network file system ({kind}), whose locks and syncs may not hold"
            yield Finding("warning", message, f"put {self._path.name} on a disk of the host that writes it")

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find those that SQLite's own programs for an epoch's statements fire, by way of others, too."""
        if self._error(schema):
            return
        table, names, statements = self._table, self._names(schema), self._statements(schema)
        where, changed = f"main.{quoted(table.name)}", statements.changed(names)
        sets = ", ".join(f"{quoted(name)} = ?" for name in changed)
        updating = self._fired(f"UPDATE {where} SET {sets}", changed) if sets else []
        deleting = self._fired(f"DELETE FROM {where}", ()) if table.deletes else []
        for name in dict.fromkeys([*updating, *deleting, *self._fired(statements.insert(names), names)]):
            [(of, sql)] = [(of, sql) for kind, made, of, sql in self._made if (kind, made) == ("trigger", name)]
            found = f"trigger {name} of table {of}"
            if name in updating and (clause := _OVERRIDDEN.search(sql)):
                message = f"{found}: an upsert takes its {clause[0]} for OR ABORT, so a conflict there stops the job"
                yield Finding("error", message, f"make {name} anew with ON CONFLICT DO NOTHING, or DO UPDATE, instead")
            elif not table.guarded:  # else tasks meet it before the decision
                message = f"{found} can't be tried before the decision: if it refuses a row, the job stops"
                yield Finding("warning", message, f"see that {name} takes every row")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, names = self._table, self._names(schema)
        if self._error(schema):
            return
        silent, filled = self._clauses(schema)
        for of in silent:
            message = f"UNIQUE ({of}) has ON CONFLICT REPLACE or IGNORE: rows of other keys, or these, would vanish"
            yield Finding("error", message, f"make table {table.name} anew without that, or key the sink by {of}")
        for name, _, _, default, *_ in map(self._columns.__getitem__, map(ascii_lower, names)):
            if name in filled:
                message = f"column {name} of table {table.name} is NOT NULL ON CONFLICT REPLACE: of a NULL SQLite"
                fix = f"coalesce({name}, ...) in the transform, or make table {table.name} anew without that clause"
                yield Finding("warning", f"{message} would store {default}, unreported", fix)
        if table.guarded:  # tasks meet the others before the decision
            return
        for of in map(", ".join, other_unique(self._connection, table, names)):
            message = f"UNIQUE ({of}) of table {table.name} can't be checked against rows there and of other tasks"
            yield Finding("warning", f"{message}: {_STOPS}", f"make {of} unique before this sink, or drop the rule")
        kept = len(names) < sum(not one["hidden"] for one in self._columns.values())
        partly = table.expressions or table.update_columns is not None or (kept and table.mode == "upsert")
        if partly and "CHECK" in self._form[0].upper():
            message = f"table {table.name} has CHECK, and a row there keeps some columns, which tasks can't know"
            yield Finding("warning", f"{message}; {_STOPS}", "bring all columns that CHECK reads, or drop it")

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """SQLite holds to foreign keys only in connections that ask for it, and this sink's don't."""
        table = self._table
        for (parent,) in self._connection.execute(_PARENTS, (table.name,)):
            message = f"table {table.name} has a FOREIGN KEY to {parent}: {_UNHELD}, so rows may show before theirs"
            fix = f'if another sink of this job feeds {parent}, set after = "..." (its name) on this one'
            yield Finding("warning", message, fix + ", or on that one where rows are deleted" * table.deletes)
        changed = set(map(ascii_lower, self._statements(schema).changed(self._names(schema))))
        children = self._connection.execute(_CHILDREN, (table.name,)).fetchall()
        for child in dict.fromkeys(child for child, _ in children):
            message = f"table {child} has a FOREIGN KEY to {table.name}: {_UNHELD}, so a"
            if moved := ", ".join(to for of, to in children if of == child and to and ascii_lower(to) in changed):
                fix = f"leave {moved} out of what is set (`update_columns`)"
                yield Finding("warning", f"{message} change of {moved} neither stops nor cascades", fix)
            if table.deletes:
                fix = f'delete from {child}, too; if a sink of this job does, set after = "..." here'
                yield Finding("warning", f"{message} delete neither stops nor cascades", fix)

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """SQLite has none."""
        return iter(())

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        """Return what columns take: no NULL where they are NOT NULL, and in floats whole numbers that those have."""
        found, (_, filled) = {}, self._clauses(schema)
        for field in map(schema.field, self._table.stored(schema.names)):
            if (there := self._columns.get(ascii_lower(field.name))) is None:
                continue
            required = bool(there["notnull"] and there["name"] not in filled and field.name not in self._table.keys)
            whole = _WHOLE if _affinity(there["type"]) == "REAL" and pa.types.is_integer(field.type) else None
            if required or whole:
                found[field.name] = Limit(required=required, least=whole and -whole, greatest=whole)
        return found

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the statements that make a copy of the table; none where no row can break a constraint."""
        names, sql = self._table.stored(schema.names), self._form[0]
        computed = self._connection.execute(_COMPUTED, (self._table.name,)).fetchone()
        other = any(other_unique(self._connection, self._table, names))
        unfit = any(self._may_not_fit(schema.field(name)) for name in names)
        return self._form if sql and (computed or other or unfit or _CONSTRAINED.search(sql)) else ()

    def _frame(self, schema: pa.Schema | None) -> Iterator[Finding]:
        return frame_findings(self._table, schema, "SQLite", column_type, ascii_lower)

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        return self._connect() if self._path.exists() else sqlite3.connect(":memory:")

    @cached_property
    def _columns(self) -> dict[str, sqlite3.Row]:
        cursor = self._connection.cursor()
        cursor.row_factory = sqlite3.Row
        return {ascii_lower(row["name"]): row for row in cursor.execute(_COLUMNS, (self._table.name,))}

    @cached_property
    def _made(self) -> list[tuple[str, str, str, str]]:
        return self._connection.execute(_MADE).fetchall()

    @cached_property
    def _form(self) -> tuple[str, ...]:
        """The statements that made the table, and its indexes."""
        mine = [(kind, sql) for kind, _, of, sql in self._made if ascii_lower(of) == self._table.target]
        tables, indexes = ([sql for kind, sql in mine if kind == wanted] for wanted in ("table", "index"))
        return (*(tables or [""]), *indexes)

    @property
    def _guard(self) -> Sequence[str]:
        return GUARD if self._table.guarded else ()

    def _lacking(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that the rows bring and the table lacks, but for those that are added."""
        names = [name for name in self._table.stored(schema.names) if ascii_lower(name) not in self._columns]
        return [schema.field(name) for name in names if not self._table.add_columns or name in self._table.keys]

    def _names(self, schema: pa.Schema | None) -> list[str]:
        """Name the columns that rows set in the table as it is; without a schema all may be."""
        if schema is None:
            return [column["name"] for column in self._columns.values() if not column["hidden"]]
        names = [*self._table.stored(schema.names), *self._guard]
        return [name for name in names if ascii_lower(name) in self._columns]

    def _statements(self, schema: pa.Schema | None) -> Statements:
        return Statements.of(self._connection, self._table, self._names(schema))

    def _error(self, schema: pa.Schema | None) -> str:
        """Return what SQLite says to an upsert, or that columns are lacking."""
        keyed = self._columns.keys() >= {*map(ascii_lower, self._table.keys), *self._guard}
        if not keyed or (schema is not None and self._lacking(schema)):
            return _LACKING
        names = self._names(schema)
        try:
            self._fired(self._statements(schema).upsert(names), names)
        except sqlite3.OperationalError as error:
            return str(error)
        return ""

    def _fired(self, statement: str, values: Sequence[str]) -> list[str]:
        """Name the triggers whose programs are in that of a statement."""
        program = self._connection.execute(f"EXPLAIN {statement}", [None] * len(values)).fetchall()
        return [str(one[5]).removeprefix(_FIRES) for one in program if str(one[5]).startswith(_FIRES)]

    def _clauses(self, schema: pa.Schema | None) -> tuple[list[str], set[str]]:
        """Return the unique constraints by which the table drops or deletes rows, and the columns whose NULLs it fills:
        what it would refuse without its ON CONFLICT clauses.
        """
        (sql, *indexes), names, table = self._form, self._names(schema), self._table
        if not _SILENT.search(sql) or self._error(schema):
            return [], set()
        statement = f"EXPLAIN {Statements(table).insert(names)} ON CONFLICT ({listed(table.keys)}) DO NOTHING"
        (unique, nulls), (loud, _), (_, unfilled) = (
            _refusals([made, *indexes], statement, len(names))
            for made in (sql, *(clause.sub("ON CONFLICT ABORT", sql) for clause in (_SILENT, _REPLACE)))
        )
        return sorted(loud - unique), {said[len(table.name) + 1 :] for said in unfilled - nulls}  # `table.column`

    def _may_not_fit(self, field: pa.Field) -> bool:
        """Return whether a value might be of no type that a column takes, of a STRICT table or a row's number."""
        there, kind = self._columns.get(ascii_lower(field.name)), column_type(field.type) or ""
        strict, alone = _STRICT.search(self._form[0]), sum(one["pk"] > 0 for one in self._columns.values()) == 1
        if there is None or not (strict or (there["pk"] and alone and there["type"].upper() == "INTEGER")):
            return False
        return there["hidden"] > 0 or there["type"].upper() not in ("ANY", kind, *_STRICTLY.get(kind, ()))

    def _sums_of_texts(self, schema: pa.Schema) -> Iterator[Finding]:
        """Find what `set` computes of decimals: they are kept as text, with which SQLite reckons as with floats."""
        decimals = [field for field in schema if pa.types.is_decimal(field.type)]
        for column, sql in self._table.expressions:
            words = {column.lower(), *re.findall(r"\w+", sql.lower())}
            for field in [field for field in decimals if field.name.lower() in words][:1]:
                if not _TAKEN_AS_IT_IS.fullmatch(sql):
                    message = f"`set` computes {column} of {field.name}, a {field.type}: SQLite would round it"
                    fix = f"bring it as a whole number in the transform: cast({field.name} * 100 AS BIGINT)"
                    yield Finding("error", message, fix)

    def _spelt(self, field: pa.Field, affinity: str) -> Iterator[Finding]:
        """Find a key that the table holds in another spelling than these rows: each such value would be two rows."""
        name, kind, table = quoted(field.name), column_type(field.type) or "", self._table
        other = [_other_time(field.type, name)] if pa.types.is_temporal(field.type) else []
        if affinity in ("TEXT", "BLOB") and pa.types.is_decimal(field.type):
            other.append(_other_decimal(field.type, name))
        if affinity == "BLOB" or (affinity == "TEXT" and kind in _KEPT_AS):
            other.append(f"typeof({name}) NOT IN ({_KEPT_AS.get(kind, _NUMBERS)})")
        condition = f"{name} IS NOT NULL AND ({' OR '.join(other) or 'false'})"
        query = f"SELECT {name} FROM main.{quoted(table.name)} WHERE {condition} LIMIT 1"
        for (held,) in self._connection.execute(query):
            message = f"key {field.name} of table {table.name} holds {held!r}, and rows of {field.type} spell it"
            fix = f"cast {field.name} to its earlier type in the transform, or rewrite the column as these rows are"
            yield Finding("error", f"{message} otherwise: one value would be two rows", fix)
        by = met_by(unique_rules(self._connection, table), table.keys).get(ascii_lower(field.name), "BINARY")
        if by != "BINARY" and kind == "TEXT":
            message = f"key {field.name} of table {table.name} is met by {by}: texts of one key may come from two tasks"
            fix = f"lower({field.name}) or the like in the transform, and a column that compares bytes"
            yield Finding("error" if table.guarded else "warning", message, fix)


def _refusals(form: Sequence[str], statement: str, values: int) -> tuple[set[str], set[str]]:
    """Return what SQLite's own program for a statement refuses: columns that must be unique, and that are not NULL."""
    with closing(sqlite3.connect(":memory:")) as copy:
        for made in form:
            copy.execute(made)
        program = copy.execute(statement, [None] * values).fetchall()
    filled = {register for _, what, register, *_ in program if what == "NotNull"}
    unique = {said for _, what, code, _, _, said, *_ in program if what == "Halt" and code in _UNIQUE_CODES}
    nulls = [(said, register) for _, what, code, _, register, said, *_ in program if (what, code) == _NULL_REFUSED]
    return unique, {said for said, register in nulls if register not in filled}


def _affinity(declared: str) -> str:
    """Return what SQLite turns a column's values into, by its rules in their order; BLOB: nothing."""
    return next(kind for kind, parts in _AFFINITIES.items() if re.search(parts, declared.upper()))


def _lost(table: Table, field: pa.Field, declared: str) -> Iterator[Finding]:
    """Find what a column would make of values, and a version that it would not keep in its own order."""
    kind, stored, affinity = field.type, column_type(field.type), _affinity(declared)
    found = f"column {field.name} of table {table.name} is declared {declared}"
    number = affinity not in ("TEXT", "BLOB")
    digits = kind.precision if pa.types.is_decimal(kind) else 0
    if (number and digits > _DIGITS) or (affinity == "TEXT" and pa.types.is_floating(kind)):
        fix = f"declare {quoted(field.name)} {stored} in the table"
        yield Finding("error", f"{found}: SQLite would keep {_DIGITS} digits of {kind}", fix)
    elif number and stored == "TEXT" and not digits and not pa.types.is_temporal(kind):
        fix = f"declare {quoted(field.name)} TEXT in the table, or cast it to a number in the transform"
        yield Finding("warning", f"{found}, the rows have text: SQLite would store '007' as the number 7", fix)
    if field.name == table.version and stored != "BLOB":
        other = affinity != "BLOB" and (stored == "TEXT") != (affinity == "TEXT")
        if digits or other:
            message = f"`version` names {field.name}, a {kind}: as {declared} the table keeps it in another order"
            fix = f"cast {field.name} to BIGINT or to a timestamp in the transform, and declare the column so"
            yield Finding("error", message, fix)


def _other_time(kind: pa.DataType, name: str) -> str:
    """Return the condition that a value is not as times of this type are written."""
    [spelt] = stored_values(pa.array([0], kind))
    return f"{name} NOT GLOB '{re.sub('[0-9]', '[0-9]', spelt)}'"


def _other_decimal(kind: pa.DataType, name: str) -> str:
    [zero] = stored_values(pa.array([0], kind))
    after, body = zero[1:].replace("0", "[0-9]"), f"ltrim({name}, '-')"
    right = f"({body} GLOB '[1-9]*{after}' OR {body} GLOB '0{after}') AND {name} <> '-{zero}'"
    return f"NOT ({right}) OR {body} GLOB '*[^0-9{zero[1:2]}]*'"


def _closed(path: Path) -> Finding | None:
    """Find what the driver's user may not write, and whose it is."""
    beside = (Path(f"{path}{end}") for end in ("", "-wal", "-shm", "-journal"))
    needed = {path.parent: os.W_OK | os.X_OK, **{file: os.R_OK | os.W_OK for file in beside if file.exists()}}
    if (place := next((place for place, mode in needed.items() if not os.access(place, mode)), None)) is None:
        return None
    me, owner, written = os.geteuid(), place.stat().st_uid, shlex.quote(str(place))
    message = f"{place} is not writable by user {me}, and user {owner} owns it: SQLite writes there, and makes files"
    fix = f"chmod u+rwX {written}" if me == owner else f"run the driver as user {owner}, or: chown {me} {written}"
    return Finding("error", message, fix)


def _file_system(path: Path) -> str:
    """Name the kind of a path's file system; nothing where no list of mounts has it."""
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()] if _MOUNTS.exists() else []
    kinds = {at: kind for _, at, kind, *_ in mounts}
    return next((kinds[str(place)] for place in path.resolve().parents if str(place) in kinds), "")

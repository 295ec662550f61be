"""Check a table in PostgreSQL. The `postgres` backend checks the requirements of an INSERT."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.database import OWNER_TABLE
from exactsink_idempotent_upsert.postgres.columns import as_named, held_in
from exactsink_idempotent_upsert.postgres.statements import RESET, Statements
from exactsink_idempotent_upsert.questions import QUESTIONS, Questions, collated, forgotten, named_findings, unordered
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres import public as pg

__all__ = ["PostgresQuestions"]

_RIGHTS = """
    SELECT current_user AS role, current_database() AS database,
        has_any_column_privilege(%(oid)s::oid, 'UPDATE') AS may_update,
        has_table_privilege(%(oid)s::oid, 'DELETE') AS may_delete,
        has_table_privilege(%(oid)s::oid, 'SELECT') AS may_read,
        ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = %(oid)s::oid AND attname = ANY (%(names)s)
            AND NOT has_column_privilege(attrelid, attnum, 'UPDATE') ORDER BY attnum) AS closed
"""
_OWN = """
    SELECT current_user AS role, current_database() AS database, space, name,
        to_regclass(format('%%I.%%I', space, name)) AS oid, has_schema_privilege(space, 'CREATE') AS may_make,
        has_database_privilege(current_database(), 'TEMPORARY') AS may_hold
    FROM (SELECT coalesce(%(space)s, current_schema()) AS space) AS one, unnest(%(names)s::text[]) AS name ORDER BY name
"""
_ENFORCED = "AND coalesce(to_jsonb(pg_constraint) ->> 'conenforced', 'true')::bool ORDER BY 1"  # PostgreSQL 18
_REFERENCES = f"""
    SELECT quote_ident(conname) AS name, conrelid::regclass::text AS child, confrelid::regclass::text AS parent,
        conrelid = %(oid)s::oid AS own, ARRAY(SELECT attname::text FROM pg_attribute
            WHERE attrelid = confrelid AND attnum = ANY (confkey)) AS columns
    FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND %(oid)s::oid IN (conrelid, confrelid) {_ENFORCED}
"""
_CHECKS = f"""
    SELECT quote_ident(conname) AS name, ARRAY(SELECT attname::text FROM pg_attribute
        WHERE attrelid = conrelid AND attnum = ANY (conkey)) AS columns
    FROM pg_constraint WHERE contype = 'c' AND conrelid = %(oid)s {_ENFORCED}
"""
_RULES = """
    SELECT quote_ident(rulename) AS name FROM pg_rewrite WHERE ev_class = %(oid)s
        AND (ev_type = '2' OR ev_enabled <> 'D' AND ev_type = ANY (%(events)s)) ORDER BY 1
"""  # one ON UPDATE hinders ON CONFLICT even where it is disabled
_SUPPRESSED = """
    SELECT quote_ident(tgname) AS name, tgrelid::regclass::text AS of FROM pg_trigger
    WHERE tgfoid = 'suppress_redundant_updates_trigger()'::regprocedure AND NOT tgisinternal AND tgenabled <> 'D'
        AND tgparentid = 0 AND tgtype & 16 = 16
        AND (tgrelid = %(oid)s OR tgrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass))) ORDER BY 1
"""
_BYTES = r"~* '^(C|POSIX|C\.utf-?8)$'"
_COLLATED = f"""
    WITH here AS (
        SELECT datlocprovider = 'b' OR datlocprovider = 'c' AND datcollate {_BYTES} AS bytewise
        FROM pg_database WHERE datname = current_database())
    SELECT NULL AS name, true AS exact, bytewise FROM here
    UNION ALL
    SELECT attname::text, collisdeterministic, CASE collprovider WHEN 'd' THEN bytewise WHEN 'b' THEN true
        ELSE collprovider = 'c' AND collcollate {_BYTES} END
    FROM here, pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation WHERE attrelid = %(oid)s
"""
_TWO_PHASE = 'strategy = "two_phase"'
_ORS = re.compile(f"; or staging = |; else {_TWO_PHASE}")
_STOPS = "stops the job after the decision"


def _reworded(finding: Finding) -> Finding:
    """Return a finding of the `postgres` backend without the ways out that only it has."""
    if finding.fix.startswith(_TWO_PHASE):
        return replace(finding, fix="filter such rows before this sink, or drop it from the table")
    return replace(finding, fix=_ORS.split(finding.fix)[0])


class PostgresQuestions(Questions):
    """The answers of the server that a session leads to. All raise psycopg's errors."""

    def __init__(self, connection: pg.Session, options: pg.PostgresOptions, ctx: JobContext, table: Table) -> None:
        self._connection, self._options, self._ctx, self._table = connection, options, ctx, table

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Also check the server. A query that it refuses is a warning. Raises Retryable."""
        return pg.findings(self._options, self._ctx, self._connection, schema, None, self.asks(schema))

    def asks(self, schema: pa.Schema | None) -> pg.Asks:
        """Return the checks, by the words for their subject."""
        return {f"the {name} of table {self._options.name}": partial(getattr(self, name), schema) for name in QUESTIONS}

    def columns(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Also check, in one query, the table, types and role that an INSERT needs."""
        for name in schema.names if schema is not None and self._table.guarded else ():
            if name.lower() in GUARD:
                message = f"the rows have a column {name}, which strategy direct keeps itself"
                yield Finding("error", message, f"rename it: withColumnRenamed({name!r}, ...)")
        if schema is not None:
            yield from named_findings(self._table, schema)
        stored = None if schema is None else held_in(self._table, schema)
        yield from map(_reworded, pg.table_findings(self._options, self._ctx, self._connection, stored, late=False))
        if self._table.expressions and self._keyed:
            yield from self._tried(schema)

    def types(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, there = self._table, self._there
        yield from forgotten(table)
        found = pg.ask(self._connection, _COLLATED, oid=there and there.oid)
        exact = {one["name"]: one["exact"] for one in found}
        bytewise = {one["name"]: one["bytewise"] and (found[0]["bytewise"] or not table.guarded) for one in found}
        for column in self._named(table.keys):
            if column.base == "citext" or not exact.get(column.name, True):
                yield collated(table, column.name, "citext" if column.base == "citext" else "its collation")
        for column in self._named(filter(None, [table.version])):
            texts = column.base in ("text", "varchar", "bpchar")
            if column.base == "citext" or (texts and not bytewise[column.name]):
                yield unordered(column.name, self._altered(column.name))
        if there is None and table.create and schema is not None and table.version in schema.names:
            version = schema.field(schema.names.index(table.version))
            if pg.family(version.type) == "text" and not found[0]["bytewise"]:
                made = pg.create_table(self._options.name, held_in(table, schema), table.keys)
                yield unordered(version.name, f"{made}; {self._altered(version.name)}")

    def keys(self, schema: pa.Schema | None) -> Iterator[Finding]:
        there = self._there
        if there is not None and not self._keyed:
            message = f"table {there} has no unique index over exactly the keys {', '.join(self._table.keys)}"
            columns = ", ".join(quoted(column.name) for column in self._named(sorted(self._table.keys)))
            yield Finding("error", message, f"CREATE UNIQUE INDEX ON {there.sql} ({columns});")

    def privileges(self, schema: pa.Schema | None) -> Iterator[Finding]:
        table, there = self._table, self._there
        names = [OWNER_TABLE, "exactsink_staged"] if table.guarded else ["exactsink_rounds"]
        space = there.schema if there else self._options.name.schema
        own = pg.ask(self._connection, _OWN, space=space, names=names)
        role = quoted(own[0]["role"])
        if not own[0]["may_hold"] and (table.guarded or Statements(table, "", (), (), None, ()).in_rounds):
            fix = pg.grant("TEMPORARY", f"DATABASE {quoted(own[0]['database'])}", role)
            yield Finding("error", f"role {role} may not make temporary tables, which hold rows of a transaction", fix)
        for one in own if table.guarded else ():
            if one["oid"] is None and not one["may_make"]:
                message = f"role {role} may not make table {one['space']}.{one['name']}, which strategy direct keeps"
                yield Finding("error", message, pg.grant("CREATE", f"SCHEMA {quoted(one['space'])}", role))
        if table.guarded:
            yield from pg.unusable(self._ctx, self._connection, own[0]["space"], role, *names)
        if there is not None:
            yield from self._rights(there, schema)

    def durability(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Whatever the role or database has, each session of the sink sets synchronous_commit itself."""
        return pg.settings(self._connection)

    def triggers(self, schema: pa.Schema | None) -> Iterator[Finding]:
        yield from self._late("trigger ", "constraint trigger ")
        there = self._there
        sql = there.sql if there else ""
        events = ["3", *("4" * self._table.deletes)]
        for rule in self._ask(_RULES, events=events):
            message = f"table {there}: rule {rule['name']}: the server refuses upserts into a table with such a rule"
            yield Finding("error", message, f"DROP RULE {rule['name']} ON {sql};")
        updates = self._table.guarded or self._table.mode != "insert_if_absent"
        for one in self._ask(_SUPPRESSED) if updates else ():
            message = f"table {there}: trigger {one['name']} drops updates that change nothing: an epoch whose row"
            yield Finding("error", f"{message} is dropped is refused", f"DROP TRIGGER {one['name']} ON {one['of']};")

    def constraints(self, schema: pa.Schema | None) -> Iterator[Finding]:
        there, table = self._there, self._table
        if there is None or table.guarded:  # tasks that write directly meet them before the decision
            return
        yield from self._late("deferrable ", "exclusion ", "unique ")
        keys = {column.name for column in self._named(table.keys)}
        for index in there.unique:
            if index.plain and set(index.columns) != keys:
                message = f"table {there}: unique index {index.name} is checked only when a decided epoch is applied"
                message += ": a row that it refuses stops the job then"
                yield Finding("warning", message, "filter such rows before this sink")
        if schema is None or table.mode == "insert_if_absent":
            return
        changed, computed = set(self._set(there, schema)), set(dict(table.expressions))
        for check in self._ask(_CHECKS):
            read = set(check["columns"])
            if read & changed and not read <= (changed | keys) - computed:
                message = f"table {there}: CHECK {check['name']} reads columns that an existing row keeps or computes"
                fix = "select all columns that it reads, or drop it"
                yield Finding("warning", f"{message}: a row that breaks it {_STOPS}", fix)

    def references(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find them in both directions."""
        yield from self._late("foreign key ")
        there, table = self._there, self._table
        changed = set(self._set(there, schema)) if there and schema is not None else set()
        for key in self._ask(_REFERENCES):
            name, parent, child = key["name"], key["parent"], key["child"]
            if key["own"] and table.guarded:
                message = f"table {there}: foreign key {name} to {parent}: tasks may write before those of the sink"
                fix = f'where a sink of this job feeds {parent}: strategy = "staged", and after = "..." (its name)'
                yield Finding("warning", f"{message} that feeds it, and the epoch fails", fix)
            elif not key["own"] and table.deletes:
                message = f"table {child} has foreign key {name} to {there}: a delete that it refuses {_STOPS}"
                fix = f'also delete from {child}; if a sink of this job does, set after = "..." (its name) on this one'
                yield Finding("warning", f"{message}, and nothing reports rows that a cascade deletes", fix)
            if not key["own"] and not table.guarded and (moved := sorted(changed & set(key["columns"]))):
                columns = ", ".join(moved)
                message = f"table {child} has foreign key {name} to {there} ({columns}): a change that it refuses"
                yield Finding("warning", f"{message} {_STOPS}", f"leave {columns} out of update_columns")

    def partitions(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Partitions that no transaction covers are found with the columns."""
        return self._late("whether ", "what its own ")

    @cached_property
    def _there(self) -> pg.Table | None:
        found = pg.read_table(self._connection, self._options.name)
        return found if found is not None and found.kind in ("r", "p") else None

    @cached_property
    def _deferred(self) -> Mapping[str, Finding]:
        table, there = self._table, self._there
        if there is None or table.guarded:  # tasks that write directly meet it before the decision
            return {}
        return pg.deferred_findings(
            self._connection, there, 4 | 16 * (table.mode != "insert_if_absent") | 8 * table.deletes
        )

    def _late(self, *kinds: str) -> Iterator[Finding]:
        return (_reworded(finding) for name, finding in self._deferred.items() if name.startswith(kinds))

    def _ask(self, query: str, **given: object) -> Sequence[Any]:
        """Query the catalog for the table; no rows if it does not exist."""
        return pg.ask(self._connection, query, oid=self._there.oid, **given) if self._there else ()

    def _named(self, names: Any) -> list[pg.Column]:
        """Return the table's columns with these names, if it has them."""
        there = self._there
        return [found[0] for found in pg.matches(list(names), there.columns) if found] if there else []

    @property
    def _keyed(self) -> bool:
        keys = {column.name for column in self._named(self._table.keys)}
        there = self._there
        return there is not None and any(index.plain and set(index.columns) == keys for index in there.unique)

    def _set(self, there: pg.Table, schema: pa.Schema) -> list[str]:
        """Name the columns that a row of the sink sets in an existing row."""
        brought = [column.name for column in self._named(held_in(self._table, schema).names)]
        if self._table.mode == "replace":
            brought += [name for (name,) in self._connection.execute(RESET, (there.oid, brought)).fetchall()]
        table = as_named(self._table, [column.name for column in there.columns])
        return [*table.updated(brought), *dict(table.expressions)]

    def _rights(self, there: pg.Table, schema: pa.Schema | None) -> Iterator[Finding]:
        table = self._table
        names = [] if schema is None else self._set(there, schema)
        if table.deletes and not names:  # rows that are deleted are locked first
            names = [column.name for column in self._named(table.keys)]
        [may] = pg.ask(self._connection, _RIGHTS, oid=there.oid, names=names)
        role = quoted(may["role"])
        if may["closed"] or (schema is None and table.mode != "insert_if_absent" and not may["may_update"]):
            columns = f" ({', '.join(map(quoted, may['closed']))})" if may["may_update"] else ""
            message = f"role {role} may not update table {there.sql}{columns}"
            yield Finding("error", message, pg.grant(f"UPDATE{columns}", there.sql, role))
        if table.guarded and not may["may_read"]:
            message = f"role {role} may not read table {there.sql}: an upsert looks for the row there"
            yield Finding("error", message, pg.grant("SELECT", there.sql, role))
        if table.deletes and not may["may_delete"]:
            message = f"role {role} may not delete from table {there.sql}"
            yield Finding("error", message, pg.grant("DELETE", there.sql, role))

    def _tried(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Have the server read `set`."""
        there = self._there
        assert there is not None
        table = as_named(self._table, [column.name for column in there.columns])
        names = [column.name for column in self._named(table.keys if schema is None else held_in(table, schema).names)]
        statement = Statements(table, there.sql, tuple(names), tuple(names), None, ()).tried()
        try:
            self._connection.execute(statement.encode())
        except (psycopg.ProgrammingError, psycopg.DataError) as error:
            if isinstance(error, psycopg.errors.InsufficientPrivilege) and list(self._rights(there, schema)):
                return  # found with the privileges
            message = f"table {there}: the server refuses `set`: {error.diag.message_primary}"
            yield Finding("error", message, f"correct `set`: {', '.join(dict(table.expressions))}")

    def _altered(self, column: str) -> str:
        name = self._there.sql if self._there else self._options.name.sql
        return f'ALTER TABLE {name} ALTER COLUMN {quoted(column)} TYPE text COLLATE "C";'

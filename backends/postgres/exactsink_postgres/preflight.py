"""What would fail every epoch, or could lose decided rows: looked for before the first row, each with what fixes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Fatal, Finding, JobContext, Txn
from exactsink_postgres.commands import create_table, grant, quoted, set_on_server
from exactsink_postgres.errors import explained, shown
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import ask
from exactsink_postgres.tables import Table, added_columns, deferred_constraints, problems, read_table
from exactsink_postgres.type_mapping import matches

__all__ = ["OLDEST_VERSION", "findings"]

OLDEST_VERSION = 15

_PLACE = """
    SELECT pg_is_in_recovery() AS replica, current_setting('transaction_read_only')::bool AS read_only,
        session_user AS login, current_database() AS database,
        (SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only') AS source
"""
_HELD = """
    SELECT gid, owner, database, database = current_database() AS here,
        extract(epoch FROM clock_timestamp() - prepared)::float8 AS age, owner = current_user AS mine,
        (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser
    FROM pg_prepared_xacts ORDER BY prepared, gid
"""
_CLOSED = """
    SELECT signature, quote_ident(current_user) AS role FROM unnest(%(functions)s::text[]) AS signature
    WHERE NOT has_function_privilege(signature, 'EXECUTE')
"""
_HISTORY = ["pg_control_system()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)"]
_ROOM_FOR_RETRIES = 2  # a killed attempt may hold a slot until its epoch is committed
_SLOTS_TO_START_WITH = 64
_SPACE = """
    SELECT coalesce(%(space)s, current_schema()) AS space, current_setting('search_path') AS path,
        current_user AS role, space.oid IS NOT NULL AS there, has_schema_privilege(space.oid, 'USAGE') AS reachable,
        has_schema_privilege(space.oid, 'CREATE') AS creatable
    FROM (SELECT) AS one LEFT JOIN pg_namespace AS space ON space.nspname = coalesce(%(space)s, current_schema())
"""
_PARTS = """
    SELECT format('%%I.%%I', space.nspname, class.relname) AS part, class.relkind::text AS kind
    FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree JOIN pg_class AS class ON class.oid = tree.relid
        JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE tree.isleaf AND (class.relkind = 'f' OR class.relpersistence <> 'p') ORDER BY 1
"""
_CLOSED_SEQUENCES = """
    SELECT DISTINCT format('%%I.%%I', space.nspname, sequence.relname) AS sequence, attribute.attname AS column
    FROM pg_attrdef AS filler JOIN pg_attribute AS attribute
            ON attribute.attrelid = filler.adrelid AND attribute.attnum = filler.adnum
        JOIN pg_depend AS uses ON uses.classid = 'pg_attrdef'::regclass AND uses.objid = filler.oid
            AND uses.refclassid = 'pg_class'::regclass
        JOIN pg_class AS sequence ON sequence.oid = uses.refobjid JOIN pg_namespace AS space ON space.oid = relnamespace
    WHERE filler.adrelid = %(oid)s AND attribute.attname <> ALL (%(names)s) AND attribute.attgenerated = ''
        AND CASE WHEN sequence.relkind = 'S' THEN NOT has_sequence_privilege(sequence.oid, 'USAGE, UPDATE') END
    ORDER BY 1
"""
_OWN = """
    SELECT class.relname AS name, class.relname ~ '^exactsink_rows_' AS made_by_epoch,
        pg_has_role(class.relowner, 'USAGE') AS owned,
        has_table_privilege(class.oid, 'SELECT') AND has_table_privilege(class.oid, 'INSERT')
            AND has_table_privilege(class.oid, 'UPDATE') AND has_table_privilege(class.oid, 'DELETE') AS usable
    FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE space.nspname = %(space)s AND class.relkind = 'r'
        AND (class.relname IN ('exactsink_epochs', 'exactsink_staged')
        OR class.relname ~ '^exactsink_rows_' AND starts_with(obj_description(class.oid, 'pg_class'), %(sink)s))
    ORDER BY 1
"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}
_TIMEOUTS = """
    SELECT name, setting::float8 / 1000 AS seconds, source, session_user AS login, current_database() AS database
    FROM pg_settings WHERE setting::bigint > 0 AND setting::bigint < %(budget)s AND name = ANY (%(names)s) ORDER BY name
"""
_CUT = {
    "idle_in_transaction_session_timeout": "a transaction that waits for its task's next rows",
    "statement_timeout": "the COPY of a task's rows",
    "transaction_timeout": "a task's transaction",
}
_WEAK = {
    "fsync": "a crash of the server's machine may lose or spoil what was committed",
    "full_page_writes": "a crash of the server's machine may spoil pages that were being written",
    "track_activities": "a stalled task that still writes is not seen, so no sweep can end it and free its locks",
}
_RATE = """
    SELECT sum((xact_commit + xact_rollback) / greatest(watched, %(young)s))::float8 AS per_second,
        max(watched) AS watched, current_setting('autovacuum_freeze_max_age')::bigint / 2 AS most,
        least(current_setting('vacuum_freeze_min_age')::bigint,
            current_setting('autovacuum_freeze_max_age')::bigint / 2) AS kept
    FROM pg_stat_database, LATERAL (
        SELECT extract(epoch FROM clock_timestamp() - coalesce(stats_reset,
            (SELECT least(writer.stats_reset, archiver.stats_reset)
                FROM pg_stat_bgwriter AS writer, pg_stat_archiver AS archiver)))::float8 AS watched
    ) AS since
"""
_YOUNG_SECONDS = 3600.0  # statistics of less say nothing of a week


def findings(
    options: PostgresOptions,
    ctx: JobContext,
    connection: psycopg.Connection,
    schema: pa.Schema,
    participants: int | None,
) -> Iterator[Finding]:
    """Find what keeps such rows from the table, or the sink from its guarantee; errors first, in a fixed order.

    Changes nothing and holds no lock: it runs before the claim and the sweep. `connection` is in autocommit.
    `participants` is the most that an epoch can have, None when nothing bounds it. What a server can't be asked is a
    warning. Raises Retryable when the session is lost.
    """
    two_phase = options.strategy == "two_phase"
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "its prepared transactions": lambda: _slots(ctx, connection, participants) if two_phase else iter(()),
        "which database it is": lambda: _history(connection),
        f"table {options.name}": lambda: _table(options, ctx, connection, schema),
        "its timeouts": lambda: _timeouts(ctx, connection),
        "its settings": lambda: _settings(connection),
        "how long it knows of a commit": lambda: _evidence(ctx, connection) if two_phase else iter(()),
    }
    found = list(_asked(connection, "its version, and whether it can be written", lambda: _writable(connection)))
    if not any(finding.severity == "error" for finding in found):  # the rest is for the server that can be written
        for subject, check in checks.items():
            found += _asked(connection, subject, check)
    yield from sorted(found, key=lambda finding: finding.severity != "error")


def _asked(connection: psycopg.Connection, subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Return a check's findings; what the server refuses to report is one of them."""
    try:
        yield from check()
    except psycopg.Error as error:
        if connection.closed:
            with explained(f"ask the server for {subject}"):
                raise
        with suppress(psycopg.Error):
            connection.rollback()
        fix = "let the role read it (GRANT pg_monitor TO ..., or what the message names), then `exactsink check`"
        yield Finding("warning", f"the server does not report {subject}: {shown(error)}", fix)


def _writable(connection: psycopg.Connection) -> Iterator[Finding]:
    if connection.info.server_version < OLDEST_VERSION * 10_000:
        version = connection.info.parameter_status("server_version")
        message = f"the server is PostgreSQL {version}, this sink needs {OLDEST_VERSION} or newer"
        yield Finding("error", message, f"pg_upgrade to PostgreSQL {OLDEST_VERSION} or newer")
        return
    [at] = ask(connection, _PLACE)
    if at["replica"]:
        fix = "name the primary, or all servers and target_session_attrs=read-write, in conninfo"
        yield Finding("error", "the server is a replica: it can't be written", fix)
    elif at["read_only"]:
        message = "transactions are read only here (default_transaction_read_only is on)"
        yield Finding("error", message, _unset("default_transaction_read_only", "off", at))


def _history(connection: psycopg.Connection) -> Iterator[Finding]:
    for closed in ask(connection, _CLOSED, functions=_HISTORY):
        message = f"role {closed['role']} may not call {closed['signature']}, which identifies a database"
        yield Finding("error", message, grant("EXECUTE", f"FUNCTION {closed['signature']}", closed["role"]))


def _slots(ctx: JobContext, connection: psycopg.Connection, participants: int | None) -> Iterator[Finding]:
    """Compare free slots with what an epoch needs. What this sink holds itself is committed or swept at the start."""
    slots = ask(connection, "SELECT current_setting('max_prepared_transactions')::int AS slots")[0]["slots"]
    if slots == 0:
        wanted = max(_SLOTS_TO_START_WITH, _ROOM_FOR_RETRIES * (participants or 0))
        message = "the server prepares no transactions: max_prepared_transactions is 0"
        yield Finding("error", message, f'{_raised(wanted)}; or strategy = "staged" in the config, which needs none')
        return
    held = ask(connection, _HELD)
    own = [one for one in held if _is_own(ctx, one)]
    owners = sorted({one["owner"] for one in own if not one["mine"] and not one["superuser"]})
    if owners:
        message = f"role {', '.join(owners)} prepared transactions of this sink: no other role may end them"
        yield Finding("error", message, f"user={owners[0]} in conninfo, as it was when they were prepared")
    others = [one for one in held if one not in own]
    free = slots - len(others)
    bounded = f"max_participants = {free} in the config"
    if free < (participants or 1):
        message = f"{free} of {slots} slots for prepared transactions are free, an epoch needs {participants or 'some'}"
        message += f"; others hold {len(others)}, the oldest {_named(others[0])}" if others else ""
        ways = [_raised(len(others) + _ROOM_FOR_RETRIES * (participants or _SLOTS_TO_START_WITH))]
        ways += [bounded] if free > 0 else []
        ways += ["have the others' owners commit or roll them back"] if others else []
        yield Finding("error", message, "; or ".join(ways))
    elif participants is None:
        message = f"nothing bounds how many participants an epoch has, and {free} of {slots} slots for prepared "
        yield Finding("warning", message + "transactions are free: an epoch with more fails", bounded)


def _is_own(ctx: JobContext, held: dict[str, Any]) -> bool:
    txn = Txn.parse(held["gid"])
    return txn is not None and held["here"] and (txn.job, txn.sink) == (ctx.job, ctx.sink)


def _named(held: dict[str, Any]) -> str:
    return f"{held['gid']!r} of {held['owner']} in database {held['database']}, {_duration(held['age'])} old"


def _raised(slots: int) -> str:
    return set_on_server({"max_prepared_transactions": slots}, restart=True)


def _table(
    options: PostgresOptions, ctx: JobContext, connection: psycopg.Connection, schema: pa.Schema
) -> Iterator[Finding]:
    """Find what keeps rows of `schema` out of the sink's table."""
    name, staged = options.name, options.strategy == "staged"
    table = read_table(connection, name)
    [at] = ask(connection, _SPACE, space=table.schema if table else name.schema)
    role, space = quoted(at["role"]), at["space"]
    if not at["there"]:
        message = f"no schema of search_path ({at['path']}) exists that role {at['role']} may use"
        fix = f"name the schema in the config: table = 'public.{quoted(name.name)}'"
        if name.schema is not None:
            message = f"schema {name.schema} does not exist"
            fix = f"CREATE SCHEMA {quoted(name.schema)} AUTHORIZATION {role};"
        yield Finding("error", message, fix)
        return
    if not at["reachable"]:
        message = f"role {role} may not use schema {space}"
        yield Finding("error", message, grant("USAGE", f"SCHEMA {quoted(space)}", role))
    if not at["creatable"] and (staged or (options.create and table is None)):
        what = 'make its staging tables (strategy = "staged")' if staged else "make the table"
        message = f"role {role} may not {what} in schema {space}"
        yield Finding("error", message, grant("CREATE", f"SCHEMA {quoted(space)}", role))
    if staged:
        yield from _staging_tables(ctx, connection, space, role)
    if table is None:
        yield from _absent(options, schema, space)
    elif table.kind not in ("r", "p"):
        message = f"{name} is {_KINDS.get(table.kind, 'no table')}: rows go into ordinary and partitioned tables"
        yield Finding("error", message, 'name the table itself in the config: table = "schema.name"')
    else:
        yield from _unfit(connection, table, role)
        yield from _rights(options, connection, table, schema, role)
        yield from _columns(options, table, schema, role)
        for constraint in deferred_constraints(connection, table) if staged else ():
            message = f"table {table}: {constraint} is checked only when a decided epoch is applied: a row "
            fix = 'strategy = "two_phase" in the config, which checks before the decision'
            yield Finding("warning", message + "that it refuses stops the job then", fix)


def _absent(options: PostgresOptions, schema: pa.Schema, space: str) -> Iterator[Finding]:
    """Return how the table is made."""
    try:
        ways = [f"{create_table(options.name, schema)};", "create = true in the config"]
    except Fatal as error:
        yield Finding("error", error.what, error.next)
        return
    if not options.create:
        yield Finding("error", f"table {options.name} does not exist in schema {space}", " or ".join(ways))


def _staging_tables(ctx: JobContext, connection: psycopg.Connection, space: str, role: str) -> Iterator[Finding]:
    """Find tables of the staged strategy, made by another role, that this one can't use."""
    for own in ask(connection, _OWN, space=space, sink=f"{ctx.job}.{ctx.sink}."):
        name = f"{quoted(space)}.{quoted(own['name'])}"
        if own["made_by_epoch"] and not own["owned"]:
            message = f"staging table {space}.{own['name']} of this sink belongs to another role"
            yield Finding("error", f"{message}: this one can't drop it", f"ALTER TABLE {name} OWNER TO {role};")
        elif not own["usable"]:
            message = f"role {role} may not use table {space}.{own['name']}, which strategy staged keeps"
            yield Finding("error", message, grant("SELECT, INSERT, UPDATE, DELETE", name, role))


def _unfit(connection: psycopg.Connection, table: Table, role: str) -> Iterator[Finding]:
    """Refuse what COPY, a crash, or PREPARE TRANSACTION would not take as a table."""
    if table.row_security:
        message = f"row security of table {table} applies to this role, and COPY refuses it"
        fix = f"ALTER ROLE {role} BYPASSRLS; or ALTER TABLE {table.sql} DISABLE ROW LEVEL SECURITY;"
        yield Finding("error", message, fix)
    parts = ask(connection, _PARTS, oid=table.oid) if table.kind == "p" else []
    if table.kind == "r" and table.persistence == "u":
        parts = [{"part": table.sql, "kind": "r"}]
    for part in parts:
        if part["kind"] == "f":
            message = f"partition {part['part']} of table {table} is a foreign table: no commit here covers it"
            yield Finding("error", message, f"ALTER TABLE {table.sql} DETACH PARTITION {part['part']};")
        else:
            message = f"table {part['part']} is unlogged: a crash of the server empties it, decided rows and all"
            yield Finding("error", message, f"ALTER TABLE {part['part']} SET LOGGED;")


def _rights(
    options: PostgresOptions, connection: psycopg.Connection, table: Table, schema: pa.Schema, role: str
) -> Iterator[Finding]:
    """Find the privileges that the strategy's statements lack."""
    names = [found[0].name for found in matches(schema.names, table.columns) if len(found) == 1]
    closed = [name for name in table.closed if name in names]
    if closed:
        columns = f" ({', '.join(map(quoted, closed))})" if len(closed) < len(names) else ""
        message = f"role {role} may not insert into table {table}{columns}"
        yield Finding("error", message, grant(f"INSERT{columns}", table.sql, role))
    if options.strategy == "staged" and not table.readable:
        message = f"role {role} may not read table {table}: strategy staged makes its staging tables like it"
        yield Finding("error", message, grant("SELECT", table.sql, role))
    for row in ask(connection, _CLOSED_SEQUENCES, oid=table.oid, names=names):
        message = (
            f"role {role} may not use sequence {row['sequence']}, which fills column {row['column']} of table {table}"
        )
        yield Finding("error", message, grant("USAGE", f"SEQUENCE {row['sequence']}", role))


def _columns(options: PostgresOptions, table: Table, schema: pa.Schema, role: str) -> Iterator[Finding]:
    """Hold the rows' columns against the table's; say what add_columns will do, or why it can't."""
    adds = options.on_schema_change == "add_columns"
    yield from problems(table, schema, add_columns=adds)
    statements: list[str] = []
    with suppress(Fatal):  # a type that no column can have: reported above
        statements = added_columns(table, schema) if adds else []
    if not statements:
        return
    listed = " ".join(f"{statement};" for statement in statements)
    if table.owned:
        message = f"table {table} lacks columns of the rows, which the first epoch adds (on_schema_change)"
        yield Finding("warning", message, f"{listed} run it yourself to choose other types")
    else:
        message = f"table {table} lacks columns of the rows, and role {role}, which does not own it, can't add them"
        yield Finding("error", message, f"{listed} or ALTER TABLE {table.sql} OWNER TO {role};")


def _timeouts(ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Compare the timeouts, as this session has them, with what an epoch may take."""
    budget = ctx.epoch_budget_seconds
    for found in ask(connection, _TIMEOUTS, budget=budget * 1000, names=list(_CUT)):
        name = found["name"]
        message = f"{name} is {_duration(found['seconds'])}, an epoch may take {_duration(budget)} (epoch_budget): "
        yield Finding("warning", f"{message}it may end {_CUT[name]}", _unset(name, "0", found))


def _settings(connection: psycopg.Connection) -> Iterator[Finding]:
    """Find settings of the server that weaken what a commit means, or blind the sweep. No fsync: no guarantee.

    synchronous_commit is none of them. PREPARE TRANSACTION and COMMIT PREPARED are always synchronous, says the
    documentation ("Asynchronous Commit", in the chapter on reliability), and the staged strategy sets it itself.
    """
    off = "SELECT name FROM pg_settings WHERE name = ANY (%(names)s) AND setting = 'off' ORDER BY name"
    for found in ask(connection, off, names=list(_WEAK)):
        name = found["name"]
        fix = set_on_server({name: "on"}, restart=False)
        yield Finding("error" if name == "fsync" else "warning", f"{name} is off: {_WEAK[name]}", fix)


def _evidence(ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Estimate how long a commit can be proven, and warn when the job may stand still for longer.

    A repeated COMMIT PREPARED is resolved by pg_xact_status. The server keeps a transaction's status while any row of
    any table may need it ("Preventing Transaction ID Wraparound Failures" in the documentation: pg_xact is cut at the
    oldest datfrozenxid). A participant's rows need it until VACUUM freezes them, as a rule from vacuum_freeze_min_age
    transactions on, at most half of autovacuum_freeze_max_age. Mostly it is kept far longer, as every other old row
    keeps it too; but it is no bound: VACUUM FREEZE ends it at once, a DELETE of the rows may, and from 16 on VACUUM may
    freeze a page early. Beyond it the answer is Unknown, never a guess.

    The transactions are the server's own count, of all databases, and more than took an id: those that only read are
    among them. The count survives a clean restart, a crash empties it; either way the same views say since when.
    """
    [now] = ask(connection, _RATE, young=_YOUNG_SECONDS)
    if now["watched"] is None or now["watched"] < _YOUNG_SECONDS:
        return
    rate, pause = now["per_second"], ctx.longest_pause_seconds
    known_seconds = now["kept"] / max(rate, 1e-9)
    if known_seconds >= pause:
        return
    message = (
        f"at about {rate:.3g} transactions a second (measured over {_duration(now['watched'])}) the server "
        f"may forget after {_duration(known_seconds)} that a transaction was committed (vacuum_freeze_min_age, in "
        f"effect {now['kept']}), the job may stand still for {_duration(pause)} (longest_pause): then a commit "
        "may not be provable"
    )
    wanted = -(-int(rate * pause + 1) // 1_000_000) * 1_000_000
    raised = {"autovacuum_freeze_max_age": 2 * wanted} if wanted > now["most"] else {}
    ways = [f'longest_pause = "{max(int(known_seconds / 60), 1)} minutes" in the config']
    if wanted <= 1_000_000_000:  # the most that a server takes
        ways.append(set_on_server({**raised, "vacuum_freeze_min_age": wanted}, restart=bool(raised)))
    yield Finding("warning", message, "; or ".join(ways))


def _unset(name: str, value: str, now: dict[str, Any]) -> str:
    """Return what ends a setting, for a session whose setting comes from `source` (pg_settings)."""
    if now["source"] == "client":
        return f"take {name} out of `options` in conninfo (or PGOPTIONS)"
    there = f" IN DATABASE {quoted(now['database'])}" if now["source"] == "database user" else ""
    return f"ALTER ROLE {quoted(now['login'])}{there} SET {name} = {value};"


def _duration(seconds: float) -> str:
    """Write a time span in the unit that people would."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"

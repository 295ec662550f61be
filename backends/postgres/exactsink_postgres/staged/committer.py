"""The staged strategy, the driver's side: one transaction moves a decided epoch from its staging table to the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Marker,
    Outcome,
    Retryable,
    Undecided,
    Unknown,
)
from exactsink_postgres.load import Ticket, payload_of
from exactsink_postgres.locks import LockWatch
from exactsink_postgres.opening import open_table
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import findings
from exactsink_postgres.rows import Column
from exactsink_postgres.server import History
from exactsink_postgres.session import KeptSession
from exactsink_postgres.staged.ledger import Ledger, in_query
from exactsink_postgres.staged.rows_table import ATTEMPT, RowsTable, drop_idle, staged_columns
from exactsink_postgres.staged.writer import DURABLE, StagedTicket
from exactsink_postgres.sweeping import list_in_doubt, roll_back
from exactsink_postgres.tables import Table, chosen_columns, quoted

__all__ = ["StagingCommitter"]

_ATTEMPT_COLUMN = Column(ATTEMPT, "bigint", "int8", not_null=True, optional=False)
_SCHEMA = """
    SELECT coalesce((SELECT space.nspname FROM pg_class AS class JOIN pg_namespace AS space
        ON space.oid = class.relnamespace WHERE class.oid = to_regclass(%s)), %s, current_schema())
"""
_DECIDED = "the epoch is decided, and its rows wait in their staging table"
_APPLYING = (
    DURABLE,
    "SET LOCAL synchronize_seqscans = off",  # a participant's rows go over in the order in which they came
)


@dataclass(frozen=True, slots=True)
class _Staged:
    """Where the rows of some committables wait."""

    schema: str
    rows_table: str
    committables: tuple[Committable, ...]

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.rows_table)}"

    @property
    def attempts(self) -> list[int]:
        return [committable.txn.attempt for committable in self.committables]

    @property
    def rows(self) -> int:
        return sum(committable.rows for committable in self.committables)


class _Doubt(Exception):
    """The rows are not there as they were voted: nothing is applied."""


class StagingCommitter(Committer):
    """Opens epochs with a staging table each, and applies a decided one together with its marker, once for good."""

    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx
        name = f"exactsink {ctx.job}.{ctx.sink} driver"
        self._session = KeptSession(options.server, name, options.lock_timeout_seconds)
        self._swept = False
        self._left: set[str] = set()  # staging tables that could not be dropped: not tried again with every epoch

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._session.use(f"{self._doing}: check table {self._options.name}") as connection:
            return list(findings(self._options, self._ctx, connection, schema, participants))

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        doing = f"{self._doing}: prepare table {self._options.name} for epoch {epoch}"
        with self._session.use(doing, "no row of the epoch is written yet") as connection:
            history = History.of(connection)
            table = open_table(connection, self._options, self._ctx, epoch, schema)
            ledger = Ledger(table.schema)
            with self._transaction(connection):
                ledger.create(connection)
            stored = ledger.marker(connection, self._ctx.job, self._ctx.sink)
            self._marker(epoch, self._ctx.generation).check_new(stored)
            if not self._swept:
                self._drop_idle(connection, ledger, set())
                self._swept = True
            return self._opened(connection, epoch, history, table, chosen_columns(table, schema))

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        marker = self._marker(epoch, max(c.txn.generation for c in committables))
        parts = _by_table(committables)
        ledger = Ledger(parts[0].schema)
        doing = f"{self._doing}: commit epoch {epoch} to table {self._options.name}"
        with self._session.use(doing, _DECIDED) as connection:
            elsewhere = _elsewhere(History.of(connection), committables)
            if elsewhere is not None:
                return [Unknown(elsewhere) for _ in committables]
            try:
                with self._watched(connection, doing):
                    applied = self._apply(connection, ledger, marker, parts)
            except _Doubt as doubt:
                return [Unknown(str(doubt)) for _ in committables]
            self._drop_idle(connection, ledger, set())
        return [Committed() if applied else AlreadyCommitted() for _ in committables]

    def abort(self, undecided: Undecided) -> None:
        refs = [participant.ref for participant in undecided]
        doing = f"{self._doing}: roll back what was not decided"
        with self._session.use(doing) as connection:
            roll_back(connection, self._ctx.job, self._ctx.sink, refs, doing)
            ledger = Ledger(self._schema(connection))
            with self._transaction(connection):
                emptied = ledger.forget(connection, refs)
            self._left.clear()  # the sessions that held them have ended
            self._drop_idle(connection, ledger, emptied)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._session.use(f"{self._doing}: list what is in doubt") as connection:
            # In this order: who commits its rows between the two listings is in the second one.
            found = list_in_doubt(connection, self._ctx.job, self._ctx.sink)
            found += Ledger(self._schema(connection)).in_doubt(connection, self._ctx.job, self._ctx.sink)
        return list({participant.ref: participant for participant in found}.values())

    def close(self) -> None:
        self._session.close()

    def _opened(
        self, connection: psycopg.Connection, epoch: int, history: History, table: Table, columns: tuple[Column, ...]
    ) -> bytes:
        """Make the epoch's staging table, and the ticket that leads there."""
        ctx = self._ctx
        rows = RowsTable(table.schema, f"{ctx.job}.{ctx.sink}", ctx.generation, ctx.lineage, epoch)
        with self._transaction(connection):
            rows.create(connection, table.sql, [column.name for column in columns])
            keys = rows.add_keys(connection, [(index.name, index.columns) for index in table.unique if index.plain])
        load = Ticket(history, str(table), rows.relation, (_ATTEMPT_COLUMN, *columns))
        return StagedTicket(load, table.schema, table.name, rows.name, tuple(keys)).dump()

    def _apply(self, connection: psycopg.Connection, ledger: Ledger, marker: Marker, parts: Sequence[_Staged]) -> bool:
        """Apply the epoch and store its marker in one transaction, or find under the marker's lock that it was done."""
        if not marker.must_apply(ledger.marker(connection, marker.job, marker.sink)):
            return False
        with self._transaction(connection):
            for setting in _APPLYING:
                connection.execute(setting)
            try:
                if not marker.must_apply(ledger.lock_marker(connection, marker)):
                    return False
                for part in parts:
                    self._check_registered(connection, ledger, part)
                for part in parts:
                    self._move(connection, part)
            except psycopg.errors.UndefinedTable as error:
                raise _Doubt(f"{error.diag.message_primary}, and no marker holds epoch {marker.epoch}") from error
            ledger.store_marker(connection, marker)
            ledger.forget(connection, [c.txn.id for part in parts for c in part.committables])
        return True

    def _check_registered(self, connection: psycopg.Connection, ledger: Ledger, part: _Staged) -> None:
        known = ledger.registered(connection, [c.txn.id for c in part.committables])
        for committable in part.committables:
            staged = known.get(committable.txn.id)
            if staged is None:
                why = "is not in table exactsink_staged any more"
            elif staged.rows_table != part.rows_table or staged.rows != committable.rows:
                why = f"has {staged.rows} rows in table {staged.rows_table}"
            else:
                continue
            raise _Doubt(
                f"{committable.txn.id}, decided with {committable.rows} rows in table {part.schema}.{part.rows_table}, "
                f"{why}, and no marker holds epoch {committable.txn.epoch}"
            )

    def _move(self, connection: psycopg.Connection, part: _Staged) -> None:
        columns = ", ".join(map(quoted, staged_columns(connection, part.sql)))
        if not columns:
            raise _Doubt(f"staging table {part.sql} is gone, and no marker holds its epoch")
        target = f"{quoted(part.schema)}.{quoted(self._options.name.name)}"
        move = f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {part.sql}"
        moved = connection.execute(f"{in_query(move)} WHERE {ATTEMPT} = ANY (%s)", (part.attempts,)).rowcount
        if moved != part.rows:
            raise _Doubt(
                f"table {target} took {moved} of the {part.rows} rows that were voted in table {part.sql}: they were "
                "changed there, or a trigger or rule of the table drops or adds rows; nothing of the epoch was applied"
            )

    def _drop_idle(self, connection: psycopg.Connection, ledger: Ledger, emptied: set[str]) -> None:
        """Drop own staging tables that nobody will fill or read any more: of older claims, and of applied epochs.

        Those in `emptied`, whose participants are gone, go too, when no other participant is left in them.
        """
        ctx = self._ctx
        stored = ledger.marker(connection, ctx.job, ctx.sink)
        done = stored.epoch if stored is not None and stored.lineage == ctx.lineage else -1
        idle = []
        for table in RowsTable.find(connection, ledger.schema, f"{ctx.job}.{ctx.sink}"):
            if table.lineage == ctx.lineage:
                over = table.generation < ctx.generation or table.epoch <= done
            else:  # another journal's: its participants were aborted because an operator has said so
                over = table.name in emptied
            if over:
                idle.append(table)
        self._left |= drop_idle(connection, ledger, [table for table in idle if table.name not in self._left])

    def _schema(self, connection: psycopg.Connection) -> str:
        row = connection.execute(_SCHEMA, (self._options.name.sql, self._options.name.schema)).fetchone()
        assert row is not None
        return str(row[0])

    @contextmanager
    def _transaction(self, connection: psycopg.Connection) -> Iterator[None]:
        with connection.transaction():
            connection.execute("SET LOCAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
            yield

    @contextmanager
    def _watched(self, connection: psycopg.Connection, doing: str) -> Iterator[None]:
        """Name who holds a lock that does not come: a stalled driver of this job, say."""
        watch = LockWatch(self._options.server, connection.info.backend_pid, self._options.lock_timeout_seconds)
        try:
            with watch.working():
                yield
        except psycopg.errors.LockNotAvailable as error:
            seen, held, fix = watch.blocker, "a lock did not come in time", "wait; then start the job again"
            if seen is not None:
                held, fix = f"blocked by {seen}", f"end it ({seen.ended_by}), or {fix}"
            raise Retryable(f"{doing}: {held}", why=_DECIDED, next=fix) from error
        finally:
            watch.close()

    def _marker(self, epoch: int, generation: int) -> Marker:
        return Marker(self._ctx.job, self._ctx.sink, self._ctx.lineage, epoch, generation)

    @property
    def _doing(self) -> str:
        return f"sink {self._ctx.sink}"


def _by_table(committables: Sequence[Committable]) -> list[_Staged]:
    """Sort committables by where their rows wait: an epoch that was decided again may have two such tables."""
    found: dict[tuple[str, str], list[Committable]] = {}
    for committable in committables:
        payload = payload_of(committable)
        found.setdefault((payload["schema"], payload["rows_table"]), []).append(committable)
    return [_Staged(schema, table, tuple(waiting)) for (schema, table), waiting in sorted(found.items())]


def _elsewhere(here: History, committables: Sequence[Committable]) -> str | None:
    """Return when the rows wait in another database than this session's."""
    for committable in committables:
        payload = payload_of(committable)
        if (payload["system"], payload["database"]) != (here.system, here.database):
            return (
                f"{committable.txn.id} is staged in system {payload['system']}, database {payload['database']}; "
                f"this is {here}"
            )
    return None

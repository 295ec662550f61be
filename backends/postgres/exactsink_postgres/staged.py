"""Strategy `staged`: rows wait in a staging table, and one transaction applies an epoch together with its mark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    ExactsinkError,
    Fatal,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.sql import quoted
from exactsink_postgres.committer import UNBEGUN, PostgresCommitter
from exactsink_postgres.errors import AGAIN, UNDECIDED
from exactsink_postgres.load import LoadingWriter, Ticket
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import VoteRegistry, in_query
from exactsink_postgres.server import Session
from exactsink_postgres.staging_tables import ATTEMPT, Form, OpenEpoch, RowsAt, StagingTable, clear, make_schema
from exactsink_postgres.tables import UniqueIndex, chosen_columns, ensure_table
from exactsink_postgres.type_mapping import Column

__all__ = ["ATTEMPT_COLUMN", "Gone", "StagedTicket", "StagingCommitter", "StagingWriter", "Unproven"]

ATTEMPT_COLUMN = Column(ATTEMPT, "bigint", "int8", not_null=True, optional=False)
_DECIDED = "the epoch is decided, and its rows wait in their staging table"
_IN_ORDER = "SET LOCAL synchronize_seqscans = off"  # a participant's rows are applied in the order of their staging


@dataclass(frozen=True, slots=True)
class StagedTicket(Ticket):
    """A ticket for a staging table, with the sink's table that gets its rows.

    `target` is the sink's table. `keys` are its unique indexes that are checked before the decision.
    """

    target: str
    staging: StagingTable
    keys: tuple[UniqueIndex, ...]


class StagingWriter(LoadingWriter):
    """COPY a task attempt's rows into the staging table, each with the attempt's number.

    Rows and registry entry are one transaction, and its COMMIT is the vote. Constraints of the sink's table are checked
    before that COMMIT, also against its existing rows, so that a decided epoch can be applied.
    """

    payload_version = RowsAt.VERSION
    own_columns: tuple[Column, ...] = (ATTEMPT_COLUMN,)

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._staged = StagedTicket.load(ticket)
        self._schema = pa.schema([*((own.name, pa.int64()) for own in self.own_columns), *schema])
        super().__init__(options, txn, self._schema, self._staged)

    def write(self, batch: pa.RecordBatch) -> None:
        own = self.own_values(batch.num_rows)
        super().write(pa.RecordBatch.from_arrays([*own, *batch.columns], schema=self._schema))

    def own_values(self, count: int) -> list[pa.Array]:
        """Return the values of `own_columns` for so many rows."""
        return [pa.repeat(pa.scalar(self._txn.attempt, pa.int64()), count)]

    def enter(self) -> None:
        """Lock the staging table for the epoch until the transaction ends.

        Raises if it belongs to another epoch now.
        """
        super().enter()
        table = self._staged.staging
        self.execute(f"LOCK TABLE {table.relation} IN ROW EXCLUSIVE MODE")
        if not table.is_standing(self.session, self.tag):
            raise self._taken()

    def vote(self, rows: int) -> dict[str, Any]:
        staged, table = self._staged, self._staged.staging
        with self.explained():
            for key in staged.keys:
                self._check_key(key)
            table.registry(self.session).register(self.tag, self._txn.id, table.name, rows)
        self.end("COMMIT")
        return asdict(RowsAt(table.schema, table.name, table.unlogged, staged.schema, ()))

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            with super().explained():
                yield
        except ExactsinkError as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.errors.UndefinedTable) and self._staged.staging.name in str(cause):
                raise self._taken() from cause
            raise

    def _taken(self) -> Retryable:
        what = f"{self._doing}: its staging table {self._staged.staging.name} is gone, or another epoch's"
        why = f"a newer driver has claimed the job and swept generation {self._txn.generation}'s undecided work"
        fix = f"{AGAIN}, unless its new driver runs already"
        return Retryable(what, why=f"{why}; or somebody dropped it", next=fix)

    def _check_key(self, key: UniqueIndex) -> None:
        """Check whether one of this attempt's rows has a key that already exists in the sink's table.

        It uses an aggregate, not LIMIT 1: usually no row is found, so the plan must be good for all of them.
        """
        listed = ", ".join(f"staged.{quoted(column)}" for column in key.columns)
        equal = " AND ".join(f"target.{quoted(column)} = staged.{quoted(column)}" for column in key.columns)
        ((found,),) = self.execute(
            f"SELECT min(ROW({listed})::text) FROM {self._ticket.relation} AS staged "
            f"JOIN {quoted(self._staged.schema, self._staged.target)} AS target ON {equal} "
            f"WHERE staged.{ATTEMPT} = {self._txn.attempt}"
        ).fetchall()
        if found is not None:
            named = f"key ({', '.join(key.columns)})={found}"
            raise Fatal(
                f"{self._doing}: {self._named(key)}: {named} is in the table already",
                why=f"SQLSTATE 23505; {UNDECIDED}",
                next=f"drop such rows before this sink, or delete them from the table, then {AGAIN}",
            )

    def _named(self, key: UniqueIndex) -> str:
        return f"table {self._staged.schema}.{self._staged.target}, constraint {key.name}"

    def renamed(self, text: str) -> str:
        staging, own = self._staged.staging, self._staged
        text = text.replace(f"{staging.schema}.{staging.name}", f"{own.schema}.{own.target}")
        return text.replace(f"{ATTEMPT}, ", "").replace(staging.name, own.target)


class Unproven(Exception):
    """The staged rows are not those that were voted: nothing is applied."""

    def judged(self, seen: Mark | None) -> Lost | Unknown:
        """Return the outcome of these participants, given the mark that the journal knows."""
        return Unknown(str(self))


class Gone(Unproven):
    """They are not there at all."""

    def judged(self, seen: Mark | None) -> Lost | Unknown:
        return super().judged(seen) if seen is None else Lost(f"{self}; the target's mark is {seen}")


class StagingCommitter(PostgresCommitter):
    """Gives each epoch a staging table of its own, and applies a decided one together with its mark, exactly once."""

    def __init__(self, options: PostgresOptions, ctx: JobContext) -> None:
        super().__init__(options, ctx)
        self._sink = f"{ctx.job}.{ctx.sink}"
        self._swept = False
        self._keys: tuple[UniqueIndex, ...] = ()  # of the table, as the epoch was opened
        self._left: set[StagingTable] = set()  # tables that could not be freed: each is reported once

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        ctx, options = self.ctx, self._options
        with self.using(f"prepare table {self._options.name} for epoch {epoch}", UNBEGUN, epoch) as session:
            form, columns = self.form(session, schema)
            table = form.like
            fed_by = self._fed_by(session)
            if not self._swept:
                self._clear(session, options.staging_schema)
                self._swept = True
            with session.transaction():
                make_schema(session, options.staging_schema)
                VoteRegistry(session, options.staging_schema, unlogged=form.unlogged).create()
                opened = OpenEpoch(ctx.generation, ctx.lineage, epoch)
                staging = StagingTable.take(session, options.staging_schema, self._sink, opened, form)
                keys = staging.keys(session, table) if form.unique else ()
            self._keys = keys
            self._drop_outdated(session, staging)
            where = (str(table), staging.relation, columns, table.schema, ctx.lineage, fed_by)
            return StagedTicket(*where, table.name, staging, keys).dump()

    def form(self, session: Session, schema: pa.Schema) -> tuple[Form, tuple[Column, ...]]:
        """Return the form of the staging table, and its columns for a task's rows."""
        table = ensure_table(session, self._options, self.ctx.sink, schema)
        columns = chosen_columns(table, schema)
        names = tuple(column.name for column in columns)
        return Form(table, names, unlogged=self._options.staging == "unlogged"), (ATTEMPT_COLUMN, *columns)

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:
        """Refuse rows of the epoch with the same unique key. An index would find them, at three times the cost."""
        doing, waiting = f"check the votes of epoch {epoch} for table {self._options.name}", RowsAt.places(committables)
        if not self._keys:
            return
        with self.using(doing, UNDECIDED) as session, session.transaction():
            session.run("SET LOCAL enable_hashagg = off")  # a sort takes half as long, as keys come once
            for key in self._keys:
                for place, given in waiting.items():
                    where = f"sink {self.ctx.sink}, table {place.schema}.{self._options.name.name}"
                    StagingTable.check_twice(session, place.relation, key, given, where)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        doing = f"commit epoch {epoch} to table {self._options.name}"
        with self.using(doing, _DECIDED) as session:
            _, seen = self._seen(session, doing)
            try:
                outcome: Outcome = self._apply(session, seen, epoch, committables)
            except Unproven as doubt:
                outcome = doubt.judged(seen)
            else:
                self._clear(session, *{place.staging_schema for place in map(RowsAt.of, committables)})
        return [outcome for _ in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        doing = f"check how epoch {epoch} ended for table {self._options.name}"
        standing: Standing = Prepared()
        with self.using(doing) as session:
            _, seen = self._seen(session, doing)
            try:
                check_staged(session, _waiting(session, committables, keep=False))
            except Unproven as doubt:
                standing = doubt.judged(seen)
            except psycopg.errors.UndefinedTable as error:
                standing = _undefined(error, epoch).judged(seen)
            # In this order: an epoch that another driver applies and clears meanwhile has its mark by now.
            if self._is_marked(self.marks(session, RowsAt.of(committables[0]).schema), seen, epoch):
                standing = AlreadyCommitted()
        return [standing for _ in committables]

    def roll_back(self, session: Session, refs: Sequence[str]) -> None:
        super().roll_back(session, refs)
        emptied = {name for registry in self._registries(session) for name in registry.forget(refs)}
        self._clear(session, self._options.staging_schema, emptied=emptied)

    def listed(self, session: Session) -> list[InDoubt]:
        # In this order: who commits its rows between the two listings is in the second one.
        found = super().listed(session)
        for registry in self._registries(session):
            found += registry.in_doubt(self.ctx.job, self.ctx.sink)
        return found

    def held_by(self, session: Session, ref: str) -> Sequence[str]:
        waits = [one for registry in self._registries(session) for one in registry.held_by(ref)]
        return [*super().held_by(session, ref), *waits]

    def _registries(self, session: Session) -> list[VoteRegistry]:
        """Return where this sink's participants may be registered."""
        return [VoteRegistry(session, self._options.staging_schema, unlogged=unlogged) for unlogged in (False, True)]

    def _apply(self, session: Session, seen: Mark | None, epoch: int, given: Sequence[Committable]) -> Outcome:
        """Apply the epoch and leave its mark in one transaction, or find under the marks' lock that it was done."""
        schema = RowsAt.of(given[0]).schema
        marks = self.marks(session, schema)
        with session.transaction():
            session.run(_IN_ORDER)
            marks.lock()
            if self._is_marked(marks, seen, epoch):
                return AlreadyCommitted()
            try:
                waiting = _waiting(session, given)
                self.apply_rows(session, quoted(schema, self._options.name.name), waiting)
                marks.add(epoch, max(given, key=lambda committable: committable.txn.generation).txn.token)
            except psycopg.errors.UndefinedTable as error:
                raise _undefined(error, epoch) from error
            for place, committables in waiting.items():
                place.registry(session).forget([committable.txn.id for committable in committables])
        return Committed()

    def apply_rows(self, session: Session, target: str, waiting: Mapping[RowsAt, Sequence[Committable]]) -> None:
        """Move an epoch's rows into the sink's table."""
        for place, committables in waiting.items():
            _move(session, place.relation, target, committables)

    def _clear(self, session: Session, *schemas: str, emptied: Collection[str] = ()) -> None:
        """Free the sink's staging tables that nobody will fill or read any more.

        Those are tables of older claims and of applied epochs, and those in `emptied` whose participants are gone, if
        no other participant is left in them.
        """
        ctx = self.ctx
        mark = self.marks(session).newest()
        done = -1 if mark is None or mark.epoch is None or mark.lineage != ctx.lineage else mark.epoch
        idle = []
        for table in (table for schema in set(schemas) for table in StagingTable.find(session, schema, self._sink)):
            opened = table.opened
            if opened is not None and opened.lineage == ctx.lineage:
                over = opened.generation < ctx.generation or opened.epoch <= done
            else:  # another journal's: its participants were aborted because an operator has said so
                over = table.name in emptied
            if over:
                idle.append(table)
        clear(session, idle, self._left)

    def _drop_outdated(self, session: Session, now: StagingTable) -> None:
        """Drop free tables of another form, because the sink's table, or the columns of its rows, have changed."""
        tables = StagingTable.find(session, now.schema, self._sink)
        outdated = [table for table in tables if table.opened is None and table.form != now.form]
        clear(session, outdated, self._left, drop=True)


def _undefined(error: psycopg.Error, epoch: int) -> Gone:
    return Gone(f"{error.diag.message_primary}, and no mark holds epoch {epoch}")


def _waiting(
    session: Session, committables: Sequence[Committable], *, keep: bool = True
) -> dict[RowsAt, list[Committable]]:
    """Sort committables by where their rows wait: an epoch that was decided again may have two such tables.

    Raises Gone where some are not registered any more. `keep` them so until the transaction ends.
    """
    found = RowsAt.places(committables)
    for place, waiting in found.items():
        known = place.registry(session).registered([committable.txn.id for committable in waiting], keep=keep)
        gone = [committable.txn.id for committable in waiting if committable.txn.id not in known]
        if gone:
            raise Gone(f"of {len(waiting)} participants {len(gone)} are in table exactsink_staged no more: {gone[0]}")
    return dict(sorted(found.items()))


def check_staged(session: Session, waiting: Mapping[RowsAt, Sequence[Committable]]) -> None:
    """Raise Unproven unless as many rows as were voted are staged."""
    voted = sum(committable.rows for committables in waiting.values() for committable in committables)
    there = sum(
        StagingTable.rows(session, place.relation, [c.txn.attempt for c in of]) for place, of in waiting.items()
    )
    if there != voted:
        raise Unproven(f"{there} of {voted} rows that were voted are staged: they were changed; nothing was applied")


def _move(session: Session, rows: str, target: str, committables: Sequence[Committable]) -> None:
    """Insert their rows of a staging table into the sink's table."""
    columns = ", ".join(map(quoted, StagingTable.columns(session, rows, [ATTEMPT])))
    if not columns:
        raise Gone(f"staging table {rows} is gone, and no mark holds its epoch")
    query = in_query(f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {rows}")
    attempts = [committable.txn.attempt for committable in committables]
    moved = session.run(f"{query} WHERE {ATTEMPT} = ANY (%s)", attempts).rowcount
    voted = sum(committable.rows for committable in committables)
    if moved != voted:
        raise Unproven(
            f"table {target} took {moved} of the {voted} rows that were voted in table {rows}: they were "
            "changed there, or a trigger or rule of the table drops or adds rows; nothing of the epoch was applied"
        )

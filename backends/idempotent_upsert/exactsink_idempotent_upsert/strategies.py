"""The two strategies, for any database.

Staged: the driver applies rows and marker in one transaction, after the decision. Direct: each task upserts its own
rows in one transaction together with its vote, before the decision. After it, the driver stores the marker, once it has
found every vote. Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Committable,
    Committed,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    LineageError,
    Lost,
    Outcome,
    Prepared,
    Refused,
    Standing,
    Txn,
    Undecided,
    Unknown,
    Validator,
    Writer,
)
from exactsink.toolkit.payloads import check_version
from exactsink.toolkit.roads import Applier, Marker, MarkerCommitter, StagedBackend, StagedCommitter
from exactsink_idempotent_upsert.database import STAGED, UNBEGUN, UNDECIDED, VOTES, WRITTEN, Database, Owner, Strategy
from exactsink_idempotent_upsert.limits import CheckedWriter, TableValidator, Ticket, Trial, check_limits

__all__ = ["UpsertApplier", "Upserts"]


class UpsertApplier(Applier):
    """Apply epochs to one table, each in one transaction with its marker."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check_target(self) -> Iterable[Finding]:
        return self.check(None)

    def check(self, schema: pa.Schema | None) -> Iterable[Finding]:
        with self._database.explained("look at the table"):
            return list(self._database.findings(schema))

    def open_epoch(self, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent, also from two processes; durable."""
        with self._database.explained("make the tables"), self._database.transaction(make=True) as session:
            session.make_tables(schema)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        with self._database.explained("read the marker"):
            return self._database.last_marker(job, sink)

    def put_birth(self, birth: Marker) -> Marker:
        with self._database.explained("put the birth"):
            return self._database.put_birth(birth)

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        database = self._database
        doing = f"apply epoch {marker.epoch} to table {database.table.name}"
        with database.explained(doing, STAGED), database.transaction() as session:
            # Read here, under the lock: an earlier read may be outdated by another process.
            if not marker.must_apply(session.marker(marker.job, marker.sink)):
                return False
            session.apply(batches)
            session.store(marker)
        return True

    def close(self) -> None:
        """Do nothing, because each call closes the connection that it opened."""


def _audit(ctx: JobContext, database: Database, epochs: Iterable[int]) -> Mapping[int, Audit]:
    """Count the table's rows by the epoch that wrote each last; empty if no column holds the epoch."""
    epochs, column = list(epochs), ctx.epoch_column
    if column is None:
        return {}
    with database.explained(f"count the rows of table {database.table.name} by {column}"):
        return Audit.by_column(column, database.by_epoch(column, min(epochs)), epochs, at_most=True)


class UpsertCommitter(StagedCommitter):
    """Commit staged rows. Tasks get the limits of the table's columns, beside the staging folder."""

    def __init__(self, ctx: JobContext, database: Database) -> None:
        super().__init__(ctx, UpsertApplier(database))
        self._database = database

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        folder = super().open_epoch(epoch, schema, participants)
        return _ticket(folder.decode(), self._database, schema)

    def row_rules(self, schema: pa.Schema) -> bytes:
        return _ticket("", self._database, schema)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        return _audit(self._ctx, self._database, epochs)


class Upserts(Strategy):
    """Staged in files, or direct, depending on the table. `backend` checks batches."""

    def __init__(self, backend: StagedBackend, database: Database, shown: str) -> None:
        self._backend, self._database, self._shown = backend, database, shown

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        had, database = Ticket.loaded(ticket), self._database
        if database.table.guarded:
            writer: Writer = DirectWriter(self._backend, database, txn, schema, had)
        else:
            writer = StagedBackend.writer(self._backend, txn, schema, had.given.encode())
        return CheckedWriter(writer, partial(check_limits, self._shown, had.limits), self._trial(had, schema))

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        had = Ticket.loaded(rules)

        def check(batch: pa.RecordBatch) -> None:
            self._backend.check_batch(batch)
            check_limits(self._shown, had.limits, batch)

        return TableValidator(check, self._trial(had, schema), schema)

    def committer(self, ctx: JobContext) -> Committer:
        return (DirectCommitter if self._database.table.guarded else UpsertCommitter)(ctx, self._database)

    def _trial(self, had: Ticket, schema: pa.Schema) -> Trial | None:
        form = () if self._database.table.guarded else had.form
        return self._database.trial(form, schema.names) if form else None


class DirectWriter(Writer):
    """Hold a task's rows, and upsert them at `pre_commit` in one short transaction.

    So no lock is held while rows are computed, and an attempt that dies has shown none of its rows: it never overwrites
    a rival attempt's last row of a key with an earlier one.
    """

    def __init__(self, backend: StagedBackend, database: Database, txn: Txn, schema: pa.Schema, given: Ticket) -> None:
        self._backend = backend
        self._database = database
        self._txn = txn
        self._lineage = given.given
        self._doing = f"write epoch {txn.epoch} to table {database.table.name}"
        with database.explained(self._doing, UNDECIDED):
            self._held = database.hold(txn, schema, given.form)

    def write(self, batch: pa.RecordBatch) -> None:
        self._backend.check_batch(batch)
        with self._database.explained(self._doing, UNDECIDED):
            self._held.add(batch)

    def pre_commit(self) -> Committable:
        held, txn = self._held, self._txn
        with closing(held), self._database.explained(self._doing, UNDECIDED), held.transaction() as session:
            done = session.marker(txn.job, txn.sink)
            if done is not None and done.epoch >= txn.epoch:
                raise self._late(f"the mark of epoch {done.epoch}")
            self._check_owner(session.owner())
            newer = session.write(held, txn.epoch, txn.generation)
            if newer is not None:
                raise self._late("epoch {} of generation {}".format(*newer))
            session.votes.add(txn.id)
        return Committable(txn, held.total, b"", VOTES)

    def abort(self) -> None:
        self._held.close()

    def _check_owner(self, owner: Owner | None) -> None:
        """Raise Refused where another journal has taken the table since the epoch was opened."""
        if owner != (self._txn.job, self._txn.sink, self._lineage):
            what = "somebody deleted the table's owner record" if owner is None else self._database.owned_by(owner)[0]
            raise Refused(what, why=f"this task is of lineage {self._lineage}", next="leave the table to its owner")

    def _late(self, written: str) -> Refused:
        """Return the error of a task that is too late: another driver wrote its epoch, or a later one (`written`)."""
        txn = self._txn
        return Refused(
            f"table {self._database.table.name} holds newer rows than this task's of epoch {txn.epoch}",
            why=f"{written} is there, this task is of generation {txn.generation}: an older write never goes over a"
            " newer one, so none of its rows was kept",
            next="leave the job to the driver that goes on with it",
        )


class DirectCommitter(MarkerCommitter):
    """Mark an epoch that its tasks have written: the marker says up to which epoch the table is decided."""

    def __init__(self, ctx: JobContext, database: Database) -> None:
        super().__init__(ctx, UpsertApplier(database))
        self._database = database

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        return self.check(None, participants)

    def check(self, schema: pa.Schema | None, participants: int | None) -> Iterable[Finding]:
        with self._database.explained("look at the table"):
            found = list(self._database.findings(schema))
            refused = any(finding.severity == "error" for finding in found)
            owner = None if refused else self._database.last_owner()
        table = self._database.table
        if owner is not None and owner[:2] != (self._ctx.job, self._ctx.sink):
            found.append(Finding("error", *self._database.owned_by(owner)))
        if not (_kept_together(self._ctx.distribution, table.keys) or participants == 1):
            message = "rows of one key may come from two tasks of an epoch, and then any of them may win"
            found.append(
                Finding("warning", message, f'set distribution = "hash({", ".join(table.keys)})" on this sink')
            )
        return found

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the tables and take the table for this sink. Idempotent, also from two processes; durable."""
        database, ctx = self._database, self._ctx
        with database.explained("make the tables", UNBEGUN), database.transaction(make=True) as session:
            session.make_tables(schema)
            self._marker(epoch).check_new(session.marker(ctx.job, ctx.sink))
            mine = (ctx.job, ctx.sink, ctx.lineage)
            owner = session.take(mine, ctx.succeeds)
            if owner != mine:
                what, fix = database.owned_by(owner)
                raise LineageError(what, why="epochs of two journals can't be compared row by row", next=fix)
        self.check_columns(schema)
        return _ticket(ctx.lineage, database, schema)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        marker = self._marker(epoch, committables)
        kept = _refs(committables)
        database = self._database
        with database.explained(f"mark epoch {epoch}", WRITTEN), database.transaction() as session:
            new = marker.must_apply(session.marker(marker.job, marker.sink))
            if new:
                there = {vote.ref for vote in session.listed(marker.job, marker.sink)}
                if gone := [vote for vote in kept if vote not in there]:
                    return [self._gone(gone, len(kept))] * len(committables)
                session.store(marker)
                session.votes.forget(kept)
        return [Committed() if new else AlreadyCommitted() for _ in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        kept = _refs(committables)
        # Votes first: another driver that takes them away has put the marker, which is read then.
        there = {vote.ref for vote in self._listed()}
        standing = super().assess(epoch, committables)
        gone = [vote for vote in kept if vote not in there]
        return [self._gone(gone, len(kept))] * len(committables) if gone and Prepared() in standing else standing

    def _gone(self, gone: Sequence[str], of: int) -> Lost | Unknown:
        """Return the outcome of votes that are missing together with their rows. The marker is an earlier epoch's."""
        evidence = f"table {self._database.voted_in} lacks {len(gone)} of {of} votes, the first is {gone[0]}"
        if not isinstance(self._expected, Marker):
            return Unknown(evidence)
        return Lost(f"{evidence}; the target's mark is {self._expected.mark}")

    def abort(self, undecided: Undecided) -> None:
        """End sessions that still write, and delete votes. The replay overwrites the rows that they wrote."""
        database, refs = self._database, [participant.ref for participant in undecided]
        with database.explained(f"roll back {len(refs)} undecided participants", UNDECIDED):
            database.end(refs)
            with database.transaction() as session:
                session.votes.forget(refs)

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        with self._database.explained(f"find the sessions that {participant.ref} blocks"):
            return self._database.blocks(participant.ref)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        return _audit(self._ctx, self._database, epochs)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._database.explained("look for tasks that write"):
            writing = self._database.writing()
        # In this order: who votes between the two listings is in the second one.
        return list({participant.ref: participant for participant in [*writing, *self._listed()]}.values())

    def _listed(self) -> Sequence[InDoubt]:
        with self._database.explained("look for votes"):
            return self._database.listed(self._ctx.job, self._ctx.sink)

    def trim_marks(self) -> None:
        with self._database.explained("trim its marks"):
            self._database.trim_marks()

    def close(self) -> None:
        self._database.close()


def _refs(committables: Sequence[Committable]) -> Sequence[str]:
    """Return the ids by which votes are kept. Raises Fatal for a vote of another release."""
    for committable in committables:
        check_version(committable, VOTES)
    return [committable.txn.id for committable in committables]


def _ticket(given: str, database: Database, schema: pa.Schema) -> bytes:
    with database.explained("read the columns of the table"):
        return Ticket(given, database.limits(schema), database.form(schema)).dumped()


def _kept_together(distribution: str | int, keys: Sequence[str]) -> bool:
    """Return whether all rows of one key come in one partition: one there is, or rows are cut by columns of the key."""
    if isinstance(distribution, int) or not distribution.startswith("hash("):
        return distribution == 1
    cut_by = {
        name.strip().strip("`").lower() for name in distribution.removeprefix("hash(").removesuffix(")").split(",")
    }
    return cut_by <= {key.lower() for key in keys}

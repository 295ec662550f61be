"""The two ways of an epoch into a table, whatever the database.

Staged: the driver applies rows and marker in one transaction, after the decision. Direct: each task upserts its own
rows in one transaction together with its vote, before the decision, and the driver stores the marker after it, once it
has found every vote. Executors import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Committable,
    Committed,
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
    Writer,
)
from exactsink.toolkit.payloads import check_version
from exactsink.toolkit.roads import Applier, Marker, MarkerCommitter, StagedCommitter
from exactsink_idempotent_upsert.database import (
    STAGED,
    UNDECIDED,
    VOTE_TABLE,
    VOTES,
    WRITTEN,
    Database,
    Owner,
)
from exactsink_idempotent_upsert.limits import Ticket

__all__ = [
    *("DirectCommitter", "DirectWriter", "UpsertApplier", "UpsertCommitter"),
    *("check_owner", "keys_apart", "late"),
]


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
            # Read here, under the lock: what was read before it may be another process's past.
            if not marker.must_apply(session.marker(marker.job, marker.sink)):
                return False
            session.apply(batches)
            session.store(marker)
        return True

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""


def _audit(ctx: JobContext, database: Database, epochs: Iterable[int]) -> Mapping[int, Audit]:
    """Count the table's rows by the epoch that wrote each last; nothing where no column says it."""
    epochs, column = list(epochs), ctx.epoch_column
    if column is None:
        return {}
    with database.explained(f"count the rows of table {database.table.name} by {column}"):
        return Audit.by_column(column, database.by_epoch(column, min(epochs)), epochs, at_most=True)


class UpsertCommitter(StagedCommitter):
    """Commit staged rows; tasks get what the table's columns take, beside the staging folder."""

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


class DirectWriter(Writer):
    """Hold a task's rows, and upsert them at `pre_commit` in one short transaction.

    So no lock is held while rows are computed, and an attempt that dies half-way has shown
    none of them: a rival attempt's last row of a key is not overwritten by an earlier one.
    """

    def __init__(self, database: Database, check: Callable[[pa.RecordBatch], None], txn: Txn, lineage: str) -> None:
        self._database = database
        self._check = check
        self._txn = txn
        self._lineage = lineage
        self._doing = f"write epoch {txn.epoch} to table {database.table.name}"
        with database.explained(self._doing, UNDECIDED):
            self._held = database.hold()

    def write(self, batch: pa.RecordBatch) -> None:
        self._check(batch)
        with self._database.explained(self._doing, UNDECIDED):
            self._held.add(batch)

    def pre_commit(self) -> Committable:
        held, txn = self._held, self._txn
        with closing(held), self._database.explained(self._doing, UNDECIDED), held.transaction() as session:
            done = session.marker(txn.job, txn.sink)
            if done is not None and done.epoch >= txn.epoch:
                raise self._late(done.epoch, done.generation)
            owner = session.owner()
            check_owner(self._txn, self._lineage, owner, "" if owner is None else self._database.owned_by(owner)[0])
            newer = session.write(held, txn.epoch, txn.generation)
            if newer is not None:
                raise self._late(*newer)
            session.votes.add(txn.id)
        return Committable(txn, held.total, b"", VOTES)

    def abort(self) -> None:
        self._held.close()

    def _late(self, epoch: int, generation: int) -> Refused:
        return late(self._database.table.name, self._txn, f"epoch {epoch} of generation {generation}")


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
            owner = None if found else self._database.last_owner()
        table = self._database.table
        if owner is not None and owner[:2] != (self._ctx.job, self._ctx.sink):
            found.append(Finding("error", *self._database.owned_by(owner)))
        return [*found, *keys_apart(self._ctx, table.keys, participants)]

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the tables and take the table for this sink. Idempotent, also from two processes; durable."""
        database, ctx = self._database, self._ctx
        with database.explained("make the tables"), database.transaction(make=True) as session:
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
        kept = _with_votes(committables)
        database = self._database
        with database.explained(f"mark epoch {epoch}", WRITTEN), database.transaction() as session:
            new = marker.must_apply(session.marker(marker.job, marker.sink))
            if new:
                there = {vote.ref for vote in session.listed(marker.job, marker.sink)} if kept else set()
                if gone := [vote for vote in kept if vote not in there]:
                    return [self._gone(gone, len(kept))] * len(committables)
                session.store(marker)
                session.votes.forget(kept)
        return [Committed() if new else AlreadyCommitted() for _ in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        kept = _with_votes(committables)
        # Votes first: another driver that takes them away has put the marker, which is read then.
        there = {vote.ref for vote in self.in_doubt()} if kept else set()
        standing = super().assess(epoch, committables)
        gone = [vote for vote in kept if vote not in there]
        return [self._gone(gone, len(kept))] * len(committables) if gone and Prepared() in standing else standing

    def _gone(self, gone: Sequence[str], of: int) -> Lost | Unknown:
        """Return what becomes of a set of which votes are gone, as their rows are; its marker is an earlier epoch's."""
        evidence = f"of {of} votes {len(gone)} are in table {VOTE_TABLE} no more: {gone[0]}"
        if not isinstance(self._expected, Marker):
            return Unknown(evidence)
        return Lost(f"{evidence}; the target stands at {self._expected.mark}")

    def abort(self, undecided: Undecided) -> None:
        """Forget votes: what they wrote is overwritten by the replay."""
        with self._database.explained("forget votes"), self._database.transaction() as session:
            session.votes.forget(participant.ref for participant in undecided)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        return _audit(self._ctx, self._database, epochs)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._database.explained("look for votes"):
            return self._database.listed(self._ctx.job, self._ctx.sink)

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""


def _with_votes(committables: Sequence[Committable]) -> Sequence[str]:
    """Return the ids of those that keep a vote beside their rows; an older release's don't."""
    for committable in committables:
        check_version(committable, 1, VOTES)
    return [committable.txn.id for committable in committables if committable.version == VOTES]


def late(table: str, txn: Txn, stands: str) -> Refused:
    """Return the error of a task whose epoch, or a later one, `stands` in the table by another's hand."""
    return Refused(
        f"table {table} holds newer rows than this task's of epoch {txn.epoch}",
        why=f"{stands} is there, this task is of generation {txn.generation}: an older write never goes over a newer"
        " one, so none of its rows was kept",
        next="leave the job to the driver that goes on with it",
    )


def check_owner(txn: Txn, lineage: str, owner: Owner | None, owned: str) -> None:
    """Raise Refused where another journal has taken the table since the epoch was opened; `owned` says who."""
    if owner != (txn.job, txn.sink, lineage):
        what = owned or "the table was set free by hand"
        raise Refused(what, why=f"this task is of lineage {lineage}", next="leave the table to its owner")


def keys_apart(ctx: JobContext, keys: Sequence[str], participants: int | None) -> Iterator[Finding]:
    """Warn where rows of one key may come from two tasks."""
    if not (_kept_together(ctx.distribution, keys) or participants == 1):
        message = "rows of one key may come from two tasks of an epoch, and then any of them may win"
        yield Finding("warning", message, f'set distribution = "hash({", ".join(keys)})" on this sink')


def _ticket(given: str, database: Database, schema: pa.Schema) -> bytes:
    with database.explained("read what the table takes"):
        return Ticket(given, database.limits(schema), database.form(schema)).dumped()


def _kept_together(distribution: str | int, keys: Sequence[str]) -> bool:
    """Return whether all rows of one key come in one partition: one there is, or rows are cut by columns of the key."""
    if isinstance(distribution, int) or not distribution.startswith("hash("):
        return distribution == 1
    cut_by = {
        name.strip().strip("`").lower() for name in distribution.removeprefix("hash(").removesuffix(")").split(",")
    }
    return cut_by <= {key.lower() for key in keys}

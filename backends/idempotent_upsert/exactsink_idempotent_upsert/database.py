"""The interface between the strategies and a database.

A `Database` is one table of one database; a `Session` is a transaction in it. `strategies` use nothing else of a
database. Executors import this module.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import (
    Committer,
    ExactsinkError,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Traits,
    Txn,
    Validator,
    Writer,
)
from exactsink.toolkit.json_columns import plain
from exactsink.toolkit.roads import Marker
from exactsink_idempotent_upsert.limits import Limit, Trial
from exactsink_idempotent_upsert.questions import Questions
from exactsink_idempotent_upsert.table import GUARD, Table

__all__ = [
    *("MARKER_TABLE", "OWNER_TABLE", "STAGED", "UNBEGUN", "UNDECIDED", "VOTES", "VOTE_TABLE", "WRITTEN"),
    *("Database", "Held", "Owner", "Result", "Session", "Strategy", "Votes", "foreseen", "owned_by"),
]

MARKER_TABLE = "exactsink_epochs"
"""The table with the last applied epoch of every (job, sink)."""

OWNER_TABLE = "exactsink_owners"
"""The table with the sink that alone may write a table directly."""

VOTE_TABLE = "exactsink_votes"
"""The table with the votes of strategy direct, each written with its task's rows, and kept until the epoch is marked.
"""

VOTES = 2
"""The version of direct committables."""

_AT_ONCE = 500

Owner = tuple[str, str, str]
"""The job, sink and lineage that alone may write a table directly."""

STAGED = "the epoch is decided and its rows are staged, so nothing is lost"
WRITTEN = "the epoch is decided and its rows are in the table, so nothing is lost"
UNDECIDED = "the epoch is not decided yet; the next start writes all of its rows"
UNBEGUN = "the epoch has not begun"


class Result(Protocol):
    """The result of a statement: found rows, or the number of changed ones."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> Sequence[Any]: ...


class Votes:
    """The table of votes, in the transaction of `run`: it runs a statement with its values, each at a `%s`."""

    def __init__(self, run: Callable[..., Result]) -> None:
        self._run = run

    def add(self, participant: str) -> None:
        self._run(f"INSERT INTO {VOTE_TABLE} VALUES (%s, %s)", participant, time.time())

    def of(self, job: str, sink: str) -> Iterator[InDoubt]:
        """List the participants of one sink that have voted, and are not marked."""
        prefix = f"{job}.{sink}."  # LIKE takes these characters literally
        query = f"SELECT participant, voted_at FROM {VOTE_TABLE} WHERE participant LIKE %s"
        for participant, voted_at in self._run(query, f"{prefix}%").fetchall():
            if participant.startswith(prefix) and (txn := Txn.parse(participant)) is not None:
                yield InDoubt.of(txn, age_seconds=max(0.0, time.time() - voted_at))

    def forget(self, participants: Iterable[str]) -> None:
        left = list(participants)
        while some := left[:_AT_ONCE]:
            places = ", ".join(["%s"] * len(some))
            self._run(f"DELETE FROM {VOTE_TABLE} WHERE participant IN ({places})", *some)
            del left[:_AT_ONCE]


class Strategy(ABC):
    """How an epoch comes into a table: a task's side and the driver's."""

    @abstractmethod
    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        """Make a task's writer."""

    @abstractmethod
    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        """Make the validator of rows for a quarantine."""

    @abstractmethod
    def committer(self, ctx: JobContext) -> Committer:
        """Make the driver's side."""


class Session(ABC):
    """One transaction, with locks that keep out rivals for the same marker or owner."""

    @abstractmethod
    def make_marker_table(self) -> None:
        """Make the marker table. Idempotent."""

    @abstractmethod
    def make_tables(self, schema: pa.Schema) -> None:
        """Make the marker table, and with `create` the table. Idempotent."""

    @abstractmethod
    def marker(self, job: str, sink: str) -> Marker | None:
        """Read the marker of (job, sink) under a lock; None when none of its epochs was applied."""

    @abstractmethod
    def store(self, marker: Marker) -> None:
        """Replace the marker of (job, sink)."""

    @abstractmethod
    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Apply an epoch's rows: the last one of a key wins, by the table's own equality of keys and by its order.

        Raises Fatal when the table drops a row that it was given.
        """

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        """Apply held rows with the epoch and generation. Return those of a newer existing row, None if there is none.

        If there is one, no written row may stay: the caller rolls back.
        """
        raise NotImplementedError("strategy direct")

    @abstractmethod
    def owner(self) -> Owner | None:
        """Read who owns the table; a table of owners is there."""

    @property
    @abstractmethod
    def votes(self) -> Votes:
        """The votes of direct writes, in this transaction; their table is there."""

    @abstractmethod
    def listed(self, job: str, sink: str) -> list[InDoubt]:
        """List the stored votes of (job, sink); none if their table does not exist."""

    @abstractmethod
    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        """Take the table for direct writes, create the tables that they need, and return the owner.

        The owner is another one if the table has one already, unless this journal continues that one's.
        """


class Held(ABC):
    """A task's rows, invisible until it votes."""

    total = 0

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Session]:
        """Begin the transaction that writes them; commit durably at the end, or roll back."""

    @abstractmethod
    def close(self) -> None:
        """Drop them."""


class Database(ABC):
    """One table of a database, and how to reach it.

    Each call is made within `explained`, and may open and close a connection of its own.
    """

    __slots__ = ()
    table: Table
    place: str
    """Where it is, without secrets."""
    voted_in = VOTE_TABLE
    knows_rows = True
    """Whether `limits` and `trial` find every row that the table refuses, so that rows can be judged before a write.
    """

    @property
    def traits(self) -> Traits:
        """The sink's promise, for staged rows or for rows that tasks write."""
        if self.table.guarded:  # a failover, or an older copy of the file, may lose rows that tasks wrote
            return Traits(visible_early=True, needs_epoch_order=True, can_lose_votes=True, marks=True)
        return Traits(atomic_visibility=True, needs_shared_staging=True, marks=True, validates_rows=self.knows_rows)

    @property
    def staged(self) -> Strategy | None:
        """Strategy staged where the database keeps the rows itself; None where they wait in the staging folder."""
        return None

    @abstractmethod
    def answered(self, doing: str, safe: str) -> AbstractContextManager[None]:
        """Turn the database's errors into exactsink's. `safe` says why they lose nothing."""

    @contextmanager
    def explained(self, doing: str, safe: str = "") -> Iterator[None]:
        """Turn errors into exactsink's: the database's and, after the decision, any other."""
        decided = foreseen(f"{doing} in {self.place}", safe) if safe in (STAGED, WRITTEN) else nullcontext()
        with decided, self.answered(doing, safe):
            yield

    @abstractmethod
    def transaction(self, *, make: bool = False) -> AbstractContextManager[Session]:
        """Begin a transaction; commit durably at the end, or roll back. `make`: also make the database for `create`."""

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        """Begin to hold a task's rows. `form` comes from the driver. Raises Fatal if the database can't be reached."""
        raise NotImplementedError("strategy direct")

    @abstractmethod
    def last_marker(self, job: str, sink: str) -> Marker | None:
        """Return the marker of (job, sink), None even if its table does not exist. Changes nothing."""

    @abstractmethod
    def last_owner(self) -> Owner | None:
        """Return the owner of the table, None even if the table of owners does not exist. Changes nothing."""

    @abstractmethod
    def listed(self, job: str, sink: str) -> list[InDoubt]:
        """List the stored votes of direct writes. Changes nothing."""

    def writing(self) -> list[InDoubt]:
        """List the tasks of the sink that visibly write. Changes nothing."""
        return []

    def end(self, participants: Sequence[str]) -> None:  # noqa: B027  # no other task's connection is known
        """End the sessions that still write for these participants."""

    def blocks(self, participant: str) -> Sequence[str]:
        """Return the effects of a participant in doubt on others, one sentence each."""
        return ()

    def trim_marks(self) -> None:  # noqa: B027
        """Delete markers that later ones follow. Do nothing if later ones replaced them."""

    def put_birth(self, birth: Marker) -> Marker:
        """Store a birth unless (job, sink) has a marker, in one transaction. Return the stored marker."""
        with self.transaction(make=True) as session:
            session.make_marker_table()
            stored = session.marker(birth.job, birth.sink)
            if stored is None:
                session.store(birth)
        return stored or birth

    @abstractmethod
    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        """Count the table's rows by the value of this column, from this epoch on, and NULL. Changes nothing."""

    @abstractmethod
    def questions(self) -> AbstractContextManager[Questions]:
        """Return the checks of the table, for as long as a connection is open."""

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        """Find why such rows can't be upserted or, without a schema, rows of any columns. Changes nothing."""
        with self.questions() as asked:
            yield from asked.findings(schema)

    @abstractmethod
    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        """Return a value of a batch that no table of this database can hold exactly; None if it can hold all."""

    def missing_keys(self, column: pa.Array) -> int:
        """Count the values of a key's column that no upsert would match again:

        NULL, and a NaN that is stored as NULL.
        """
        return int(pc.sum(pc.is_null(plain(column), nan_is_null=True)).as_py() or 0)

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        """Return the limits of the table's columns, for tasks to check; empty if the table does not exist."""
        return {}

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return other data for tasks: statements that copy the table for `trial`, or the argument of `hold`."""
        return ()

    def trial(self, form: Sequence[str], names: Sequence[str]) -> Trial:
        """Make the copy on which a task tries its rows; `names` are their columns."""
        raise NotImplementedError(f"{type(self).__name__} has a form, and no trial")

    def close(self) -> None:  # noqa: B027
        """Close the resources that were opened."""

    def quoted(self, name: str) -> str:
        """Quote an identifier."""
        return '"' + name.replace('"', '""') + '"'

    def owned_by(self, owner: Owner) -> tuple[str, str]:
        """Return a message that names the table's owner, and how the table is set free."""
        return owned_by(owner, self.table.name, self.table.target, OWNER_TABLE, self.quoted(self.table.name))


@contextmanager
def foreseen(doing: str, safe: str, *known: type[Exception]) -> Iterator[None]:
    """Raise Fatal, with a fix, for an error that is neither exactsink's nor `known`.

    `safe` says why nothing is lost.
    """
    passes: tuple[type[Exception], ...] = (ExactsinkError, OSError, *known)  # a full disk may be an OSError
    try:
        yield
    except passes:
        raise
    except Exception as error:
        raise Fatal(
            f"could not {doing}: {type(error).__name__}: {error}",
            why=f"{safe}; but exactsink does not know this error",
            next="report it with its traceback, then start the job again with a release that has the fix",
        ) from error


def owned_by(owner: Owner, name: str, target: str, owners: str, relation: str) -> tuple[str, str]:
    """Return a message that names a table's owner, and how it is set free; `owners` and `relation` as SQL has them."""
    job, sink, lineage = owner
    free = (
        f"DELETE FROM {owners} WHERE target = '{target.replace(chr(39), 2 * chr(39))}';"
        f" UPDATE {relation} SET {', '.join(f'{column} = NULL' for column in GUARD)};"
    )
    what = f"table {name} belongs to sink {sink} of job {job} (lineage {lineage}), which writes it directly"
    return what, f"name another table; or, once that job has ended permanently, run: {free}"

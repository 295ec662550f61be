"""The contract of a backend, version 1: which methods exactsink calls, in which process, and what each one promises.

Of exactsink, a backend imports only the contract and the toolkit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from exactsink.contract.errors import ConfigError
from exactsink.contract.model import (
    Audit,
    Committable,
    Finding,
    InDoubt,
    JobContext,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
)
from exactsink.contract.validation import Validator

__all__ = ["CONTRACT_VERSION", "Backend", "BackendOptions", "Committer", "JobSinks", "OpenJob", "Writer"]

CONTRACT_VERSION = 1


class BackendOptions(BaseModel):
    """Base class of a backend's options: frozen, without undeclared keys; its errors never repeat a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Backend(ABC):
    """One sink's backend with its options. It pickles, holds no connection, and does not import pyspark."""

    Options: ClassVar[type[BackendOptions]]

    def __init__(self, options: BackendOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def strategy(self) -> str:
        """Name the strategy that the options choose, for example `two_phase`.

        The journal keeps it with each decision.
        """

    @property
    @abstractmethod
    def target(self) -> str:
        """Name the target: the same after every restart, and without secrets.

        The journal keeps it with each decision.
        """

    @property
    def on_schema_change(self) -> Literal["fail", "add_columns", "allow"]:
        """Name how an epoch's columns may differ from those before: not at all, by additional columns, or in any way.

        `allow`, the default, is for a target with columns of its own that the rows are checked against.
        """
        return "allow"

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """Return the strategy's traits, from which exactsink derives the guarantee. Called in any process."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Name the servers behind the target, as HOST:PORT. Before a start, one of them must accept a connection.

        Implement it if the target does not name its servers, or if the client tries for long before it reports that no
        server answers.
        """
        return ()

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Return SQL expressions that the JVM applies before rows become Arrow. None leaves the rows unchanged.

        `schema` is that of the sink's frame after `columns`. Example: `["to_json(struct(*)) AS value"]`.
        """
        return None

    def shape_in_task(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Shape the rows of a quarantine as `shape` would, in the task, because the JVM has not seen these rows.

        Their columns are text and integers. Raises ConfigError if the options need the JVM for it.
        """
        if self.shape(rows.schema) is not None:
            raise ConfigError(
                f"{self.target} can't be a quarantine with these options",
                why="SQL shapes this sink's rows before the tasks run, and a task makes quarantined rows",
                next="remove the options that shape its rows, or name another sink as quarantine",
            )
        return rows

    def check_epoch_column(self, name: str) -> None:  # noqa: B027  # most backends treat it as any other column
        """Refuse the column with the epoch's number, which exactsink adds to the frame, if the target can't use it.

        Raises ConfigError.
        """

    @abstractmethod
    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        """Open a task attempt's writer, on an executor, at the first batch with rows. Nothing becomes visible."""

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        """Make the validator of a task's rows for `on_bad_row = "quarantine"`, at the first batch with rows.

        `rules` comes from `Committer.row_rules`. Called if `traits.validates_rows` is true. The writer may still refuse
        a row that the validator accepted. That stops the epoch, so a rule that the validator does not know loses
        nothing.
        """
        raise NotImplementedError

    @abstractmethod
    def committer(self, ctx: JobContext) -> Committer:
        """Make the driver's side, once per claim. It may connect lazily, and closes every connection that it opens."""


class Writer(ABC):
    """One task attempt's writer. Its process may be killed at any moment, so no code may rely on a cleanup."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of rows. Nothing becomes visible to any reader."""

    @abstractmethod
    def pre_commit(self) -> Committable:
        """Make the rows durable but invisible, so that they survive this process, and vote yes."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the rows that `write` took. Called at most once, never after `pre_commit` returned; a crash skips it."""


class Committer(ABC):
    """The driver's side of one sink under one claim. Only one thread at a time uses it."""

    @abstractmethod
    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        """Check, before the first row, that the target fits the job. Changes nothing.

        `schema` is that of the shaped frame. `participants` is the most that an epoch can have, None if it has no
        limit.
        """

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        """Check the target as `check` does, before the columns of the rows are known. Changes nothing.

        `exactsink check --no-spark` calls it, and reads the mark and the participants itself. The default finds
        nothing.
        """
        return ()

    @abstractmethod
    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Prepare the target (a table, a folder), and return the ticket that every task's writer gets. Idempotent."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        """Return the rules by which tasks judge rows, for example the types of the target's columns. Changes nothing.

        Called if `traits.validates_rows` is true, after `open_epoch`. When lost rows of a quarantine are written
        again, it is called without `open_epoch`, once this committer may commit the epoch.
        """
        return b""

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:  # noqa: B027  # most checked earlier
        """Refuse votes that can't be committed together, for example one key in two partitions. Changes nothing.

        Called once all tasks have voted and nothing is decided, with the committables that `commit` gets after the
        decision. Raises Fatal.
        """

    @abstractmethod
    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Commit one sink's whole epoch. When it returns, the rows are durable and visible.

        Returns one outcome per committable, in order. Idempotent from any process, even if two processes commit at the
        same moment. Raises Retryable if a later call may get an answer. `committables` is never empty.
        """

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        """Return the state of each of these decided committables, in order. Changes nothing.

        The state is Prepared if `commit` would make the rows visible now; otherwise it is the outcome that `commit`
        would return. Effects that only the write itself shows, like a trigger that drops rows, are not seen. Called at
        any time from any process, even beside a working driver, so it takes no lock that a commit waits for. Raises
        Retryable if the store doesn't answer, and Fatal if `commit` would. The default returns Unknown for a
        committable that `in_doubt` does not list. That is right only if the mark proves which committables are
        committed.
        """
        held = {participant.ref for participant in self.in_doubt()}
        gone = Unknown("the store does not list it, and this backend can't look up its outcome")
        return [Prepared() if committable.ref in held else gone for committable in committables]

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        """Count the rows of these committed epochs that are in the target now. Changes nothing.

        An epoch that the result lacks can't be counted. An epoch that only the result has was never decided, and yet
        has rows in the target. `deep` reads all rows, if that proves more. Raises Retryable if the store doesn't
        answer.
        """
        return {}

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        """Return one sentence for each reader, lock or VACUUM that the participant blocks until it ends.

        Changes nothing. Raises Retryable if the store doesn't answer.
        """
        return ()

    @abstractmethod
    def abort(self, undecided: Undecided) -> None:
        """Roll back participants that will never be decided. Idempotent. Only the sweep calls it."""

    @abstractmethod
    def in_doubt(self) -> Iterable[InDoubt]:
        """List the participants of this job and sink that the backend has begun or prepared, and no others."""

    def mark(self) -> Mark | None:
        """Return this sink's mark in its target, None if it has no mark. Called if `traits.marks` is true.

        It reads the target itself, in the session that `commit` uses next. If that session is lost, `commit`
        raises Retryable before it does anything, so that the mark is read again. Every committed participant is in the
        mark: either its commit and its part of the mark are one atomic step, or the mark is written first.
        """
        raise NotImplementedError

    def put_birth(self) -> Mark:
        """Put the birth of the context's lineage into the target if it has no mark, and return the target's mark.

        Durable when it returns. Atomic: if two journals call it, one of them finds the mark of the other. Idempotent.
        """
        raise NotImplementedError

    def trim_marks(self) -> None:
        """Delete the marks below the highest epoch that the target holds now.

        This call reads that epoch itself, and never uses a number that was read earlier. A late or repeated call harms
        nothing.
        """
        raise NotImplementedError

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:  # noqa: B027  # most sinks don't need them
        """Record the source's offsets once the epoch is complete in every sink. exactsink decides nothing by them.

        `ends` holds each source's end offset, in the text of Spark's offset log; it is empty if there is none. Called
        again for an epoch that was finished after a crash. If it raises an error of exactsink's, that is reported as an
        event.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the resources that were opened. Rolls nothing back."""


@dataclass(frozen=True, slots=True)
class JobSinks:
    """A job, for a backend's own command: its sinks, and its name in ids, which for a batch run has the run's hash."""

    job: str
    sinks: Mapping[str, Backend]


OpenJob = Callable[[str, str | None], JobSinks]
"""Read a job's file, for its stream or for the named batch run. Raises ConfigError."""

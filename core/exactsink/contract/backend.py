"""The contract of a backend, version 1: what the framework calls, from which process, and what each call promises.

A backend sees this module and those beside it, nothing else of exactsink but the toolkit.
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
    """Base of a backend's options: frozen, a key that is not declared is a mistake, and no error repeats a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Backend(ABC):
    """One sink's backend with its options: a value that pickles, holds no connection and imports no pyspark."""

    Options: ClassVar[type[BackendOptions]]

    def __init__(self, options: BackendOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def strategy(self) -> str:
        """Name the strategy that the options choose, for example `two_phase`. Every decision in the journal has it."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Name the target, stable over restarts and without secrets. It is journaled with every decision."""

    @property
    def on_schema_change(self) -> Literal["fail", "add_columns", "allow"]:
        """Name which other columns than the ones before an epoch may have: none, further ones, or any.

        `allow`, the default, is for a target that has columns of its own, and judges the rows by them.
        """
        return "allow"

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """Return the strategy's traits, from which exactsink derives the guarantee. Called in any process."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Name the servers behind the target, HOST:PORT each; before a start one of them has to take a connection.

        Worth it where the target does not name them, or a client tries for long before it reports that nobody is there.
        """
        return ()

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Return SQL expressions that the JVM applies before rows become Arrow; None leaves them as they are.

        `schema` is the sink's frame after `columns`. Example: `["to_json(struct(*)) AS value"]`.
        """
        return None

    def shape_in_task(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a quarantine, which no JVM has seen, as the writer takes them: what `shape` does, done here.

        They have columns of text and of integers. Raises ConfigError where the options need the JVM for it.
        """
        if self.shape(rows.schema) is not None:
            raise ConfigError(
                f"{self.target} can't be a quarantine with these options",
                why="SQL shapes this sink's rows before the tasks run, and a task makes quarantined rows",
                next="remove the options that shape its rows, or name another sink as quarantine",
            )
        return rows

    def check_epoch_column(self, name: str) -> None:  # noqa: B027  # most take it as any other column
        """Refuse a column with the epoch's number, which the core adds to the frame, where it makes no sense.

        Raises ConfigError.
        """

    @abstractmethod
    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        """Open a task attempt's writer, on an executor, at its first batch with rows. Nothing becomes visible."""

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        """Make the judge of a task's rows for `on_bad_row = "quarantine"`, at its first batch with rows.

        `rules` are those of `Committer.row_rules`. Called where `traits.validates_rows` says so. What it lets pass the
        writer may still refuse, which stops the epoch: nothing is lost by a rule that is not known.
        """
        raise NotImplementedError

    @abstractmethod
    def committer(self, ctx: JobContext) -> Committer:
        """Make the driver's side, one per claim. It may connect lazily; it owns what it opens."""


class Writer(ABC):
    """One task attempt's writer. Its process may die hard at any moment: nothing here may rely on a cleanup."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch's rows. Nothing becomes visible to any reader."""

    @abstractmethod
    def pre_commit(self) -> Committable:
        """Make the rows durable yet invisible, so that they survive this process, and vote yes."""

    @abstractmethod
    def abort(self) -> None:
        """Drop the rows that `write` took. Called at most once, never after `pre_commit` returned; a crash skips it."""


class Committer(ABC):
    """The driver's side of one sink under one claim. Used by one thread at a time."""

    @abstractmethod
    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        """Check before the first row that the target fits the job. Changes nothing.

        `schema` is the shaped frame; `participants` is the most that an epoch can have, None when nothing bounds it.
        """

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        """Check the target as `check` does, without the rows' columns, which are not known yet. Changes nothing.

        Called by `exactsink check --no-spark`, which reads mark and participants, too: this one finds nothing else.
        """
        return ()

    @abstractmethod
    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Prepare the target (a table, a folder) and give the ticket that every task's writer gets. Idempotent."""

    def row_rules(self, schema: pa.Schema) -> bytes:
        """Read what tasks judge rows by, for example what the target's columns take. Changes nothing.

        Called where `traits.validates_rows` says so, after `open_epoch`; for the replay of a quarantine's lost votes
        also by itself, once the epoch may be committed here.
        """
        return b""

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:  # noqa: B027  # most have checked
        """Refuse votes that can't be committed together, for example one key in two partitions: nothing is decided yet.

        Called once all have voted, with what `commit` gets if they are decided. Raises Fatal; changes nothing.
        """

    @abstractmethod
    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Commit one sink's whole epoch: durable and visible when it returns, one outcome per committable, in order.

        Idempotent from any process, also when two processes commit at the same moment. Raises Retryable when an
        answer may yet be had. `committables` is never empty.
        """

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        """Return the state of each of these decided committables, in order. Changes nothing.

        Prepared where `commit` would make it visible now, else what `commit` would answer; what only the write shows
        (like a trigger that drops rows) is not seen. Called at any time from any process, beside a driver at work, too.
        Raises Retryable when the store doesn't answer, Fatal where `commit` would. This one takes what
        `in_doubt` does not list for Unknown: right only where the mark proves what is committed.
        """
        held = {participant.ref for participant in self.in_doubt()}
        gone = Unknown("the store does not list it, and this backend can't look up its outcome")
        return [Prepared() if committable.ref in held else gone for committable in committables]

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        """Count what the target holds now of these epochs, all of which were committed once. Changes nothing.

        An epoch that is left out can't be known; one that is in the answer alone has rows there that nobody decided.
        `deep` reads all of them, where that proves more. Raises Retryable when the store doesn't answer.
        """
        return {}

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        """Return, a sentence each, whom the participant blocks until it ends: readers, locks, VACUUM.

        Changes nothing. Raises Retryable when the store doesn't answer.
        """
        return ()

    @abstractmethod
    def abort(self, undecided: Undecided) -> None:
        """Roll back participants that will never be decided. Idempotent; only the sweep calls it."""

    @abstractmethod
    def in_doubt(self) -> Iterable[InDoubt]:
        """List this job's and sink's participants in the backend, begun or prepared; never anyone else's."""

    def mark(self) -> Mark | None:
        """Read this sink's mark in its target; None when there is none. Called where `traits.marks` says so.

        It is read from what the target itself holds, in the session that `commit` uses next: when that session is
        lost, `commit` raises Retryable before it does anything, so that the mark is read again. What is committed
        shows in the mark: a participant's commit and its part of the mark are one atomic step, or the mark comes first.
        """
        raise NotImplementedError

    def put_birth(self) -> Mark:
        """Put the birth of the context's lineage into the target if it has no mark, and return the target's mark.

        Durable when it returns, and atomic: of two journals that call it, one finds the other's. Idempotent.
        """
        raise NotImplementedError

    def trim_marks(self) -> None:
        """Delete old marks: all below the highest epoch that the target holds, as this call reads it; never below
        a number that was read earlier. A late or repeated call harms nothing.
        """
        raise NotImplementedError

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:  # noqa: B027  # most sinks pass it on to nobody
        """Record the source's offsets once the epoch is complete in every sink; exactsink decides nothing by them.

        `ends` are the sources' end offsets in their own words, as Spark's offset log holds them, empty where there is
        none. Called again for an epoch that was finished after a crash. What it raises of our errors is reported as
        an event.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what was opened. Rolls nothing back."""


@dataclass(frozen=True, slots=True)
class JobSinks:
    """A job as a backend's own command gets it: its name in ids (a batch run's has the run's hash), and its sinks."""

    job: str
    sinks: Mapping[str, Backend]


OpenJob = Callable[[str, str | None], JobSinks]
"""Read a job's file, for its stream or the batch run that is named. Raises ConfigError."""

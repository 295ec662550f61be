"""The protocol's values: transactions, committables, outcomes, and a backend's traits.

All are immutable, pickle, and carry no connection, so they travel between driver, executors and journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

__all__ = [
    "ENTRY_POINT_GROUP",
    "EPOCH_BUDGET_SECONDS",
    "LONGEST_PAUSE_SECONDS",
    "NAME_PATTERN",
    "AlreadyCommitted",
    "Audit",
    "BackendSpec",
    "Committable",
    "Committed",
    "Event",
    "FileMode",
    "Finding",
    "InDoubt",
    "JobContext",
    "Lost",
    "Mark",
    "Outcome",
    "Prepared",
    "Standing",
    "Traits",
    "Txn",
    "Undecided",
    "Unknown",
]

ENTRY_POINT_GROUP = "exactsink"
"""Where installed packages announce their plugins."""

NAME_PATTERN = r"[a-z0-9-]{1,40}"
"""What the names of jobs and sinks look like: they become part of ids, paths and table rows."""

FileMode = Literal["private", "group", "umask"]
"""Who may read a job's folders: its user only, also the folder's group, or whoever the umask allows."""

LONGEST_PAUSE_SECONDS = 7 * 86_400.0
EPOCH_BUDGET_SECONDS = 600.0

_ID = re.compile(
    rf"(?P<job>{NAME_PATTERN})\.(?P<sink>{NAME_PATTERN})"
    r"\.g(?P<generation>\d{1,19})-(?P<token>[0-9a-f]+)"
    r"\.e(?P<epoch>\d{1,19})\.p(?P<partition>\d{1,19})\.a(?P<attempt>\d{1,19})"
)


@dataclass(frozen=True, slots=True, order=True)
class Txn:
    """Name one participant: a task attempt's branch of a sink's transaction in one epoch.

    `attempt` is Spark's taskAttemptId, unique within one driver run; with the claim's (generation, token) it is
    unique permanently. (stage, partition, attemptNumber) is not: a resubmitted stage counts from 0 again.
    """

    job: str
    epoch: int
    sink: str
    generation: int
    token: str
    partition: int
    attempt: int

    @property
    def id(self) -> str:
        """The readable id, at most 199 bytes, that `parse` reads back; `{job}.{sink}.` is a safe prefix to list by."""
        return f"{self.job}.{self.sink}.g{self.generation}-{self.token}.e{self.epoch}.p{self.partition}.a{self.attempt}"

    @classmethod
    def parse(cls, id: str) -> Txn | None:
        """Read an id back; None when it is not one of ours (a foreign name, which nobody here may touch)."""
        found = _ID.fullmatch(id)
        if found is None:
            return None
        txn = cls(
            job=found["job"],
            epoch=int(found["epoch"]),
            sink=found["sink"],
            generation=int(found["generation"]),
            token=found["token"],
            partition=int(found["partition"]),
            attempt=int(found["attempt"]),
        )
        return txn if txn.id == id else None  # a leading zero is somebody else's spelling


@dataclass(frozen=True, slots=True)
class Committable:
    """A participant's yes vote, plus all that another process needs to commit it.

    `rows` is the writer's own count. `digest` belongs to the framework (the sum of the rows' hashes, modulo 2^64); a
    writer leaves it 0. `deadline` is the moment (Unix seconds) after which the backend may drop the participant, None
    when it never does. `payload` is the backend's own, without secrets; `version` is that payload's format. `store_ref`
    is for stores that know the participant under another name than `txn.id`, for example a pooled
    transactional id. It must never name two participants, so a reused part needs a counter beside it.
    """

    txn: Txn
    rows: int
    payload: bytes
    version: int = 1
    deadline: float | None = None
    digest: int = 0
    store_ref: str | None = None

    @property
    def ref(self) -> str:
        """The store's own unique name of the participant, by which `InDoubt` lists it."""
        return self.txn.id if self.store_ref is None else self.store_ref


@dataclass(frozen=True, slots=True)
class Committed:
    """This call made the participant's rows durable and visible."""


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """An earlier call, perhaps of another process, had done so."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Proven invisible, permanently: the rows are written again."""

    evidence: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither proven committed nor proven lost: the job stops with this evidence."""

    evidence: str


Outcome = Committed | AlreadyCommitted | Lost | Unknown


@dataclass(frozen=True, slots=True)
class Prepared:
    """The store holds the participant, not committed: a commit makes its rows visible."""


Standing = Prepared | AlreadyCommitted | Lost | Unknown


@dataclass(frozen=True, slots=True)
class Audit:
    """The rows that a target holds of one epoch now: so many rows, None where it can't be known.

    `why` says what was counted, what is missing, or why nothing can be said. `at_most`: later epochs overwrite rows, so
    that fewer than were decided prove nothing.
    """

    rows: int | None
    why: str = ""
    at_most: bool = False

    @staticmethod
    def by_column(
        name: str, counted: Mapping[int | None, int], epochs: Iterable[int], *, at_most: bool = False
    ) -> dict[int, Audit]:
        """Make the audits of a table from the rows that it has for each value of its column with the epoch.

        Rows from before it had that column have NULL there: then nothing is known of an epoch without rows.
        """
        whole, bare = dict(counted), counted.get(None, 0)
        whole.pop(None, None)
        found = {
            epoch: Audit(rows, f"rows by column {name}", at_most) for epoch, rows in whole.items() if epoch is not None
        }
        gone = Audit(0, f"no row has it in column {name}", at_most)
        if bare:
            gone = Audit(None, f"{bare} rows have NULL in column {name}: they are older than it, or not this job's")
        return {epoch: found.get(epoch, gone) for epoch in sorted({*epochs, *found})}


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A participant begun or prepared in the backend and neither committed nor aborted there.

    `ref` is the store's own unique name of it, equal to its committable's; `generation` and `token` are those of the
    claim that it was begun under; `epoch` is None when the store does not keep it.
    """

    ref: str
    generation: int
    token: str
    epoch: int | None = None
    age_seconds: float | None = None
    deadline: float | None = None

    @classmethod
    def of(cls, txn: Txn, *, age_seconds: float | None = None, deadline: float | None = None) -> InDoubt:
        """Make the entry of a participant that the store knows by its `txn.id`."""
        return cls(txn.id, txn.generation, txn.token, txn.epoch, age_seconds, deadline)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a target proves of one sink: which journal feeds it, and the highest epoch of which rows show there.

    `lineage` names the journal. `epoch` is None for a birth: the journal has bound the target, and no epoch was
    committed since. `tokens` are those of the claims under which that epoch's participants were begun, as far as the
    target keeps them. `participants` is how many of them it proves; None where it proves all of the epoch at once, or
    can't count.
    """

    lineage: str
    epoch: int | None = None
    tokens: frozenset[str] = frozenset()
    participants: int | None = None

    def __str__(self) -> str:
        if self.epoch is None:
            return f"the birth of journal {self.lineage}"
        count = "" if self.participants is None else f", {self.participants} participants"
        return f"epoch {self.epoch} (token {' and '.join(sorted(self.tokens)) or 'unknown'}{count}) of {self.lineage}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that preflight found, and the statement that fixes it. An error stops the job before the first row."""

    severity: Literal["error", "warning"]
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Traits:
    """What a strategy gives, from which the job's guarantee and the conformance kit's skips are derived.

    `atomic_visibility`: a sink's whole epoch appears at one moment. `can_lose_votes`: the store may drop a prepared
    participant (at a timeout). `visible_early`: rows show before the decision, so the sink is only effectively once.
    `max_commit_seconds`: what a commit may take; an epoch whose earliest deadline is nearer is refused.
    `prepared_seconds`: how long after its begin the store keeps a participant that nobody ends, None when for ever; an
    epoch that has used half of it is reported as a warning.
    `needs_shared_staging`: executors and driver must see the same staging folder. `needs_epoch_order`: rows are guarded
    by their epoch's number, so the sink takes epochs of one history only, and no batch runs, which have no order.
    `marks`: the target keeps marks (`Committer.mark`), so a target, a journal or a checkpoint that went back is seen.
    `marks_in_staging`: they stand in the staging folder, so a target that went back without it is not seen.
    `validates_rows`: it can judge rows one by one without writing them (`Backend.validator`), so bad ones can be
    quarantined. `appends`: each row is kept as one more, so a key that Spark gives again as an update is there twice.
    `batch_only`: an epoch replaces rows of earlier ones, so the sink takes batch runs, and no stream.
    """

    atomic_visibility: bool = False
    can_lose_votes: bool = False
    visible_early: bool = False
    max_commit_seconds: float = 60.0
    prepared_seconds: float | None = None
    needs_shared_staging: bool = False
    needs_epoch_order: bool = False
    marks: bool = False
    marks_in_staging: bool = False
    validates_rows: bool = False
    appends: bool = False
    batch_only: bool = False

    @property
    def guarantee(self) -> str:
        """Derive what the sink promises; a job promises what its weakest sink does."""
        return "effectively once" if self.visible_early else "exactly once"


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job and sink that a committer serves.

    `lineage` names the journal, for markers in the target: a marker with another lineage was written by another
    journal of the same job name. `succeeds` are lineages of which an operator has said, by a rebase, that this journal
    goes on from what they wrote: it is older than all that this one writes. In preflight, before the claim,
    `generation` is 0, `lineage` and `succeeds` are empty. `staging` is
    this sink's folder for staged rows. `distribution` cuts the rows into partitions, for example "hash(keys)".
    `longest_pause_seconds` is how long the job may stand still between a decision and its commit: a store whose
    evidence of a commit, or whose prepared work, may be gone by then is a finding. `epoch_budget_seconds` is what one
    epoch may take from its first row to its commit. `file_mode` says who may look into folders that are made for the
    job: `make_folder` takes it. `epoch_column` is the column of the rows that holds their epoch's number, if any.
    `quarantine` is the sink that gets the rows which this one's validator finds bad, if any. `unbound_epoch` is the
    last decided epoch if an older release decided it: its journal expects no mark, so that a mark proves no loss there.
    """

    job: str
    sink: str
    staging: str
    generation: int = 0
    lineage: str = ""
    distribution: str | int = "none"
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS
    epoch_budget_seconds: float = EPOCH_BUDGET_SECONDS
    succeeds: frozenset[str] = frozenset()
    file_mode: FileMode = "private"
    epoch_column: str | None = None
    quarantine: str | None = None
    unbound_epoch: int | None = None


class Undecided:
    """Name the participants, as the backend listed them, that are proven undecided, and so may be aborted.

    Only the journal builds it (`exactsink.protocol.journal.log`), from the records that prove it; there is no other way
    to roll back a pre-committed participant.
    """

    __slots__ = ("_participants",)
    _participants: tuple[InDoubt, ...]

    def __init__(self) -> NoReturn:
        raise TypeError("only the journal builds Undecided: see exactsink.protocol.journal.log")

    def __iter__(self) -> Iterator[InDoubt]:
        return iter(self._participants)

    def __len__(self) -> int:
        return len(self._participants)


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Announce a backend without importing it.

    `name` is what a job's config calls it; `load` is "module:Class", imported when a job first uses it; `install` is
    the command that brings what it needs; `contract` is the version of the contract it was written for; `strategies`
    says each strategy in a line. `conformance` is "module:function" that gives the targets on which the conformance kit
    can try the backend (see `exactsink.testing`), `bench` one that gives those of `exactsink bench` (see
    `exactsink.bench.target`); empty when it ships none. `commands` is one that takes an `OpenJob` and gives a group of
    commands, `exactsink NAME ...`. `drivers` are the modules that `install` brings: `exactsink backends` imports them.
    """

    name: str
    load: str
    install: str
    contract: int = 1
    strategies: Mapping[str, str] = field(default_factory=dict)
    conformance: str = ""
    bench: str = ""
    commands: str = ""
    drivers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `edge` is empty where it is no protocol point. `fields` hold no secrets."""

    name: str
    job: str
    edge: Literal["before", "after", ""] = ""
    epoch: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        known = {"job": self.job, "epoch": self.epoch, **self.fields}
        fields = (f"{name}={value}" for name, value in known.items() if value is not None)
        return " ".join([f"{self.name} {self.edge}".strip(), *fields])

    def as_dict(self) -> dict[str, Any]:
        """Return the event flat, for structured logs: its fields beside event, job, epoch and edge."""
        return {**self.fields, "event": self.name, "job": self.job, "epoch": self.epoch, "edge": self.edge}

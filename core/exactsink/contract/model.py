"""The protocol's values: transactions, committables, outcomes, and a backend's traits.

They are immutable, they pickle, and they hold no connection, so they can travel between driver, executors and journal.
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
"""The entry-point group in which installed packages announce their plugins."""

NAME_PATTERN = r"[a-z0-9-]{1,40}"
"""The pattern of the names of jobs and sinks. Names become part of ids, paths and rows of tables."""

FileMode = Literal["private", "group", "umask"]
"""Who may read a job's folders: only its user, also the folder's group, or everybody whom the umask allows."""

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

    `attempt` is Spark's taskAttemptId. It is unique within one driver run, and together with the claim's generation and
    token it is unique permanently. (stage, partition, attemptNumber) is not unique, because a resubmitted stage counts
    from 0 again.
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
        """The readable id, at most 199 bytes. `parse` reads it back; `{job}.{sink}.` is a safe prefix to list by."""
        return f"{self.job}.{self.sink}.g{self.generation}-{self.token}.e{self.epoch}.p{self.partition}.a{self.attempt}"

    @classmethod
    def parse(cls, id: str) -> Txn | None:
        """Read an id back. Return None for a foreign name, which exactsink must not touch."""
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
        return txn if txn.id == id else None  # exactsink writes no leading zeros


@dataclass(frozen=True, slots=True)
class Committable:
    """A participant's yes vote, with everything that another process needs to commit it.

    `rows` is the writer's own count. `digest`, the sum of the rows' hashes modulo 2^64, belongs to the framework; a
    writer leaves it 0. `deadline` is the moment (in Unix seconds) after which the backend may drop the participant,
    None if it never does. `payload` belongs to the backend, and holds no secrets; `version` is the version of its
    format. `store_ref` is for stores that know the participant under a name other than `txn.id`, for example a pooled
    transactional id. Two participants must never have the same one, so a reused part needs a counter beside it.
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
        """The store's own unique name of the participant. `InDoubt` lists it under this name."""
        return self.txn.id if self.store_ref is None else self.store_ref


@dataclass(frozen=True, slots=True)
class Committed:
    """This call made the participant's rows durable and visible."""


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """An earlier call, perhaps in another process, made the rows durable and visible."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Proven invisible, permanently: the rows are written again.

    With `visible_early`, readers may still see some of the rows. Then it proves only that no commit can complete the
    participant any more, and a row that is written again must replace itself.
    """

    evidence: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither proven committed nor proven lost: the job stops with this evidence."""

    evidence: str


Outcome = Committed | AlreadyCommitted | Lost | Unknown


@dataclass(frozen=True, slots=True)
class Prepared:
    """The store holds the participant, and has not committed it: a commit makes its rows visible."""


Standing = Prepared | AlreadyCommitted | Lost | Unknown


@dataclass(frozen=True, slots=True)
class Audit:
    """The number of rows that a target holds of one epoch now, None if it is unknown.

    `why` names the rows that were counted or are missing, or the reason why they can't be counted. `at_most` is true
    if later epochs overwrite rows: then a number below the decided one proves nothing.
    """

    rows: int | None
    why: str = ""
    at_most: bool = False

    @staticmethod
    def by_column(
        name: str, counted: Mapping[int | None, int], epochs: Iterable[int], *, at_most: bool = False
    ) -> dict[int, Audit]:
        """Make audits from the number of rows that a table has for each value of its epoch column.

        Rows that are older than the column have NULL in it. If there are such rows, it is unknown whether an epoch
        without rows has lost any.
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
    """A participant that was begun or prepared in the backend, and neither committed nor aborted there.

    `ref` is the store's own unique name of it, equal to that of its committable. `generation` and `token` are those of
    the claim under which it was begun. `epoch` is None if the store does not keep it.
    """

    ref: str
    generation: int
    token: str
    epoch: int | None = None
    age_seconds: float | None = None
    deadline: float | None = None

    @classmethod
    def of(cls, txn: Txn, *, age_seconds: float | None = None, deadline: float | None = None) -> InDoubt:
        """Make the entry of a participant that the store lists by its `txn.id`."""
        return cls(txn.id, txn.generation, txn.token, txn.epoch, age_seconds, deadline)


@dataclass(frozen=True, slots=True)
class Mark:
    """A target's proof for one sink: which journal feeds it, and the highest epoch with rows there.

    `lineage` names the journal. `epoch` is None for a birth: the journal has bound the target, and has committed no
    epoch since. `tokens` are those of the claims under which that epoch's participants were begun, if the target keeps
    them. `participants` is the number of participants that the mark proves; it is None if the mark proves the whole
    epoch at once, or if the target can't count.
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
    """The properties of a strategy. The job's guarantee and the conformance kit's skips are derived from them.

    `atomic_visibility`: a sink's whole epoch becomes visible at one moment. `can_lose_votes`: the store may drop a
    prepared participant, for example after a timeout. `visible_early`: rows are visible before the decision, so the
    sink is only effectively once. `max_commit_seconds`: how long a commit may take; an epoch with an earlier deadline
    is refused. `prepared_seconds`: how long after its begin the store keeps a participant that nobody ends, None if for
    ever; an epoch that has used half of it causes a warning. `needs_shared_staging`: executors and driver must see the
    same staging folder. `needs_epoch_order`: rows are guarded by their epoch's number, so the sink takes epochs of one
    history only, and no batch runs, which have no order. `marks`: the target keeps marks (`Committer.mark`), so
    exactsink detects a target, a journal or a checkpoint that was restored from a backup. `marks_in_staging`: the marks
    are in the staging folder, so a target that was restored without that folder goes undetected. `validates_rows`: rows
    can be judged one by one without writing them (`Backend.validator`), so bad rows can be quarantined. `appends`: each
    row is kept as an additional row, so a key that Spark emits again as an update is there twice. `batch_only`: an
    epoch replaces rows of earlier ones, so the sink takes batch runs and no stream.
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
        """The sink's promise. A job promises as much as its weakest sink."""
        return "effectively once" if self.visible_early else "exactly once"


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job and the sink that a committer serves.

    `lineage` names the journal, for markers in the target: a marker with another lineage was written by another journal
    of the same job name. `succeeds` holds older lineages. By a rebase, an operator has declared that this journal
    continues the work of their journals; every mark of theirs is older than all marks of this one. In preflight, before
    the claim, `generation` is 0, and `lineage` and `succeeds` are empty. `staging` is this sink's folder for staged
    rows. `distribution` cuts the rows into partitions, for example "hash(keys)". `longest_pause_seconds` is the longest
    time that may pass between a decision and its commit. If the store may drop prepared work, or the evidence of a
    commit, within that time, `check` returns a finding. `epoch_budget_seconds` is the time that one epoch may take from
    its first row to its commit. `file_mode` says who may read folders that are made for the job; `make_folder` takes
    it. `epoch_column` is the column of the rows that holds their epoch's number, if any. `quarantine` is the sink that
    gets the rows which this sink's validator finds bad, if any.
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


class Undecided:
    """The listed participants that are proven undecided, and so may be aborted.

    Only the journal builds it (`exactsink.protocol.journal.log`), from the records that prove it. A pre-committed
    participant can be rolled back in no other way.
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

    `name` is the backend's name in a job's config. `load` is "module:Class", imported when a job first uses it.
    `install` is the command that installs its dependencies; `drivers` are the modules that it installs, and `exactsink
    backends` imports them. `contract` is the version of the contract that the backend was written for. `strategies`
    describes each strategy in a line. `conformance` is the "module:function" that returns the targets on which the
    conformance kit can try the backend (see `exactsink.testing`). `bench` names the function that returns the
    targets of `exactsink bench` (see `exactsink.bench.target`). `commands` names the function that takes an `OpenJob`
    and returns a group of commands, `exactsink NAME ...`. Each of these three is empty if the backend has none.
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
    """One thing that happened. `edge` is empty if it is not a protocol point. `fields` hold no secrets."""

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
        """Return the event as one flat dict, for structured logs: its fields beside event, job, epoch and edge."""
        return {**self.fields, "event": self.name, "job": self.job, "epoch": self.epoch, "edge": self.edge}

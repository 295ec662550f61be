"""The journal's records and their JSON: versioned, with checksums, without secrets, never pickled.

Every record has its `seq`, a random `nonce` that identifies it, `names` (the seqs of the last decision's records,
including this one) and `before` (the seq of the newest claim or note before it, -1 if there is none). So a reader of
the newest record finds everything that it must know, however long the journal is. `sha256` is the record's own sum.
`name_sums`, `before_sum` and `prior_sum` are those of the records at `names`, at `before` and at `seq` - 1, empty if
there is none: an edited record, or a record of another copy, does not fit. `at` is the time when it was written (Unix
seconds), for people: no rule reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from exactsink.contract import Committable, Fatal, LineageError, Mark
from exactsink.protocol.wire import committable_from, plain_committable, problem

__all__ = [
    "COPY",
    "FORMAT_VERSION",
    "Action",
    "BoundSink",
    "Claim",
    "Clean",
    "Columns",
    "Complete",
    "Decide",
    "DecidedSink",
    "Expected",
    "Identity",
    "Kept",
    "Note",
    "Record",
    "Redecide",
    "Resolve",
    "Settled",
    "decode",
    "sealed",
    "sum_in",
]

FORMAT_VERSION = 3
_SUM = re.compile(rb', "sha256": "([0-9a-f]{64})"\}$')
COPY = (
    "restore that entry from a copy of the journal (`exactsink journal verify JOB.toml` lists the damaged ones); "
    "without one, move the journal away, and `exactsink rebase JOB.toml` begins one from the targets' marks"
)
"""The next step if a needed entry can't be read."""

Columns = tuple[tuple[str, str], ...]
"""A sink's columns in their order: names, and types as Spark writes them, such as `decimal(10,2)`."""

_Committable = Annotated[Committable, PlainValidator(committable_from), PlainSerializer(plain_committable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The fields of every record, as described above. The journal sets them when it appends the record."""

    seq: int = -1
    nonce: str = ""
    names: tuple[int, ...] = ()
    name_sums: tuple[str, ...] = ()
    before: int = -1
    before_sum: str = ""
    prior_sum: str = ""
    sha256: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class BoundSink:
    """A sink in a claim's config: its target, and its strategy."""

    name: str
    backend: str
    strategy: str
    target: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a claimant: job, batch run if any, the checkpoint's real path, the sinks, and the process."""

    job: str
    run: str = ""
    checkpoint: str = ""
    release: str = ""
    host: str = ""
    user: str = ""
    sinks: tuple[BoundSink, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """The mark that the journal expects of one sink in one target.

    `now` is the last decision with rows for the sink, or the birth before the first one. `before` was the value of
    `now` before the newest decision. None: the target is not bound yet.
    """

    sink: str
    target: str
    now: Mark | None
    before: Mark | None


@dataclass(frozen=True, slots=True)
class Claim(_Placed):
    """A driver's fencing token: the driver that appends it owns the job until the next claim.

    `lineage` is the journal's own name, the token of its first claim. An empty `query_id` binds the journal to the next
    query that claims. Batch n of the bound query is epoch `base + n`; its first epoch here is `first_epoch`. Both are 0
    until an operator adopts another checkpoint, and pass unchanged from claim to claim. `rebased` are the marks that an
    operator's rebase expects from here on. The decision before it remains in the sinks that it `keeps`, and ends in all
    others. `succeeds` are all other journals with marks on which this journal was rebased.
    """

    generation: int
    token: str
    driver: str
    query_id: str
    lineage: str
    base: int = 0
    first_epoch: int = 0
    identity: Identity | None = None
    rebased: tuple[Expected, ...] | None = None
    keeps: tuple[str, ...] = ()
    succeeds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecidedSink:
    """One sink's part of a decision. `columns` are those of its rows; None if they are not known."""

    backend: str
    strategy: str
    target: str
    committables: tuple[_Committable, ...]
    columns: Columns | None = None

    @property
    def rows(self) -> int:
        return sum(committable.rows for committable in self.committables)


@dataclass(frozen=True, slots=True)
class Decide(_Placed):
    """The commit point of an epoch, for all sinks at once.

    `fingerprint` identifies the end of the batch, `previous` the end of the batch before it: a batch is the input
    between the two. `marks` has an entry for every sink and target that the job has had.
    """

    epoch: int
    generation: int
    fingerprint: str
    sinks: Mapping[str, DecidedSink]
    previous: str = ""
    marks: tuple[Expected, ...] = ()


@dataclass(frozen=True, slots=True)
class Redecide(_Placed):
    """Replace one sink's whole set of committables, after some were lost and written again."""

    epoch: int
    sink: str
    generation: int
    committables: tuple[_Committable, ...]


@dataclass(frozen=True, slots=True)
class Note(_Placed):
    """A text, kept permanently (see `summed_up`)."""

    text: str


@dataclass(frozen=True, slots=True)
class Complete(_Placed):
    """Every sink has committed this epoch, and no other epoch will follow: a batch run is done."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Clean(_Placed):
    """All begun work is committed or swept, and none was begun since then: sinks may leave or change now."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The participants that a command settled in one sink; `left` says why it did not settle all of them.

    It made `committed` visible; `stood` were visible before; only the job can write `lost` again; `swept` were
    undecided.
    """

    sink: str
    committed: int = 0
    stood: int = 0
    lost: int = 0
    swept: int = 0
    left: str = ""


@dataclass(frozen=True, slots=True)
class Action(_Placed):
    """An operator's action: `who` (user and host), the `command`, the `reason`, and the outcome.

    `settled` has an entry for every sink, if the command settles sinks.
    """

    who: str
    command: str
    reason: str
    outcome: str
    settled: tuple[Settled, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolve(_Placed):
    """An operator's resolution of a sink's participants in doubt: `committed`, `lost` or `given-up`.

    It applies to these `participants` (by their refs), with `rows` rows. Given-up participants are proven lost, and
    leave the decision: nobody writes them again.
    """

    who: str
    reason: str
    epoch: int
    sink: str
    outcome: str
    participants: tuple[str, ...]
    rows: int


Kept = Note | Complete | Clean | Action | Resolve
"""Records beside claims that are never deleted, and that fence nobody."""

Record = Claim | Decide | Redecide | Note | Complete | Clean | Action | Resolve
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Claim, Decide, Redecide, Note, Complete, Clean, Action, Resolve)
}


def sealed(record: Record) -> tuple[Record, bytes]:
    """Write a record as JSON, with the sum of its text at the end. Return the record with that sum as well."""
    body: dict[str, Any] = {"version": FORMAT_VERSION, "kind": type(record).__name__.lower()}
    body |= _adapter(body["kind"]).dump_python(record, mode="json", exclude={"sha256"})
    text = json.dumps(body, sort_keys=True).encode()
    sha256 = hashlib.sha256(text).hexdigest()
    return replace(record, sha256=sha256), text[:-1] + f', "sha256": "{sha256}"}}'.encode()


def decode(data: bytes, seq: int | None = None) -> Record:
    """Read a record back. `seq` is where it was found.

    Raises Fatal if this release can't read it, because a guess would lose rows, and LineageError if its sum is wrong.
    """
    try:
        body = json.loads(data)
        version, kind = body.pop("version"), body.pop("kind")
    except (ValueError, KeyError, AttributeError) as error:
        raise Fatal(f"journal entry {seq} is not a record", why=f"{error!r} in {data[:60]!r}", next=COPY) from error
    if version != FORMAT_VERSION or kind not in _KINDS:
        raise Fatal(
            f"journal record {body.get('seq')} has format {version} ({kind})",
            why=f"this release reads format {FORMAT_VERSION}",
            next="start the job with the release of exactsink that wrote it",
        )
    if (found := sum_in(data)) is None:
        what, why = f"journal entry {seq} was changed after it was written", "its content has another sha256"
        raise LineageError(what, why=why, next=COPY)
    body["sha256"] = found
    try:
        record: Record = _adapter(kind).validate_python(body)
    except ValidationError as error:
        raise _not_the(kind, seq, problem(error)) from error
    if body.keys() != {field.name for field in fields(record)} or seq not in (None, record.seq):
        raise _not_the(kind, seq, f"its fields are {', '.join(sorted(body))}, and its own number is {record.seq}")
    return record


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    """Make a kind's reader and writer when its first record needs them, because all eight take a command 24 ms."""
    return TypeAdapter(_KINDS[kind])


def _not_the(kind: str, seq: int | None, why: str) -> Fatal:
    return Fatal(f"journal entry {seq} is not the valid {kind} that it claims to be", why=why, next=COPY)


def sum_in(data: bytes) -> str | None:
    """Return the sum at a record's end, None if its content has another one. Many votes take long to decode."""
    found = _SUM.search(data)
    if found is None or hashlib.sha256(data[: found.start()] + b"}").hexdigest() != found[1].decode():
        return None
    return found[1].decode()

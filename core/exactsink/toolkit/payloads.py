"""Check votes: another release may have written them, or somebody who changed the journal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from exactsink.contract import Committable, Fatal, JobContext

__all__ = ["check_own", "check_version", "read_vote"]

_Vote = TypeVar("_Vote")
_adapter = cache(TypeAdapter)


def check_own(ctx: JobContext, committables: Iterable[Committable]) -> None:
    """Raise Fatal unless all votes are of this sink's participants, with no name of their own in the store."""
    for committable in committables:
        if (committable.txn.job, committable.txn.sink) != (ctx.job, ctx.sink) or committable.store_ref is not None:
            raise Fatal(
                f"sink {ctx.sink}: the vote of {committable.ref} is not of job {ctx.job} and this sink",
                why="somebody changed the journal; no file was changed",
                next="restore the journal from a copy, then start the job again",
            )


def check_version(committable: Committable, readable: int) -> None:
    """Raise Fatal unless this release of the backend can read the payload's version."""
    if committable.version != readable:
        raise Fatal(
            f"{committable.txn.id}: can't read a vote of version {committable.version}",
            why=f"this release reads version {readable}",
            next="start the job with the release of exactsink that wrote the epoch",
        )


def read_vote(committable: Committable, readable: int, kind: type[_Vote]) -> _Vote:
    """Read a vote's JSON as a dataclass, strictly. Raises Fatal for another version or form."""
    check_version(committable, readable)
    try:
        vote: _Vote = _adapter(kind).validate_json(committable.payload, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise Fatal(
            f"the vote of {committable.txn.id} can't be read",
            why=f"somebody changed the journal: {'.'.join(map(str, wrong['loc']))} {wrong['msg']}",
            next="restore the journal from a copy, then start the job again; nothing was committed or aborted",
        ) from None
    return vote

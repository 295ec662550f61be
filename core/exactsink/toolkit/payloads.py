"""Check votes: another release may have written them, or somebody who changed the journal."""

from __future__ import annotations

from collections.abc import Iterable

from exactsink.contract import Committable, Fatal, JobContext

__all__ = ["check_own", "check_version"]


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

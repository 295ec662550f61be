"""What to tell of a lock that did not come: who holds it, and what ends that."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.errors import ExactsinkError, Fatal, Retryable
from exactsink.model import Txn
from exactsink_postgres.blockers import Blocker

__all__ = ["blocked", "timed_out"]

_UNDECIDED = "the epoch is not decided yet, and is written again"
_AGAIN = "start the job again"
_SHOWN = 3


def blocked(doing: str, mine: Txn, blocker: Blocker, columns: Sequence[str] = ()) -> ExactsinkError:
    """Give the error for a participant, or a driver (`partition` -1), whose lock did not come."""
    what = f"{doing}: blocked by {blocker}"
    other = None if blocker.gid is None else Txn.parse(blocker.gid)
    if other is None:
        mend = f"let its owner end it ({blocker.ended_by}), or wait; then {_AGAIN}"
        return Retryable(what, why=f"it is not this job's; {_UNDECIDED}", next=mend)
    if other.job != mine.job:
        mend = f"start job {other.job}, which commits or rolls back what it prepared, or wait; then {_AGAIN}"
        return Retryable(what, why=f"it is job {other.job}'s; {_UNDECIDED}", next=mend)
    if other.generation < mine.generation:
        return Retryable(what, why="an earlier driver of this job began it; the next start rolls it back", next=_AGAIN)
    if other.generation > mine.generation or (mine.token and other.token != mine.token):
        why = "another driver has claimed this job, or one with another journal uses its name"
        return Retryable(what, why=why, next="leave the job to that driver; `exactsink status` shows it")
    if other.epoch == mine.epoch and other.sink != mine.sink:
        why = f"sinks {other.sink} and {mine.sink} write rows with the same unique key into one table"
        return Fatal(what, why=why, next="filter the rows of one sink (where), or take one of the sinks out")
    if other.epoch == mine.epoch and other.partition != mine.partition and mine.partition >= 0:
        return Fatal(
            what,
            why=f"partitions {other.partition} and {mine.partition} of this epoch hold rows with the same unique key",
            next='set distribution = "hash(key)" for this sink, with the columns of the key: rows of one key then come '
            f"together, and the server names them; or drop the doubles before it (columns: {', '.join(columns)})",
        )
    why = "it is an earlier attempt of this job's own; the next start rolls it back"
    return Retryable(what, why=why, next=_AGAIN)


def timed_out(doing: str, writers: Sequence[Blocker]) -> ExactsinkError:
    """Give the error where nobody saw the lock's holder, with those that have written to the table."""
    some = "; ".join(map(str, writers[:_SHOWN])) + ("; ..." if len(writers) > _SHOWN else "")
    why = f"one of these may hold it: {some}" if writers else "whoever held it was gone before it could be named"
    return Retryable(f"{doing}: a lock did not come in time", why=f"{why}; {_UNDECIDED}", next=_AGAIN)

"""Compare a batch with the last decision: it is a replay, or it begins where the decided one ended."""

from __future__ import annotations

from exactsink.contract import InDoubtError, LineageError, Refused
from exactsink.protocol.journal.log import Decision, Log

__all__ = ["check_follows", "check_replay", "given_twice", "nobody_has_its_rows", "out_of_order"]

_REBASE = "or `exactsink rebase JOB.toml`, which continues from the targets' marks: rows read again are doubled"
_OTHER_CHECKPOINT = (
    f"restore the checkpoint that belongs to the journal, or give the job a new name and checkpoint; {_REBASE}"
)


def check_follows(log: Log, epoch: int, previous: str) -> None:
    """Refuse a new batch that does not begin where the last decided one ended."""
    decision = log.decision
    if decision is None or epoch == log.claims[-1].first_epoch:
        return  # the first batch of this checkpoint
    if previous != decision.fingerprint:
        raise LineageError(
            f"epoch {epoch} does not begin where epoch {decision.epoch} ended",
            why="the checkpoint is an older copy, and cuts the source's input elsewhere: rows would be doubled or lost",
            next=_OTHER_CHECKPOINT,
        )


def check_replay(decision: Decision, fingerprint: str, previous: str) -> None:
    """Refuse a batch with the last decided epoch's number, but with other input. Raises LineageError."""
    if fingerprint != decision.fingerprint or decision.previous != previous:
        raise LineageError(
            f"epoch {decision.epoch} was decided for other input than this batch has",
            why="the checkpoint is an older copy, and its source cuts the input in other places",
            next=_OTHER_CHECKPOINT,
        )


def out_of_order(epoch: int, expected: int) -> LineageError:
    """Return the error for an epoch that is neither the next one nor the last decided one."""
    if epoch < expected:
        why, fix = "the checkpoint went back in time: these rows were decided before", _OTHER_CHECKPOINT
    else:
        why = "the journal went back in time, or is not this checkpoint's, or nobody called for the epochs between"
        fix = (
            "restore the newest journal from beside the checkpoint, or give the job a new name and checkpoint; or, "
            f"where it has decided nothing yet, `exactsink adopt JOB.toml`: epochs {expected} to {epoch - 1} are then "
            f"missing in every sink; {_REBASE}"
        )
    return LineageError(f"the source came with epoch {epoch}, the journal expects {expected}", why=why, next=fix)


def given_twice(epoch: int) -> Refused:
    """Return the error for an epoch that comes again to the driver that has finished it.

    Such a driver gets no replay.
    """
    return Refused(
        f"epoch {epoch} came twice to the driver that had finished it",
        why="the function of job.foreach_batch() was called twice for one batch: the rows of the first call are "
        "decided, and no sink has the rows of the second",
        next="call it once a batch, with all rows, and give each sink its part by `where`, `columns` or a route; write "
        f'the rows of the second call once, by job.write(frame, run="rest-of-{epoch}")',
    )


def nobody_has_its_rows(epoch: int, give_up: str) -> InDoubtError:
    """Return the error for lost rows of an epoch that the source has done. `give_up` is the command to drop them."""
    return InDoubtError(
        f"epoch {epoch} has lost rows, and the source has gone on from it",
        why="its rows have to be written again, and only that batch has them",
        next=f"restore a checkpoint that has not finished that batch; or, without one, give these rows up: {give_up}",
    )

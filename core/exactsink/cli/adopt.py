"""`exactsink adopt`: continue a journal with another checkpoint."""

from __future__ import annotations

from contextlib import closing

from exactsink.cli.answers import answering
from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, command, job_file, reason, take_over

__all__ = ["adopt"]


@command()
@job_file
@take_over
@reason
@as_json
def adopt(job: str, take_over: bool, reason: str, as_json: bool) -> None:
    """Let a job go on with a new checkpoint: bind the job's journal to the checkpoint that the job's file names now.

    It acts at once, without a dry run: it claims the job, and commits its last decided epoch.
    """
    with answering(as_json) as answer:
        answer["job"] = None
        opened = Opened.of(job)
        answer["job"] = opened.config.job.name
        with closing(opened.operator()) as operator:
            batch, epoch = operator.adopt(take_over=take_over, reason=reason)
        answer |= {"batch": batch, "epoch": epoch}
        print(f"adopted: batch {batch} of the checkpoint will be epoch {epoch}")
        print("the checkpoint's source decides which rows come next: if it starts before rows that an earlier query")
        print(f"has written, they come again\n  next: {opened.history.commands.start}")

"""`exactsink adopt`: let a journal go on with another checkpoint."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from exactsink.cli.opened import Opened

__all__ = ["adopt"]


def adopt(path: str, reason: str, answer: dict[str, Any], *, take_over: bool) -> None:
    """Bind the journal to the checkpoint that stands at its place now, or to the next new one."""
    answer["job"] = None
    opened = Opened.of(path)
    answer["job"] = opened.config.job.name
    with closing(opened.operator()) as operator:
        batch, epoch = operator.adopt(take_over=take_over, reason=reason)
    answer |= {"batch": batch, "epoch": epoch}
    print(f"adopted: batch {batch} of the checkpoint will be epoch {epoch}")
    print("its source decides which rows come next: rows that an earlier checkpoint's query wrote come again if it")
    print(f"starts before them\n  next: {opened.history.commands.start}")

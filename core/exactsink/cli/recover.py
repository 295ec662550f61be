"""`exactsink recover`: commit again and sweep, as a driver's start does, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from exactsink.cli.answers import settled
from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.operate.recovery import Recovery

__all__ = ["recover"]


def recover(
    path: str,
    run: str | None,
    reason: str,
    answer: dict[str, Any],
    *,
    dry_run: bool,
    take_over: bool,
    sweep_tokens: Sequence[str],
) -> None:
    """Settle what is in doubt in each sink that answers, or with `dry_run` say what would be done and change nothing.

    Raises what is left to do.
    """
    answer |= {"job": None, "run": run, "dry_run": dry_run}
    opened = Opened.of(path, run)
    answer["job"] = opened.config.job.name
    with closing(opened.operator()) as operator:
        is_empty = not operator.read().claims
        tokens = frozenset(sweep_tokens)
        if dry_run:
            print("nothing is changed; recover would come to:")
            recovery = operator.recovery_plan(take_over=take_over, sweep_tokens=tokens)
        else:
            recovery = operator.recover(take_over=take_over, sweep_tokens=tokens, reason=reason)
    answer |= settled(recovery)
    if is_empty and recovery.left() is None and not any(sink.swept for sink in recovery.settled):
        if run is not None:
            raise opened.unknown_run()
        print("nothing to recover: the journal is empty, and no sink holds work of this job")
        return
    _print(recovery)
    if (left := recovery.left()) is not None:
        raise left


def _print(recovery: Recovery) -> None:
    rows = [[s.sink, s.committed, s.stood, s.lost, s.swept, s.left or "nothing"] for s in recovery.settled]
    print_table(("sink", "committed", "stood already", "lost", "swept", "left to do"), rows, sys.stdout)
    if recovery.left() is None:
        recovered, is_, stays = ("", "would be", "would be") if recovery.planned else ("recovered: ", "is", "is")
        done = f"epoch {recovery.epoch} {is_} committed in every sink"
        epoch = "none is decided" if recovery.epoch is None else done
        print(f"{recovered}{epoch}, and nothing {stays} in doubt")

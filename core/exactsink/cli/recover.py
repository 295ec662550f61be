"""`exactsink recover`: commit again and sweep, as a driver's start does, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from exactsink.cli.answers import settled
from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError
from exactsink.operate.recovery import Recovery
from exactsink.operate.settle import Settler

__all__ = ["recover"]


def recover(
    path: str,
    run: str | None,
    sinks: Sequence[str],
    refs: Sequence[str],
    answer: dict[str, Any],
    *,
    dry_run: bool,
    take_over: bool,
    sweep_tokens: Sequence[str],
    reason: str,
) -> None:
    """Settle what is in doubt in each sink that answers, or with `dry_run` say what would be done and change nothing.

    `sinks` and `refs` limit it to what they name. Raises what is left to do.
    """
    answer |= {"job": None, "run": run, "dry_run": dry_run}
    opened = Opened.of(path, run)
    answer["job"] = opened.config.job.name
    with closing(opened.acting(Settler)) as operator:
        is_empty = not operator.read().claims
        tokens = frozenset(sweep_tokens)
        part = operator.part(sinks, refs, tokens, take_over=take_over)
        if part is not None and tokens and not reason:
            raise ConfigError("foreign work is ended for a reason", next="repeat with --reason 'TEXT'")
        if dry_run:
            print("nothing is changed; recover would come to:")
            recovery = operator.recovery_plan(take_over=take_over, sweep_tokens=tokens, part=part)
        else:
            recovery = operator.recover(take_over=take_over, sweep_tokens=tokens, reason=reason, part=part)
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
    if recovery.left() is not None:
        return
    recovered, is_, stays = ("", "would be", "would be") if recovery.planned else ("recovered: ", "is", "is")
    if recovery.part is not None:
        print(f"{recovered}this part of the job {is_} settled" + "; repeat with --yes to do it" * recovery.planned)
        return
    done = f"epoch {recovery.epoch} {is_} committed in every sink"
    epoch = "none is decided" if recovery.epoch is None else done
    print(f"{recovered}{epoch}, and nothing {stays} in doubt")

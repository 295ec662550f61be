"""`exactsink recover`: commit again and sweep, as a driver's start does, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from exactsink.cli.opened import Opened
from exactsink.operate.views import Holding, holdings
from exactsink.protocol.journal.log import Log

__all__ = ["print_recovery", "recover"]


def recover(path: str, run: str | None, *, dry_run: bool, take_over: bool, sweep_tokens: Sequence[str]) -> None:
    """Settle what is in doubt, or with `dry_run` say what would be done and change nothing."""
    opened = Opened.of(path, run)
    with closing(opened.operator()) as operator:
        log = operator.read()
        if not log.claims:
            print("nothing to recover: the journal is empty")
            return
        held = holdings(opened.history, opened.sinks, log, operator.whole)
        if dry_run:
            print_recovery(log, held, sweep_tokens)
            return
        operator.recover(take_over=take_over, sweep_tokens=frozenset(sweep_tokens))
        left = holdings(opened.history, opened.sinks, operator.read(), operator.whole)
    epoch = "none is decided" if log.decision is None else f"epoch {log.decision.epoch} is committed in every sink"
    print(f"recovered: {epoch}; {len(held)} participants were in doubt, {len(left)} are")


def print_recovery(log: Log, held: Sequence[Holding], sweep_tokens: Sequence[str]) -> None:
    """Print what a recovery would do."""
    if log.decision is not None:
        print(f"would commit epoch {log.decision.epoch} again, in every sink (what stands committed stays as it is)")
    for holding in held:
        print(f"would {_deed(holding, sweep_tokens)} {holding.sink}: {holding.participant.ref}")


def _deed(holding: Holding, sweep_tokens: Sequence[str]) -> str:
    if holding.whose == "decided":
        return "commit"
    if holding.whose == "undecided" or holding.participant.token in sweep_tokens:
        return "sweep"
    return f"refuse (--sweep-token {holding.participant.token} would sweep it)"

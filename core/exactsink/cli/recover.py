"""`exactsink recover`: commit again and sweep, as a driver's start does, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

import click

from exactsink.cli.answers import answering, settled
from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, command, dry_run, job_file, reason, run_name, sink_option, take_over
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError
from exactsink.operate.recovery import Recovery

__all__ = ["recover"]


@command()
@job_file
@run_name
@sink_option("sinks", multiple=True, metavar="NAME", help="Settle only this sink and its `after`; repeatable.")
@click.option("--ref", "references", metavar="REF", multiple=True, help="Settle this participant; repeatable.")
@click.option("--yes", is_flag=True, help="Act on --sink or --ref; without --yes, only print the effects.")
@dry_run
@take_over
@click.option("--sweep-token", "sweep_tokens", metavar="TOKEN", multiple=True, help="Also abort TOKEN's foreign work.")
@reason
@as_json
def recover(
    job: str,
    run: str | None,
    sinks: Sequence[str],
    references: Sequence[str],
    yes: bool,
    dry_run: bool,
    take_over: bool,
    sweep_tokens: Sequence[str],
    reason: str,
    as_json: bool,
) -> None:
    """Commit decided work in every sink that answers; if all answer, abort undecided work. Needs no Spark.

    Without --sink and --ref, the command acts at once. With one of them, it is a dry run until you add --yes. Before it
    acts, it claims the job. If the participant of --ref is decided, its sink's whole decision is settled. REF is the
    participant's short reference or its name, or the beginning of one of them: `exactsink indoubt list` prints both.
    """
    shown = dry_run or (bool(sinks or references) and not yes)
    with answering(as_json) as answer:
        answer |= {"job": None, "run": run, "dry_run": shown}
        opened = Opened.of(job, run)
        answer["job"] = opened.config.job.name
        with closing(opened.operator()) as operator:
            is_empty = not operator.read().claims
            tokens = frozenset(sweep_tokens)
            part = operator.part(sinks, references, tokens, take_over=take_over)
            if part is not None and tokens and not reason:
                raise ConfigError("--sweep-token needs a reason for the journal", next="repeat with --reason 'TEXT'")
            if shown:
                print("nothing is changed; recover would do this" + " without --dry-run" * dry_run + ":")
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
    print_table(("sink", "committed", "already there", "lost", "swept", "left to do"), rows, sys.stdout)
    if recovery.left() is not None:
        return
    recovered, is_, stays = ("", "would be", "would be") if recovery.planned else ("recovered: ", "is", "is")
    if recovery.part is not None:
        print(f"{recovered}this part of the job {is_} settled" + "; repeat with --yes to do it" * recovery.planned)
        return
    done = f"epoch {recovery.epoch} {is_} committed in every sink"
    epoch = "none is decided" if recovery.epoch is None else done
    print(f"{recovered}{epoch}, and nothing {stays} in doubt")

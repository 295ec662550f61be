"""The `exactsink` command: its commands, and what an error's exit code is.

0 ok, 1 failed (a person must act), 2 usage or config, 3 in doubt or lost remain, 4 fenced, 5 preflight or lineage
refused, 6 foreign work, 70 bug, 75 try again later, 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from exactsink import __version__
from exactsink.cli import adopt as adopt_command
from exactsink.cli import backends as backends_command
from exactsink.cli import barrier as barrier_command
from exactsink.cli import check_driver
from exactsink.cli import history as history_command
from exactsink.cli import init as init_command
from exactsink.cli import journal as journal_command
from exactsink.cli import rebase as rebase_command
from exactsink.cli import recover as recover_command
from exactsink.cli import runs as runs_command
from exactsink.cli import schema as schema_command
from exactsink.cli import status as status_command
from exactsink.cli import stop as stop_command
from exactsink.cli import verify as verify_command
from exactsink.cli.answers import answering, one_document
from exactsink.cli.indoubt import indoubt
from exactsink.cli.init_plugin import ROADS, init_plugin
from exactsink.cli.plugins import PluginCommands
from exactsink.cli.streams import watched_streams
from exactsink.contract import EXIT_BUG, ConfigError, ContractError, ExactsinkError
from exactsink.job.config.model import NEW_NAME
from exactsink.job.stop import stopped_by_signals
from exactsink.observe.logs import LogFormat, logs_json, start_log
from exactsink.operate.asking import exit_though_asking
from exactsink.operate.views import ASKED_SECONDS

__all__ = ["cli", "main"]

EXIT_INTERRUPTED = 130
_LOG = logging.getLogger("exactsink")

_job_file = click.argument("job", metavar="JOB.toml", type=click.Path(dir_okay=False))
_run = click.option("--run", help="One of the job's batch runs, in place of its stream.")
_take_over = click.option("--take-over", is_flag=True, help="Claim the job although a driver may be running.")
_reason = click.option("--reason", default="", help="Kept in the journal.")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _job_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(NEW_NAME, value):
        raise click.BadParameter(f"a name looks like {NEW_NAME}")
    return value


@click.group(cls=PluginCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="exactsink")
@click.option("-v", "--verbose", count=True, help="Log events; twice: protocol points too.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Of stderr.")
def cli(verbose: int, log_format: LogFormat) -> None:
    """Exactly-once output from PySpark to several stores, committed together."""
    start_log(log_format, verbose)
    try:
        Path.cwd()
    except FileNotFoundError:  # somebody has put another one in its place, perhaps
        raise ConfigError("the current folder was deleted", next='cd "$PWD", or into another one') from None


@cli.command()
@_job_file
@_as_json
def run(job: str, as_json: bool) -> None:
    """Run a job until its source is exhausted, or for good; go on where the last run stopped."""
    with answering(as_json) as answer, stopped_by_signals() as stop:
        stop.say = _report
        _spark_command("run").run(job, stop=stop, answer=answer)


@cli.command()
@_job_file
@_run
@click.option("--within", type=click.FloatRange(min=0), metavar="SECONDS", help="In place of [job] stop_within.")
def stop(job: str, run: str | None, within: float | None) -> None:
    """Ask a job's driver, wherever it runs, to end after its epoch, and wait until it has.

    A batch run that is not decided in time is given up: the next call writes it.
    """
    stop_command.stop(job, run, within)


@cli.command()
@_job_file
@click.option("--no-spark", is_flag=True, help="Look at what the driver alone can see, within 5 s; list the rest.")
@_as_json
def check(job: str, no_spark: bool, as_json: bool) -> None:
    """Check a job's config, sinks and targets without writing a row."""
    with answering(as_json) as answer:
        (check_driver if no_spark else _spark_command("check")).check(job, answer)


@cli.command()
@click.option("--job", metavar="JOB.toml", type=click.Path(dir_okay=False), help="Measure copies of this job's sinks.")
@click.option("--rows", default=50_000, show_default=True, type=click.IntRange(min=100), help="Rows an epoch.")
@click.option("--epochs", default=5, show_default=True, type=click.IntRange(min=1), help="Epochs a run.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Runs of each way, in turns.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Write bench.html, .md and .json there.")
def bench(job: str | None, rows: int, epochs: int, rounds: int, out: str | None) -> None:
    """Measure every way to write that a job could choose, on copies of its targets that are removed again.

    Without a job, those that need no server.
    """
    _spark_command("bench").bench(job, rows, epochs, rounds, out)


@cli.command()
@_job_file
@_run
@click.option("--all", "everything", is_flag=True, help="Former sinks and batch runs, too.")
@click.option(
    "--within",
    type=click.FloatRange(min=0.1),
    default=ASKED_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long each sink may take to answer.",
)
@_as_json
def status(job: str, run: str | None, everything: bool, within: float, as_json: bool) -> None:
    """Report how far a job is, who drives it, and what of its last epoch is not proven committed.

    Ends with 0 while nobody is needed: all is proven, or a driver is at work. Changes nothing.
    """
    status_command.status(job, run, as_json, within, everything=everything)


@cli.command()
@_job_file
@_as_json
def runs(job: str, as_json: bool) -> None:
    """List a job's batch runs, and how far each is."""
    runs_command.runs(job, as_json)


@cli.command()
@_job_file
@_run
@click.option("--last", default=50, show_default=True, type=click.IntRange(min=1), help="How many records.")
@_as_json
def history(job: str, run: str | None, last: int, as_json: bool) -> None:
    """List a job's claims, decisions and notes."""
    history_command.history(job, run, last, as_json)


@cli.command()
@_job_file
@_run
@click.option("--sink", "sinks", multiple=True, metavar="NAME", help="Settle this sink only; repeatable.")
@click.option("--ref", "refs", multiple=True, help="Settle this participant only; repeatable.")
@click.option("--yes", is_flag=True, help="Do what --sink or --ref mean; else it is only shown.")
@_dry_run
@_take_over
@click.option("--sweep-token", "sweep_tokens", multiple=True, help="Sweep a foreign claim's work too; repeatable.")
@_reason
@_as_json
def recover(
    job: str,
    run: str | None,
    sinks: tuple[str, ...],
    refs: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Commit what is decided and sweep what is not, in every sink that answers, without Spark.

    A sink means those that come before it, too. A participant that is decided means its sink's part of the decision;
    REF is its short form or its name, as `exactsink indoubt list` has them, or the beginning of either.
    """
    with answering(as_json) as answer:
        is_shown = dry_run or (bool(sinks or refs) and not yes)
        recover_command.recover(job, run, sinks, refs, answer, dry_run=is_shown, **options)


@cli.group()
def journal() -> None:
    """Look into a job's journal, wherever it is kept. Changes nothing."""


@journal.command("verify")
@_job_file
@_run
@_as_json
def journal_verify(job: str, run: str | None, as_json: bool) -> None:
    """Check every entry, its sum and its chain; say which damaged ones matter."""
    with answering(as_json) as answer:
        journal_command.verify(job, run, answer)


@journal.command("show")
@_job_file
@click.argument("seq", type=int)
@_run
def journal_show(job: str, seq: int, run: str | None) -> None:
    """Print one entry whole, as JSON; payloads of votes as sizes."""
    journal_command.show(job, run, seq)


@journal.command("export")
@_job_file
@_run
def journal_export(job: str, run: str | None) -> None:
    """Write every entry that stands to stdout, a JSON line each."""
    journal_command.export(job, run)


@cli.command()
@_job_file
@_take_over
@_reason
@_as_json
def adopt(job: str, take_over: bool, reason: str, as_json: bool) -> None:
    """Let a job's epochs go on with another checkpoint than the one its journal belongs to."""
    with answering(as_json) as answer:
        adopt_command.adopt(job, reason, answer, take_over=take_over)


@cli.command()
@_job_file
@_run
@click.option(
    "--sink", "named", multiple=True, metavar="NAME=EPOCH", help="What its target holds: an epoch, birth or none."
)
@click.option("--batch", type=int, help="The next batch of the checkpoint.")
@_reason
@click.option("--yes", is_flag=True, help="Do it: what the targets hold is the truth from here on.")
@_dry_run
@_take_over
def rebase(
    job: str,
    run: str | None,
    named: tuple[str, ...],
    batch: int | None,
    reason: str,
    yes: bool,
    dry_run: bool,
    take_over: bool,
) -> None:
    """Show what every target holds, and which rows would be missing or doubled; with --sink, go on from there."""
    rebase_command.rebase(job, run, named, batch, reason, confirmed=yes, dry_run=dry_run, take_over=take_over)


cli.add_command(indoubt)


@cli.command()
@_job_file
@_run
@click.option("--epoch", type=click.IntRange(min=0), help="Wait for this one; the last decided one by default.")
@click.option("--timeout", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS")
@_as_json
def barrier(job: str, run: str | None, epoch: int | None, timeout: float, as_json: bool) -> None:
    """Wait until an epoch is complete in every sink; print the last one that is: a cut that is the same in all."""
    barrier_command.barrier(job, run, epoch, timeout, as_json)


@cli.command()
@_job_file
@_run
@click.option("--epochs", default="..", metavar="A..B", help="These; all that the journal speaks of by default.")
@click.option("--deep", is_flag=True, help="Read all that the targets hold of them, where that proves more.")
@_as_json
def verify(job: str, run: str | None, epochs: str, deep: bool, as_json: bool) -> None:
    """Hold each decided epoch against what every target holds now: proven, differs, or can't be known."""
    verify_command.verify_job(job, run, epochs, deep, as_json)


@cli.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--name", default="orders", show_default=True, callback=_job_name, help="The job's name.")
@click.option("--plugin", metavar="NAME", help="Write an installable package with a backend of this name, and no job.")
@click.option("--from", "road", type=click.Choice(list(ROADS)), default="staged", help="What the plugin's store has.")
def init(folder: str, name: str, plugin: str | None, road: str) -> None:
    """Write a small job to start from into FOLDER, or a plugin; never overwrites.

    A plugin starts from `staged` where its store has transactions, from `idempotent` where it has keys and conditional
    writes only, from `two-phase` where one process can prepare what another one commits.
    """
    if plugin is None:
        init_command.init(folder, name)
    else:
        init_plugin(folder, plugin, road)


@cli.command()
@click.option("--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write it there; to stdout else.")
def schema(output: str | None) -> None:
    """Print the JSON schema of a job's file, by which editors complete and check it."""
    schema_command.schema(output)


@cli.command()
@_as_json
def backends(as_json: bool) -> None:
    """List the installed backends, the broken ones with their problem."""
    backends_command.backends(as_json)


@cli.command()
@click.argument("backend", metavar="NAME")
@click.option("--scenario", "scenarios", multiple=True, help="Play this one only; repeatable.")
@click.option("--target", "targets", multiple=True, help="Play on this target only; repeatable.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Play so many side by side.")
@click.option("--evidence", metavar="FOLDER", help="Keep what failed scenarios leave here; by default in a new folder.")
@_as_json
def conformance(
    backend: str, scenarios: tuple[str, ...], targets: tuple[str, ...], jobs: int, evidence: str | None, as_json: bool
) -> None:
    """Try an installed backend under faults, on the targets that its plugin ships."""
    kit = importlib.import_module("exactsink.cli.conformance")  # no other command needs it
    kit.conformance(backend, scenarios, as_json, only=targets, jobs=jobs, evidence=evidence)


@cli.command()
def script() -> None:
    """Print the file to give to spark-submit: spark-submit "$(exactsink script)" run JOB.toml"""
    click.echo(str(Path(__file__).with_name("submit.py")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code. The next command stands behind every error.

    Without `arguments` those of this process are taken, and it may end here.
    """
    with watched_streams():
        code = _run_command(arguments)
    if arguments is None:
        exit_though_asking(code)
    return code


def _run_command(arguments: Sequence[str] | None) -> int:
    try:
        with one_document("--json" in (sys.argv[1:] if arguments is None else arguments)):
            result = cli.main(arguments, prog_name="exactsink", standalone_mode=False)
        print(end="", flush=True)  # an answer that can't be printed is an error
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (click.Abort, KeyboardInterrupt):
        _report("interrupted; nothing decided is lost, the same command goes on", EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return ConfigError.exit_code
    except ExactsinkError as error:
        if isinstance(error, ContractError) and not logs_json():
            traceback.print_exc()
        _report(str(error), error.exit_code)
        return error.exit_code
    except Exception as error:
        said = "this is a bug in exactsink or a plugin; nothing decided is lost, the same command is safe"
        if not logs_json():
            traceback.print_exc()
        _report(said, EXIT_BUG, error)
        return EXIT_BUG


def _report(text: str, code: int, error: Exception | None = None) -> None:
    """Print how a command ended: a line for people, or a record of the log where that is in JSON."""
    if logs_json():
        _LOG.error("%s", text, extra={"exactsink": {"exit_code": code}}, exc_info=error)
    else:
        click.echo(f"exactsink: {text}", err=True)


def _spark_command(name: str) -> Any:
    """Import a command that needs Spark; the others work without it."""
    try:
        return importlib.import_module(f"exactsink.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "py4j", "pandas"):
            raise
        raise ConfigError(f"{name} needs Spark", why=str(error), next="pip install 'exactsink[spark]'") from None


if __name__ == "__main__":
    sys.exit(main())

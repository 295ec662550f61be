"""The `exactsink` command: its subcommands, and the exit codes of errors.

0 ok, 1 failed (a person must act), 2 usage or config, 3 in doubt or lost remain, 4 fenced, 5 preflight or lineage
refused, 6 foreign work, 70 bug, 75 try again later, 130 interrupted.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from exactsink import __version__
from exactsink.cli import check_driver
from exactsink.cli.adopt import adopt
from exactsink.cli.answers import answering, one_document
from exactsink.cli.backends import backends
from exactsink.cli.barrier import barrier
from exactsink.cli.history import history
from exactsink.cli.indoubt import indoubt
from exactsink.cli.init import init
from exactsink.cli.journal import journal
from exactsink.cli.options import as_json, job_file, number, within
from exactsink.cli.plugins import PluginCommands
from exactsink.cli.rebase import rebase
from exactsink.cli.recover import recover
from exactsink.cli.runs import runs
from exactsink.cli.schema import schema
from exactsink.cli.status import status
from exactsink.cli.stop import stop
from exactsink.cli.streams import watched_streams
from exactsink.cli.usage import next_command
from exactsink.cli.verify import verify_job
from exactsink.cli.watch import watch
from exactsink.contract import EXIT_BUG, ConfigError, ContractError, ExactsinkError
from exactsink.job.stop import stopped_by_signals
from exactsink.observe.logs import LogFormat, logs_json, start_log
from exactsink.operate.asking import exit_though_asking
from exactsink.operate.driver_check import CHECK_SECONDS
from exactsink.operate.reachable import ANSWER_SECONDS

__all__ = ["cli", "main"]

EXIT_INTERRUPTED = 130
_LOG = logging.getLogger("exactsink")


@click.group(cls=PluginCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="exactsink")
@click.option("-v", "--verbose", count=True, help="-v: also log events of level INFO; -vv: also those of level DEBUG.")
@number("--log-format", metavar=None, type=click.Choice(["text", "json"]), default="text", help="Log format on stderr.")
def cli(verbose: int, log_format: LogFormat) -> None:
    """Exactly-once output from PySpark to several stores, committed together."""
    start_log(log_format, verbose)
    try:
        Path.cwd()
    except FileNotFoundError:  # another folder may have its path now
        raise ConfigError("the current folder was deleted", next='cd "$PWD", or into another one') from None


@cli.command()
@job_file
@within(ANSWER_SECONDS)
@as_json
def run(job: str, within: float, as_json: bool) -> None:
    """Run a job from where its last run ended, until its source has no more rows (`available_now`) or you stop it."""
    with answering(as_json) as answer, stopped_by_signals() as stop:
        stop.say = _report
        _spark_command("run").run(job, stop=stop, answer=answer, within=within)


@cli.command()
@job_file
@click.option("--no-spark", is_flag=True, help="Check without Spark, within 5 s; list the checks that were left out.")
@within(CHECK_SECONDS)
@as_json
def check(job: str, no_spark: bool, within: float, as_json: bool) -> None:
    """Check a job's config, sinks and targets without writing a row."""
    with answering(as_json) as answer:
        (check_driver if no_spark else _spark_command("check")).check(job, answer, within)


@cli.command()
@click.option("--job", metavar="JOB.toml", type=click.Path(dir_okay=False), help="Measure copies of this job's sinks.")
@number("--rows", default=50_000, type=click.IntRange(min=100), help="Rows in each epoch.")
@number("--epochs", default=5, type=click.IntRange(min=1), help="Epochs in each run.")
@number("--rounds", default=3, type=click.IntRange(min=1), help="Measurements per strategy.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for bench.html and bench.json.")
def bench(job: str | None, rows: int, epochs: int, rounds: int, out: str | None) -> None:
    """Measure each strategy that a job could choose, on temporary copies of its targets.

    Without --job, measure the strategies that need no server.
    """
    _spark_command("bench").bench(job, rows, epochs, rounds, out)


@cli.command()
@click.argument("backend", metavar="NAME")
@click.option("--scenario", "scenarios", metavar="NAME", multiple=True, help="Run only this scenario; repeatable.")
@click.option("--target", "targets", metavar="NAME", multiple=True, help="Run only on this target; repeatable.")
@number("--jobs", type=click.IntRange(min=1), default=1, help="Scenarios to run at once.")
@as_json
def conformance(backend: str, scenarios: tuple[str, ...], targets: tuple[str, ...], jobs: int, as_json: bool) -> None:
    """Test an installed backend: run it under faults, on the test targets of its plugin.

    The files of a failed scenario stay in a new folder below TMPDIR. The report names that folder.
    """
    kit = importlib.import_module("exactsink.cli.conformance")  # no other command needs it
    kit.conformance(backend, scenarios, as_json, only=targets, jobs=jobs)


@cli.command()
def script() -> None:
    """Print the path of the file for spark-submit: spark-submit "$(exactsink script)" run JOB.toml"""
    click.echo(str(Path(__file__).with_name("submit.py")))


_OTHERS = (adopt, backends, barrier, history, indoubt, init, journal, rebase, recover, runs, schema, status, stop)
for _command in (*_OTHERS, verify_job, watch):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Every error is printed with the next command.

    Without `arguments`, it takes those of this process, and may end the process.
    """
    with watched_streams():
        code = _run_command(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        exit_though_asking(code)
    return code


def _run_command(arguments: Sequence[str]) -> int:
    try:
        with one_document(arguments):
            result = cli.main(arguments, prog_name="exactsink", standalone_mode=False)
        print(end="", flush=True)  # an answer that can't be printed is an error
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (click.Abort, KeyboardInterrupt):
        _report("interrupted; nothing decided is lost, and the same command continues", EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.UsageError):
            click.echo(f"  next: {next_command(error, arguments)}", err=True)
        return ConfigError.exit_code
    except ExactsinkError as error:
        if isinstance(error, ContractError) and not logs_json():
            traceback.print_exc()
        _report(str(error), error.exit_code)
        return error.exit_code
    except Exception as error:
        said = "this is a bug in exactsink or a plugin; nothing decided is lost, and the same command is safe"
        if not logs_json():
            traceback.print_exc()
        _report(said, EXIT_BUG, error)
        return EXIT_BUG


def _report(text: str, code: int, error: Exception | None = None) -> None:
    """Print how a command ended: a line for people, or a log record if the log is in JSON."""
    if logs_json():
        _LOG.error("%s", text, extra={"exactsink": {"exit_code": code}}, exc_info=error)
    else:
        click.echo(f"exactsink: {text}", err=True)


def _spark_command(name: str) -> Any:
    """Import a command that needs Spark, because the others work without it."""
    try:
        return importlib.import_module(f"exactsink.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pyspark", "py4j", "pandas"):
            raise
        raise ConfigError(f"{name} needs Spark", why=str(error), next="pip install 'exactsink[spark]'") from None


if __name__ == "__main__":
    sys.exit(main())

"""Run the flights job, kill its driver five times with SIGKILL at different steps, and compare sinks and source.

Ends with exit code 1 if a row is lost or doubled.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from exactsink.cli.table import print_table
from exactsink.contract import Event
from reconcile import Reconciled, reconcile
from source import cut_into_days

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("FLIGHTS", ".demo")).absolute()
os.environ["FLIGHTS"] = str(FOLDER)  # the job's file would take a relative one from its own folder
KILLS = (
    ("open_epoch", "after", 3),
    ("decide", "before", 8),
    ("decide", "after", 12),
    ("commit:lake", "after", 17),
    ("complete", "after", 21),
)
"""Where each driver run ends: point, edge, epoch. The last one runs to the end of the year."""
DAYS_PER_EPOCH = 14  # maxFilesPerTrigger in job.toml


def main() -> int:
    if sys.argv[1:2] == ["drive"]:
        return _drive(*sys.argv[2:])
    started = time.monotonic()
    for name in ("checkpoint", "checkpoint.exactsink", "lake"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for path in FOLDER.glob("flights.db*"):
        path.unlink()
    days = cut_into_days(FOLDER / "source")
    epochs = -(-days // DAYS_PER_EPOCH)
    cut = f"{days} days of flights, {epochs} epochs of {DAYS_PER_EPOCH} days"
    print(f"{cut}, into Parquet by month and an SQLite table", flush=True)
    rows: list[tuple[str, str, str]] = []
    done: set[int] = set()
    for point, edge, epoch in (*KILLS, ("", "", -1)):
        where = f"{edge} {point}, epoch {epoch}" if point else "no kill"
        code, finished = _driver_run(point, edge, epoch, epochs, done)
        rows.append((where, _ended(code), _span(finished)))
        if code != (-signal.SIGKILL if point else 0):
            print(
                f"the driver ended with {_ended(code)}, expected was {where}; see {FOLDER / 'driver.log'}",
                file=sys.stderr,
            )
            return 1
    results = reconcile(FOLDER)
    print_table(("killed with SIGKILL", "driver ended", "epochs finished by this run"), rows, sys.stdout)
    print()
    figures = [_figures(result) for result in results]
    print_table(("sink", "expected", "found", "lost", "doubled", "not in the source"), figures, sys.stdout)
    print()
    print(f"{epochs} epochs, {len(KILLS)} kills, {time.monotonic() - started:.0f} s")
    wrong = len(done) != epochs or any(r.lost or r.doubled or r.strange for r in results)
    print("WRONG: rows were lost or doubled" if wrong else "every row is in both sinks exactly once")
    return 1 if wrong else 0


def _driver_run(point: str, edge: str, epoch: int, epochs: int, done: set[int]) -> tuple[int, list[int]]:
    """Run one driver to its death or end; return its exit code and the epochs that it finished."""
    command = [sys.executable, __file__, "drive", point, edge, str(epoch)]
    finished = []
    log = open(FOLDER / "driver.log", "a")  # noqa: SIM115 - closed with the driver's own copy below
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("finished "):
                finished.append(int(line.split()[1]))
                done.add(finished[-1])
                _progress(len(done), epochs)
            else:
                print(line, end="", flush=True)
        code = driver.wait()
    return code, finished


def _drive(point: str, edge: str, epoch: str) -> int:
    """Be the driver: `exactsink run`, with a fault in it."""
    from exactsink.cli.run import run

    def watch(event: Event) -> None:
        if event.name == "return" and event.edge == "before":
            print(f"finished {event.epoch}", flush=True)
        if (event.name, event.edge, str(event.epoch)) == (point, edge, epoch):
            os.kill(os.getpid(), signal.SIGKILL)

    run(str(HERE / "job.toml"), [watch])
    return 0


def _progress(done: int, epochs: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{done:>3} of {epochs} epochs", end="\n" if done == epochs else "", flush=True)
    elif done % 10 == 0 or done == epochs:
        print(f"{done:>3} of {epochs} epochs", flush=True)


def _ended(code: int) -> str:
    return "at the end of the year" if code == 0 else signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _span(epochs: list[int]) -> str:
    return f"{min(epochs)} to {max(epochs)}" if epochs else "none"


def _figures(result: Reconciled) -> tuple[str, ...]:
    counts = (result.expected, result.found, result.lost, result.doubled, result.strange)
    return (result.sink, *(f"{count:,}" for count in counts))


if __name__ == "__main__":
    sys.exit(main())

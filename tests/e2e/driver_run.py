"""One driver run: `exactsink run`, with faults at protocol points, each of them once.

It attaches to the JVM that PYSPARK_GATEWAY_PORT names, or starts its own. `serve` forks driver runs from a process
that has imported all that they need; a fresh interpreter would take seconds for that.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import s3fs  # noqa: F401 - imported before the fork

from exactsink.cli.main import main
from exactsink.cli.run import run
from exactsink.contract import Event, ExactsinkError
from exactsink.job.stop import stopped_by_signals
from tests.e2e import python_daemon  # noqa: F401 - so is this

Place = tuple[str, str, "int | None"]


class _At:
    """Does something once, where a point's edge is first reached, in an epoch if one is given; reports it in a file.

    `first` names a point whose `after` is waited for, so that the place lies between the two for sure.
    """

    def __init__(self, place: Place, act: Callable[[], object], mark: Path, first: str | None) -> None:
        self._place = place
        self._act = act
        self._mark = mark
        self._first = first
        self._passed = threading.Event()

    def __call__(self, event: Event) -> None:
        point, edge, epoch = self._place
        if (event.name, event.edge, event.epoch) == (self._first, "after", epoch):
            self._passed.set()
        if (event.name, event.edge) != (point, edge) or epoch not in (None, event.epoch) or self._mark.exists():
            return
        if self._first is not None:
            self._passed.wait()
        self._mark.touch()
        self._act()


def _send(number: int) -> None:
    signal.pthread_kill(threading.get_ident(), number)  # to this thread: it comes no further


def drive(arguments: Sequence[str]) -> int:
    """Be the driver run that these arguments describe; return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--fault", action="append", type=json.loads, default=[], help="where, what, and its mark: JSON")
    parser.add_argument("--hang", type=json.loads, help="a place from which the driver does not come back: JSON")
    parser.add_argument("--first", help="a point whose `after` must have come before")
    given = parser.parse_args(arguments)
    if not given.fault and given.hang is None:
        return main(["run", given.job])
    acts: Mapping[str, Callable[[], object]] = {
        "kill": lambda: _send(signal.SIGKILL),
        "stall": lambda: _send(signal.SIGSTOP),
    }
    faults = [
        _At((fault["point"], fault["edge"], fault["epoch"]), acts[fault["action"]], Path(fault["mark"]), given.first)
        for fault in given.fault
    ]
    if given.hang is not None:
        return _hang(given.job, tuple(given.hang))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("exactsink").setLevel(logging.DEBUG)  # all points, for tests that look for what did not happen
    try:
        run(given.job, faults)
    except ExactsinkError as error:
        print(f"exactsink: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _hang(job: str, place: Place) -> int:
    """Run a job whose driver waits for ever at a place; signals are heard as the command hears them."""

    def wait(event: Event) -> None:
        if (event.name, event.edge, event.epoch) == place:
            threading.Event().wait()

    with stopped_by_signals() as stop:
        stop.say = lambda text, code: print(f"exactsink: {text}", file=sys.stderr, flush=True)
        run(job, [wait], stop)
    return 0


def serve() -> None:
    """Fork a driver run for each line of the input, and print its process id.

    A driver run is an orphan, and so a child of the process that asked for it: that one is a subreaper.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                os.setsid()
                os.write(writing, f"{os.getpid()}\n".encode())
                _be_driver(**request)
            os._exit(0)
        os.close(writing)
        os.waitpid(between, 0)
        with os.fdopen(reading) as pipe:
            print(pipe.readline().strip(), flush=True)


def _be_driver(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number, there in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(there, number)
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        code = drive(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # a programming mistake: it shows in the log and the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else sys.exit(drive(sys.argv[1:]))

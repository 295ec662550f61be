"""Who may ask a driver to end, and what is not for it: another signal, a request for an earlier driver."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.unit.manual_job import Job

from exactsink.cli.main import main
from exactsink.job.stop import StopFile, StopRequest, driver_name, stopped_by_signals
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import State
from exactsink.testing.processes import start


def test_only_its_own_signals_and_requests_ask_a_driver_to_end(tmp_path: Path) -> None:
    other, asked = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: other.set())
    file = StopFile(tmp_path)
    file.write(StopRequest(driver_name(), 5, "a stop before this driver's start"))
    heard = []
    try:
        with stopped_by_signals() as stop:
            stop.on_asked = lambda by, seconds: (heard.append((by, seconds)), asked.set())
            stop.watch(tmp_path)
            assert file.read() is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert other.wait(30)
            file.write(StopRequest("elsewhere:17", 5, "a stop of another driver"))
            stop._look()
            assert stop.asked == ""
            file.write(StopRequest(driver_name(), 40, "exactsink stop"))
            assert asked.wait(30)
            assert (stop.asked, stop.at_once, heard) == ("exactsink stop", False, [("exactsink stop", 40)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    interrupt = signal.getsignal(signal.SIGINT)  # Spark's own, where a session was started here
    with stopped_by_signals() as stop:
        stop.on_asked = lambda by, seconds: asked.set()
        asked.clear()
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(30)
        assert (stop.asked, stop.at_once) == ("SIGINT", True)
    assert signal.getsignal(signal.SIGINT) is interrupt


def test_a_closed_terminal_asks_a_driver_to_end_but_not_under_nohup() -> None:
    """The shell and the terminal may both send it: a signal that comes at once again is the same request."""
    asked, cut_off = threading.Event(), threading.Event()
    crashed: list[float] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, too
    try:
        with stopped_by_signals() as stop:
            stop.on_asked = lambda by, seconds: asked.set()
            stop.crash = lambda why: (crashed.append(time.monotonic()), cut_off.set())  # type: ignore[method-assign]
            began = time.monotonic()
            while not cut_off.wait(0.01):
                os.kill(os.getpid(), signal.SIGHUP)
            assert asked.wait(30)
            assert (stop.asked, stop.at_once) == ("SIGHUP", False)
        assert crashed[0] >= began + 0.5, "what came at once cut it off"
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stopped_by_signals() as stop:
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_driver_that_is_silent_is_not_said_to_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may hang: only its word, or that its process is gone, says that it has ended."""
    job, ended = Job(tmp_path), start(lambda: 0)
    os.waitpid(ended, 0)
    file = StateFile(job.history / "state.json")
    job.journal.claim("query-1", "host:17")  # in a database, it may be all that this machine sees of the job
    assert main(["stop", job.file]) == 75
    assert "driver host:17 has claimed the job, and " in capsys.readouterr().err

    def stopped(driver: str, age: float) -> int:
        file.write(State(0, 1, driver, time.time() - age))
        return main(["stop", job.file, "--within", "0"])

    monkeypatch.setattr("exactsink.cli.stop._MORE_SECONDS", 0.0)
    for driver in (driver_name(), "elsewhere:17"):
        for age in (61.0, 1.0, -3600.0):
            assert stopped(driver, age) == 75
            assert "has not reported its end" in capsys.readouterr().err
    assert stopped(f"{platform.node()}:{ended}", 61.0) == 0
    assert "is dead" in capsys.readouterr().out


@pytest.mark.parametrize("odd", ['"soon"', "NaN", "-1", "null", "1e999", "[]"])
def test_a_request_that_makes_no_sense_is_none(tmp_path: Path, odd: str) -> None:
    (tmp_path / "stop.json").write_text(f'{{"driver": "{driver_name()}", "within": {odd}, "by": "somebody"}}')
    assert StopFile(tmp_path).read() is None

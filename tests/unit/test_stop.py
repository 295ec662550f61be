"""Who may ask a driver to end, and what is not for it: another signal, a request for an earlier driver."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from exactsink.job.stop import StopFile, StopRequest, driver_name, stopped_by_signals


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

"""End a driver on request: by a signal, or by a file beside its journal. Its epoch ends first, within a time limit."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import FrameType

from exactsink.contract import ExactsinkError, Retryable
from exactsink.toolkit.storage import AnyPath, ObjectPath, replace_file

__all__ = ["Stop", "StopFile", "StopRequest", "driver_name", "stopped_by_signals"]

_LOG = logging.getLogger("exactsink")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WAKE = b"\xff"  # no signal's number
_INTERRUPT_SECONDS = 10.0
_CRASH_SECONDS = 5.0
_SAME_SECONDS = 0.5
"""Another signal within this time is the same request: `timeout` signals the process and its group, and systemd may
send SIGHUP after SIGTERM."""
_LOOK_SECONDS = 1.0
_LOOK_FAR_SECONDS = 15.0  # an object store: each poll is a request


def driver_name() -> str:
    """Return the name of this process's driver in claims and in `state.json`."""
    return f"{platform.node()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request that a driver ends `within` so many seconds. `by` names the requester."""

    driver: str
    within: float
    by: str


class StopFile:
    """`stop.json` in a job's folder: the request of `exactsink stop` to the driver that it names. Advisory."""

    def __init__(self, folder: AnyPath) -> None:
        self._path = folder / "stop.json"

    @property
    def look_seconds(self) -> float:
        """The seconds between two polls."""
        return _LOOK_FAR_SECONDS if isinstance(self._path, ObjectPath) else _LOOK_SECONDS

    def write(self, request: StopRequest) -> None:
        """Write a request, in place of an earlier one. Raises OSError."""
        replace_file(self._path, json.dumps(asdict(request)).encode())

    def read(self) -> StopRequest | None:
        """Return the request, None if there is none, or it is malformed. Raises OSError."""
        try:
            request = StopRequest(**json.loads(self._path.read_text()))
            sensible = math.isfinite(request.within) and request.within >= 0
            return request if sensible and isinstance(request.by, str) else None
        except (FileNotFoundError, ValueError, TypeError, OverflowError):
            return None

    def clear(self) -> None:
        """Delete the request to an earlier driver. Idempotent. Raises OSError."""
        with suppress(FileNotFoundError):
            self._path.unlink()


class Stop:
    """The request that this process ends. A thread polls for it, so that a call that hangs can't prevent the end.

    The first signal, or a request, sets `asked`, and calls `on_asked(by, seconds)` once. The caller then ends after the
    running epoch, or at once if `at_once` is set (SIGINT). If it does not end in time, or a second signal comes more
    than half a second later, the process ends as in a crash, without its JVM: `say(text, code)` reports it, each of
    `on_crash` is called, and then the process exits.
    """

    def __init__(self, within: float = 60.0) -> None:
        self.within = within
        self.asked = ""
        """The requester; empty before the first request."""
        self.at_once = False
        self.on_asked: Callable[[str, float], None] = lambda by, seconds: None
        self.on_crash: list[Callable[[], None]] = []
        self.say: Callable[[str, int], None] = lambda text, code: _LOG.error("%s", text)
        self._file: StopFile | None = None
        self._seconds = within
        self._asked_at = 0.0
        self._end: float | None = None
        self._code = Retryable.exit_code
        self._ears: tuple[socket.socket, socket.socket] | None = None
        self._looking: threading.Thread | None = None
        self._thread = threading.Thread(target=self._hear, name="exactsink-stop", daemon=True)

    def watch(self, folder: AnyPath) -> None:
        """Also poll for requests in a job's folder. Deletes a request to an earlier driver."""
        file = StopFile(folder)
        with suppress(OSError, ExactsinkError):
            file.clear()
        self._file = file

    def take_signals(self) -> None:
        """Handle SIGINT, SIGTERM and SIGHUP here from now on, if this was started. Idempotent.

        Call it again after making a Spark context, which takes SIGINT. An ignored SIGHUP stays ignored, for `nohup`.
        """
        if self._ears is None:
            return
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _only_heard)
        signal.set_wakeup_fd(self._ears[1].fileno(), warn_on_full_buffer=False)  # works even if this thread hangs

    def start(self) -> None:
        """Begin to poll."""
        self._ears = socket.socketpair()
        self._ears[1].setblocking(False)
        self._thread.start()

    def close(self) -> None:
        """Stop polling, because the process ends by itself now. Idempotent."""
        ears, self._ears = self._ears, None
        if ears is not None:
            ears[1].send(b"\0")
            self._thread.join()
            for end in ears:
                end.close()

    def crash(self, why: str) -> None:
        """End this process now, as in a crash, after `say` and each of `on_crash`."""
        self.say(f"{why}: ended as in a crash; nothing decided is lost, and the next start continues", self._code)
        for act in self.on_crash:
            _aside(act).join(_CRASH_SECONDS)  # it may hang, like the rest
        os._exit(self._code)

    def _hear(self) -> None:
        assert self._ears is not None
        hearing = self._ears[0]
        while True:
            number = self._next(hearing)
            if number == 0:
                return
            if number in _SIGNALS:  # every handled signal comes here
                self._signalled(signal.Signals(number))
            elif self._end is not None and time.monotonic() >= self._end:
                self.crash(f"the driver has not ended within {self._seconds:.0f} s of {self.asked}")
            elif not self.asked and (self._looking is None or not self._looking.is_alive()):
                self._looking = _aside(self._look)  # a store may hang

    def _next(self, hearing: socket.socket) -> int | None:
        """Wait for a signal's number. Return 0 for the end, None if it is time to poll."""
        look = _LOOK_SECONDS if self._file is None else self._file.look_seconds
        wait = look if self._end is None else max(0.01, self._end - time.monotonic())
        hearing.settimeout(wait)
        try:
            return hearing.recv(1)[0]
        except TimeoutError:
            return None

    def _signalled(self, number: signal.Signals) -> None:
        if self.asked and time.monotonic() < self._asked_at + _SAME_SECONDS:
            return
        if self.asked:
            self._code = 128 + number
            self.crash(f"{number.name} after {self.asked}")
        interrupted = number == signal.SIGINT
        if interrupted:
            self._code = 128 + number
        self._ask(number.name, _INTERRUPT_SECONDS if interrupted else self.within, at_once=interrupted)

    def _look(self) -> None:
        file = self._file
        if file is None:
            return
        with suppress(OSError, ExactsinkError):  # advisory: the next poll tries again
            request = file.read()
            if request is not None and request.driver == driver_name() and not self.asked:
                self._ask(request.by, request.within, at_once=False)

    def _ask(self, by: str, seconds: float, *, at_once: bool) -> None:
        self._seconds, self._asked_at = seconds, time.monotonic()
        self._end = self._asked_at + seconds
        self.at_once = at_once
        self.asked = by
        _aside(lambda: self.on_asked(by, seconds))
        ears = self._ears
        if ears is not None:
            ears[1].send(_WAKE)  # so that it waits for the end from now on


def _aside(act: Callable[[], object]) -> threading.Thread:
    """Call a function in its own thread, which may never end."""
    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    return acting


def _only_heard(number: int, frame: FrameType | None) -> None:
    """Do nothing, because the polling thread gets the number."""


@contextmanager
def stopped_by_signals(within: float = 60.0) -> Iterator[Stop]:
    """Handle SIGINT, SIGTERM and SIGHUP, in the main thread, while the body runs."""
    stop = Stop(within)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    stop.start()
    stop.take_signals()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.close()

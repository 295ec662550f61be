"""The advisory state of a job, for `status` and for readers that wait. It may lag, never leads, and decides nothing."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace

from exactsink.contract import Event
from exactsink.protocol.coordinator import State
from exactsink.toolkit.storage import AnyPath, ObjectPath, replace_whole

__all__ = [
    *("HEARTBEAT_SECONDS", "LIVE_SECONDS", "Heartbeat", "LastTimes", "StateFile", "is_ahead", "is_live", "last_heard"),
]

HEARTBEAT_SECONDS = 15.0

LIVE_SECONDS = 60.0
"""A driver with a heartbeat younger than this may be alive: only `--take-over` claims its job."""


def is_live(state: State | None) -> bool:
    """Return whether a driver is probably at work: it has not ended, and its heartbeat is recent."""
    return state is not None and abs(time.time() - state.heartbeat) < LIVE_SECONDS


def is_ahead(state: State) -> bool:
    """Return whether the heartbeat is in the future: then its age means nothing, because clocks differ."""
    return state.heartbeat - time.time() >= LIVE_SECONDS


def last_heard(state: State) -> str:
    """Return the heartbeat's age, in words."""
    age = time.time() - state.heartbeat
    if is_ahead(state):
        return f"its heartbeat is {-age:.0f} s ahead of this machine's clock: compare the clocks of the two machines"
    return f"its last heartbeat is {max(age, 0.0):.0f} s old"


class StateFile:
    """`state.json` beside the journal, replaced atomically, not synced."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    @property
    def is_remote(self) -> bool:
        """Whether each read of it is a request."""
        return isinstance(self._path, ObjectPath)

    def write(self, state: State) -> None:
        """Save a state. Raises OSError."""
        replace_whole(self._path, json.dumps(asdict(state), indent=1))

    def read(self) -> State | None:
        """Read it; None if it does not exist, or if another release wrote it. Raises OSError if that is unknown."""
        try:
            return _checked(State(**json.loads(self._path.read_text())))
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, OverflowError):
            return None


def _checked(state: State) -> State:
    """Return a state with checked fields. Raises ValueError, TypeError, OverflowError."""
    numbers = [state.generation] if state.complete_epoch is None else [state.generation, state.complete_epoch]
    whole = all(type(number) is int and number >= 0 for number in numbers)
    moment = type(state.heartbeat) in (int, float) and math.isfinite(state.heartbeat) and state.heartbeat >= 0
    if not (whole and moment and isinstance(state.driver, str)):
        raise ValueError("no state that a driver writes")
    return state


class LastTimes:
    """`last.json` beside the journal: when any driver was last fenced, or a sink's store lost rows. Advisory.

    The driver that sees such an event may end before a scrape, so any other driver of the job shows it.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: Mapping[str, float] = {}
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        """Record the time of an event, as a subscriber."""
        if event.name not in ("fenced", "vote_lost"):
            return
        name = event.name if event.name == "fenced" else f"vote_lost:{event.fields['sink']}"
        with self._lock, suppress(OSError):
            if time.time() - self._known.get(name, 0.0) > HEARTBEAT_SECONDS:  # an epoch may lose thousands
                self._known = {**self._stored(), name: time.time()}
                replace_whole(self._path, json.dumps(self._known))

    def read(self) -> Mapping[str, float]:
        """Return the Unix time of each. Reads the file at most once per heartbeat."""
        with self._lock, suppress(OSError):
            if time.monotonic() - self._read_at >= HEARTBEAT_SECONDS:
                self._known, self._read_at = self._stored(), time.monotonic()
        return self._known

    def _stored(self) -> Mapping[str, float]:
        try:
            return {str(name): float(at) for name, at in json.loads(self._path.read_text()).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return {}


class Heartbeat:
    """Update a driver's heartbeat between its epochs, in a separate thread, while `alive` returns true.

    `on_beat()` is called after each saved heartbeat. A driver that finds a newer generation in the file writes nothing
    any more, and calls `on_newer()` in place of each heartbeat. Between two heartbeats it reads the file only if that
    is not a request, because epochs may be short.
    """

    def __init__(
        self, file: StateFile, *, seconds: float = HEARTBEAT_SECONDS, on_beat: Callable[[], None] = lambda: None
    ) -> None:
        self._file = file
        self._on_beat = on_beat
        self._seconds = seconds
        self._lock = threading.Lock()
        self._state: State | None = None
        self._looked = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="exactsink-heartbeat", daemon=True)
        self.alive: Callable[[], bool] = lambda: True
        self.on_newer: Callable[[], object] = lambda: None

    def write(self, state: State) -> None:
        """Save a state, and repeat it from now on. Raises OSError.

        The first state belongs to a new claim, and is always written. Later ones give way to a newer driver's.
        """
        with self._lock:
            first, self._state = self._state is None, state
        if first:
            self._file.write(state)
            self._on_beat()
            self._looked = time.monotonic()
            self._thread.start()
        else:
            looked_lately = time.monotonic() - self._looked < self._seconds
            self._save(state.heartbeat, look=not (self._file.is_remote and looked_lately))

    def close(self) -> None:
        """Record that the driver has ended, unless another driver has taken over. Idempotent."""
        self._ended.set()
        with suppress(OSError):
            self._save(0.0)
        with self._lock:
            self._state = None

    def _beat(self) -> None:
        while not self._ended.wait(self._seconds):
            if not self.alive():
                self.close()
                return
            with suppress(OSError):  # advisory, and the next heartbeat tries again
                if not self._save(time.time()):
                    self.on_newer()

    def _save(self, heartbeat: float, *, look: bool = True) -> bool:
        with self._lock:
            if self._state is None or (look and self._is_older(self._state)):
                return self._state is None
            self._file.write(replace(self._state, heartbeat=heartbeat))
        if heartbeat:
            self._on_beat()
        return True

    def _is_older(self, state: State) -> bool:
        self._looked, stored = time.monotonic(), self._file.read()
        return stored is not None and stored.generation > state.generation

"""The advisory state of a job, for `status` and for readers that wait: may lag, never leads, decides nothing."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from exactsink.contract import AnyPath, ObjectPath, new_file
from exactsink.protocol.coordinator import State

__all__ = ["HEARTBEAT_SECONDS", "Heartbeat", "StateFile"]

HEARTBEAT_SECONDS = 15.0


class StateFile:
    """`state.json` beside the journal, replaced whole, not synced."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path

    @property
    def is_remote(self) -> bool:
        """Whether each look at it is a request."""
        return isinstance(self._path, ObjectPath)

    def write(self, state: State) -> None:
        """Save a state. Raises OSError."""
        text = json.dumps(asdict(state), indent=1)
        if isinstance(self._path, ObjectPath):
            self._path.replace(text.encode())
            return
        temp = self._path.with_suffix(f".{uuid.uuid4().hex}.tmp")
        try:
            with new_file(temp) as file:
                file.write(text.encode())
            temp.replace(self._path)
        finally:
            temp.unlink(missing_ok=True)

    def read(self) -> State | None:
        """Read it; None when it is absent or of another release. Raises OSError where that can't be known."""
        try:
            return State(**json.loads(self._path.read_text()))
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError):
            return None


class Heartbeat:
    """Keep a driver's state fresh between its epochs, from a thread of its own, as long as `alive` returns true.

    `on_beat()` is called after each beat that was saved. A driver that finds a newer generation in the file writes
    nothing any more. Between two beats it looks for one only where that is no request: epochs may be short.
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

    def write(self, state: State) -> None:
        """Save a state, and repeat it from now on. Raises OSError.

        The first one stands for a claim just made; later ones give way to a newer driver's.
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
        """Record that the driver has ended, unless another one drives by now. Idempotent."""
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
            with suppress(OSError):  # advisory: the next beat tries again
                self._save(time.time())

    def _save(self, heartbeat: float, *, look: bool = True) -> None:
        with self._lock:
            if self._state is None or (look and self._is_older(self._state)):
                return
            self._file.write(replace(self._state, heartbeat=heartbeat))
        if heartbeat:
            self._on_beat()

    def _is_older(self, state: State) -> bool:
        stored = self._file.read()
        self._looked = time.monotonic()
        return stored is not None and stored.generation > state.generation

"""The advisory state of a job, for `status` and for readers that wait: may lag, never leads, decides nothing."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from exactsink.protocol.coordinator import State

__all__ = ["HEARTBEAT_SECONDS", "Heartbeat", "StateFile"]

HEARTBEAT_SECONDS = 15.0


class StateFile:
    """`state.json` beside the journal, replaced whole, not synced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, state: State) -> None:
        temp = self._path.with_suffix(f".{uuid.uuid4().hex}.tmp")
        try:
            temp.write_text(json.dumps(asdict(state), indent=1))
            temp.replace(self._path)
        finally:
            temp.unlink(missing_ok=True)

    def read(self) -> State | None:
        """Read it; None when it is absent or of another release."""
        try:
            return State(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


class Heartbeat:
    """Keep a driver's state fresh between its epochs, from a thread of its own, as long as `alive` returns true.

    A driver that finds a newer generation in the file writes nothing any more.
    """

    def __init__(self, file: StateFile, *, seconds: float = HEARTBEAT_SECONDS) -> None:
        self._file = file
        self._seconds = seconds
        self._lock = threading.Lock()
        self._state: State | None = None
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
            self._thread.start()
        else:
            self._save(state.heartbeat)

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

    def _save(self, heartbeat: float) -> None:
        with self._lock:
            stored = self._file.read()
            if self._state is not None and (stored is None or stored.generation <= self._state.generation):
                self._file.write(replace(self._state, heartbeat=heartbeat))

"""The advisory state file: for `status` and waiting readers. It may lag, never leads, and no decision reads it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["State", "StateFile"]


@dataclass(frozen=True, slots=True)
class State:
    """A job's last complete epoch (None before the first), and the driver that said so, at `heartbeat` (Unix s)."""

    complete_epoch: int | None
    generation: int
    driver: str
    heartbeat: float


class StateFile:
    """`state.json` beside the journal, replaced whole, not synced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, state: State) -> None:
        temp = self._path.with_suffix(f".{os.getpid()}.tmp")
        temp.write_text(json.dumps(asdict(state), indent=1))
        temp.replace(self._path)

    def read(self) -> State | None:
        """Read it; None when it is absent or of another release."""
        try:
            return State(**json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

"""The heartbeat: it repeats a driver's state between epochs, ends with the driver, and yields to a newer one."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from exactsink.observe.state import Heartbeat, StateFile
from exactsink.protocol.coordinator import State

LIMIT_SECONDS = 30


class _Watched(StateFile):
    """Lets a test wait for the next write."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written = threading.Semaphore(0)

    def write(self, state: State) -> None:
        super().write(state)
        self.written.release()

    def wait(self) -> State:
        assert self.written.acquire(timeout=LIMIT_SECONDS), "no beat came"
        state = self.read()
        assert state is not None
        return state


@pytest.fixture
def file(tmp_path: Path) -> _Watched:
    return _Watched(tmp_path / "state.json")


def test_the_last_state_is_repeated_with_a_fresh_time(file: _Watched) -> None:
    beat = Heartbeat(file, seconds=0.01)
    beat.write(State(7, 3, "host:1", heartbeat=1000.0))
    file.wait()
    later = file.wait()
    assert (later.complete_epoch, later.generation, later.driver) == (7, 3, "host:1")
    assert abs(later.heartbeat - time.time()) < LIMIT_SECONDS
    beat.close()


def test_a_driver_that_ends_says_so(file: _Watched) -> None:
    beat = Heartbeat(file, seconds=LIMIT_SECONDS)
    beat.write(State(7, 3, "host:1", heartbeat=time.time()))
    beat.close()
    beat.close()
    assert file.read() == State(7, 3, "host:1", heartbeat=0.0)


def test_a_driver_whose_query_is_not_active_any_more_ends(file: _Watched) -> None:
    beat = Heartbeat(file, seconds=0.01)
    beat.alive = lambda: False
    beat.write(State(7, 3, "host:1", heartbeat=1000.0))
    file.wait()
    assert file.wait().heartbeat == 0.0


def test_a_newer_generation_is_left_alone(file: _Watched) -> None:
    beat = Heartbeat(file, seconds=LIMIT_SECONDS)
    beat.write(State(7, 3, "host:1", heartbeat=1000.0))
    newer = State(8, 4, "host:2", heartbeat=2000.0)
    file.write(newer)
    beat.close()
    assert file.read() == newer


def test_a_driver_that_never_said_anything_writes_nothing(file: _Watched) -> None:
    Heartbeat(file).close()
    assert file.read() is None


def test_a_write_that_fails_leaves_no_temp_file_and_the_old_state(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gone" / "state.json")
    with pytest.raises(OSError, match="gone"):
        file.write(State(None, 1, "host:1", 0.0))
    kept = StateFile(tmp_path / "state.json")
    kept.write(State(None, 1, "host:1", 0.0))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]

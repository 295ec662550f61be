"""The advisory state file, and the heartbeat that repeats it between epochs and yields to a newer driver."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from exactsink.observe.state import Heartbeat, StateFile
from exactsink.protocol.coordinator import State

STATE = State(complete_epoch=7, generation=3, driver="host:17", heartbeat=1_790_000_000.5)
LIMIT_SECONDS = 30


class Watched(StateFile):
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
def file(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "state.json")


def test_a_state_replaces_the_one_before_whole_and_leaves_nothing_beside(file: Watched, tmp_path: Path) -> None:
    first = State(None, 3, "host:17" * 1000, 0.0)
    file.write(first)
    assert file.read() == first
    with open(tmp_path / "state.json") as held:  # a reader that opened it before
        file.write(STATE)
        assert json.load(held)["complete_epoch"] is None
    assert file.read() == STATE
    assert os.listdir(tmp_path) == ["state.json"]


CORRUPT = [b"", b'{"complete_epoch": 7, "gener', b"complete_epoch: 7", b"\xff\xfe\x00", b"[1, 2, 3, 4]", b"7"]
CORRUPT += [b'{"complete_epoch": 7, "generation": 3, "driver": "d"}']
CORRUPT += [b'{"complete_epoch": 7, "generation": 3, "driver": "d", "heartbeat": 1.0, "more": 1}']


@pytest.mark.parametrize("data", CORRUPT)
def test_a_state_that_makes_no_sense_is_none(file: Watched, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state.json").write_bytes(data)
    assert file.read() is None
    file.write(STATE)
    assert file.read() == STATE


def test_a_state_that_is_not_there_is_none_and_can_not_be_written_nowhere(tmp_path: Path) -> None:
    gone = StateFile(tmp_path / "gone" / "state.json")
    assert gone.read() is StateFile(tmp_path / "state.json").read() is StateFile(tmp_path).read() is None
    with pytest.raises(OSError, match="gone"):
        gone.write(STATE)


def test_the_last_state_is_repeated_with_a_fresh_time_until_the_driver_ends(file: Watched) -> None:
    beat = Heartbeat(file, seconds=0.01)
    beat.write(STATE)
    file.wait()
    later = file.wait()
    assert (later.complete_epoch, later.generation, later.driver) == (7, 3, "host:17")
    assert abs(later.heartbeat - time.time()) < LIMIT_SECONDS
    beat.close()
    beat.close()
    assert file.read() == State(7, 3, "host:17", heartbeat=0.0)


def test_a_driver_whose_query_is_not_active_any_more_ends(file: Watched) -> None:
    beat = Heartbeat(file, seconds=0.01)
    beat.alive = lambda: False
    beat.write(STATE)
    file.wait()
    assert file.wait().heartbeat == 0.0


def test_a_newer_generation_is_left_alone(file: Watched) -> None:
    Heartbeat(file).close()
    assert file.read() is None  # it never reported anything
    beat, found = Heartbeat(file, seconds=0.01), threading.Event()
    beat.on_newer = found.set
    beat.write(STATE)
    newer = State(8, 4, "host:2", heartbeat=2000.0)
    while not found.wait(0.02):
        file.write(newer)  # again: a heartbeat may just have looked
    beat.close()
    assert file.read() == newer

"""The night: every bad state is left by what is printed, and no row is lost or doubled that nobody was warned of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.soak.night import Played, failed, play_all, table
from tests.soak.night_states import State, states

SHORT = (
    *("killed after pre_commit", "killed after commit:lake", "killed after commit:lake, put back: table"),
    *("put back: checkpoint", "put back: journal, lake", "deleted: the lake's marks"),
    *("the db is down after a decision", "foreign work stands prepared"),
)
"""What `make test` plays; `make proof` plays all."""

STATES = 90


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that a service's user may enter, too."""
    with tempfile.TemporaryDirectory(prefix="exactsink-night-") as made:
        os.chmod(made, 0o711)
        yield Path(made)


def _played(chosen: Sequence[State], folder: Path, capsys: pytest.CaptureFixture[str]) -> Sequence[Played]:
    played = play_all(chosen, folder)
    with capsys.disabled():
        print(f"\n{table(played)}")
    for one in failed(played):
        print(f"======== {one.state}: {one.verdict.why}\n{one.transcript}")
    return played


def test_some_states_end_right_or_as_was_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [state for state in states() if state.name in SHORT]
    assert len(chosen) == len(SHORT)
    assert failed(_played(chosen, folder, capsys)) == []


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_every_state_of_the_night_ends_right_or_as_was_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played = _played(list(states()), folder, capsys)
    assert len({one.state for one in played}) == len(played) >= STATES
    assert [(one.state, one.verdict.why) for one in failed(played)] == []

"""The conformance kit in pytest: a class to inherit from, and every scenario is a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.testing.runner import SCENARIOS, Player
from exactsink.testing.target import ConformanceTarget

__all__ = ["ConformanceSuite"]

_PLAYER = pytest.StashKey[Player]()


class ConformanceSuite:
    """Inherit from it in a class called Test..., and give the fixture `target`: the tests come by themselves.

    `folder` is where a scenario's target and job are made; override it to test on another file system.
    """

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        """Return the target under test."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `target` that gives a ConformanceTarget")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return an empty folder for one scenario."""
        return tmp_path

    @pytest.fixture
    def player(self, request: pytest.FixtureRequest) -> Player:
        """Return the process from which scenarios are forked; one serves all tests of a pytest process."""
        stash = request.session.stash
        if _PLAYER not in stash:
            stash[_PLAYER] = Player()
            request.session.addfinalizer(stash[_PLAYER].close)
        return stash[_PLAYER]

    @pytest.mark.parametrize("scenario", list(SCENARIOS))
    def test_conformance(self, scenario: str, target: ConformanceTarget, folder: Path, player: Player) -> None:
        result = player.play(scenario, target, folder)
        if result.outcome == "skipped":
            pytest.skip(result.why)
        assert result.outcome == "passed", f"{SCENARIOS[scenario].promise}: {result.why}"

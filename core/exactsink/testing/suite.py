"""The conformance kit in pytest: inherit from a class, and every scenario becomes a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.testing.runner import SCENARIOS, Runner
from exactsink.testing.target import ConformanceTarget

__all__ = ["ConformanceSuite"]

_RUNNER = pytest.StashKey[Runner]()


class ConformanceSuite:
    """Inherit from it in a class named Test..., with a fixture `target`. pytest then collects one test per scenario.

    `folder` is the folder of a scenario's target and job. Override it to test on another file system.
    """

    @pytest.fixture
    def target(self) -> ConformanceTarget:
        """Return the target under test."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `target` that returns a ConformanceTarget")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return an empty folder for one scenario."""
        return tmp_path

    @pytest.fixture
    def runner(self, request: pytest.FixtureRequest) -> Runner:
        """Return the process from which scenarios are forked. All tests of a pytest process share it."""
        stash = request.session.stash
        if _RUNNER not in stash:
            stash[_RUNNER] = Runner()
            request.session.addfinalizer(stash[_RUNNER].close)
        return stash[_RUNNER]

    @pytest.mark.parametrize("scenario", list(SCENARIOS))
    def test_conformance(self, scenario: str, target: ConformanceTarget, folder: Path, runner: Runner) -> None:
        result = runner.play(scenario, target, folder)
        if result.outcome == "skipped":
            pytest.skip(result.why)
        assert result.outcome == "passed", f"{SCENARIOS[scenario].promise}: {result.why}"

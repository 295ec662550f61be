"""Every scenario of the kit catches a defect made for it; without it the same store passes (`TestReferenceStore`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, ConformanceTarget, Runner
from exactsink.testing.scenarios import matrix
from tests.conformance.defects import OTHER_SABOTAGES, SABOTAGES, what

_MATRIX = {scenario.name for scenario in matrix.SCENARIOS}
_FIRST = {*{what(target): name for name, target in reversed(SABOTAGES.items())}.values(), *SABOTAGES.keys() - _MATRIX}
"""The matrix is one scenario at many points: each of its defects is caught at one of them for every change."""


def test_no_scenario_is_without_a_sabotage() -> None:
    assert set(SABOTAGES) == set(SCENARIOS)


@pytest.mark.parametrize(
    ("scenario", "target"),
    [
        pytest.param(name, target, id=name + also, marks=() if name in _FIRST else pytest.mark.proof)
        for also, targets in (("", SABOTAGES), ("-too", OTHER_SABOTAGES))
        for name, target in targets.items()
    ],
)
def test_defect_is_caught(scenario: str, target: ConformanceTarget, runner: Runner, tmp_path: Path) -> None:
    result = runner.play(scenario, target, tmp_path)
    assert result.outcome == "failed", f"{what(target)} It was not caught."
    said = result.why.splitlines()[0]
    assert "programming mistake" not in said
    assert "hangs" not in said
    bugs = ("NameError", "AttributeError", "TypeError", "ImportError")  # of the kit's own
    assert not any(bug in result.why for bug in bugs), result.why
    assert "restore the journal" not in result.why, "nobody has put anything back here: it is the backend's own call"
    assert ("sink out: its target holds" in result.why) <= ("at the backend: `mark()` does not show what" in result.why)

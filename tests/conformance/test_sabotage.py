"""Every scenario of the kit catches a defect made for it; without it the same store passes (test_ledger, _backends)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, Runner
from tests.conformance.defects import SABOTAGES, STAGED_SABOTAGES
from tests.conformance.ledger import LedgerTarget


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


def test_no_scenario_is_without_a_sabotage() -> None:
    assert {*SABOTAGES, *STAGED_SABOTAGES} == set(SCENARIOS)


@pytest.mark.parametrize("scenario", [*SABOTAGES, *STAGED_SABOTAGES])
def test_defect_is_caught(scenario: str, runner: Runner, tmp_path: Path) -> None:
    staged = STAGED_SABOTAGES.get(scenario)
    target = staged() if staged else LedgerTarget(SABOTAGES[scenario])
    result = runner.play(scenario, target, tmp_path)
    assert result.outcome == "failed", f"{(staged or SABOTAGES[scenario]).__doc__} It was not caught."
    said = result.why.splitlines()[0]
    assert "programming mistake" not in said
    assert "hangs" not in said
    bugs = ("NameError", "AttributeError", "TypeError", "ImportError")  # of the kit's own
    assert not any(bug in result.why for bug in bugs), result.why

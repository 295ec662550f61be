"""Every scenario of the kit catches a defect that was made for it; the same store without it passes (test_ledger)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, Player
from tests.conformance.defects import SABOTAGES
from tests.conformance.ledger import LedgerTarget


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with closing(Player()) as player:
        yield player


def test_no_scenario_is_without_a_sabotage() -> None:
    assert set(SABOTAGES) == set(SCENARIOS)


@pytest.mark.parametrize("scenario", list(SABOTAGES))
def test_defect_is_caught(scenario: str, player: Player, tmp_path: Path) -> None:
    result = player.play(scenario, LedgerTarget(SABOTAGES[scenario]), tmp_path)
    assert result.outcome == "failed", f"{SABOTAGES[scenario].__doc__} It was not caught."
    said = result.why.splitlines()[0]
    assert "programming mistake" not in said
    assert "hangs" not in said

"""The kit on a reference store that has every capability: no scenario is skipped, all of them pass."""

from __future__ import annotations

import pytest

from exactsink.testing import ConformanceSuite
from tests.conformance.ledger import LedgerTarget


class TestLedger(ConformanceSuite):
    @pytest.fixture
    def target(self) -> LedgerTarget:
        return LedgerTarget()

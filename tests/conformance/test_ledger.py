"""The kit on a reference store that has every capability but an applier: all other scenarios are played, and pass."""

from __future__ import annotations

import pytest

from exactsink.testing import ConformanceSuite
from tests.conformance.ledger import LedgerTarget


class TestLedger(ConformanceSuite):
    @pytest.fixture
    def target(self) -> LedgerTarget:
        return LedgerTarget()

"""Iceberg tables: the whole kit, on a table in partitions."""

from __future__ import annotations

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget
from exactsink_iceberg.conformance import targets


class TestIcebergWhole(ConformanceSuite):
    """What `make test` plays of it is in tests/conformance."""

    pytestmark = pytest.mark.proof

    @pytest.fixture(params=["table", "partitioned"])
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return targets()[request.param]

"""Every scenario of exactsink's conformance kit, on Delta tables in temporary folders."""

import pytest
from exactsink.testing import ConformanceSuite, ConformanceTarget

from exactsink_delta_targets import targets


class TestDelta(ConformanceSuite):
    @pytest.fixture(params=sorted(targets()))
    def target(self, request: pytest.FixtureRequest) -> ConformanceTarget:
        return targets()[request.param]

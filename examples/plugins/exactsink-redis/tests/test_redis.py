"""Every scenario of exactsink's conformance kit, on the Redis that REDIS_URL names."""

import pytest
from exactsink.testing import ConformanceSuite, ConformanceTarget

from exactsink_redis_targets import targets


class TestRedis(ConformanceSuite):
    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return targets()["redis"]

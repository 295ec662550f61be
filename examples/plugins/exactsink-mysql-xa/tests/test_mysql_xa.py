"""Every scenario of exactsink's conformance kit, on the server that MYSQL_URL names."""

import pytest
from exactsink.testing import ConformanceSuite, ConformanceTarget

from exactsink_mysql_xa_targets import targets


class TestMysqlXa(ConformanceSuite):
    @pytest.fixture
    def target(self) -> ConformanceTarget:
        return targets()["mysql_xa"]

"""A process from which the tests of the kit itself have scenarios played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import Runner


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner

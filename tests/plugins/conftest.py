"""An example plugin of a test's module, `PLUGIN`, without its wheel; and where the kit plays it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import Runner


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the plugin be found, as if it were installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(request.module.PLUGIN)
        yield


@pytest.fixture(scope="module")
def runner(installed: None) -> Iterator[Runner]:
    with closing(Runner()) as made:
        yield made

"""An example plugin of a test's module, `PLUGIN`, without its wheel, and rows as the kit's are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from exactsink.testing.target import ROWS


@pytest.fixture(scope="module")
def installed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the plugin be found, as if it were installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(request.module.PLUGIN)
        yield


def rows(*ids: int) -> pa.Table:
    """Make rows as the kit's are."""
    return pa.table({"id": ids, "kind": ["k" for _ in ids], "amount": [1.0 for _ in ids]}, schema=ROWS)

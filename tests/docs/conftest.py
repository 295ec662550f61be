"""One warm JVM for all pages of a test process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.warm_jvm import WarmJvm


class LazyJvm:
    """A JVM that is started by the first page that needs one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jvm: WarmJvm | None = None

    def address(self) -> dict[str, str]:
        if self._jvm is None:
            self._jvm = WarmJvm(self._folder)
        return dict(self._jvm.address)

    def settle(self) -> None:
        """End what a killed driver left in it."""
        if self._jvm is not None:
            self._jvm.settle()

    def close(self) -> None:
        if self._jvm is not None:
            self._jvm.close()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LazyJvm]:
    with closing(LazyJvm(tmp_path_factory.mktemp("jvm"))) as lazy:
        yield lazy

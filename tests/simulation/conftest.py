"""What these tests share: a silent log, and each record is decoded once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from exactsink.protocol.journal import journal
from tests.simulation.world import decode


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(journal, "decode", decode)
    logging.getLogger("exactsink").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("exactsink").setLevel(logging.NOTSET)

"""What the tests of this folder share: a place in a bucket of the test's own, and its requests."""

from __future__ import annotations

import pytest

from exactsink.toolkit.storage import ObjectPath
from tests.integration.s3.calls import Calls
from tests.servers.s3 import S3


@pytest.fixture
def place(s3: S3, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A name in a new bucket that nothing has."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return ObjectPath.of(f"s3a://{s3.new_bucket('core')}/jobs", skip_instance_cache=True)


@pytest.fixture
def calls(place: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)

"""The catalogs and warehouses that a sink's table can be in, each with the servers behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.iceberg.lake import Lake
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3


@pytest.fixture
def postgres_lake(postgres: Postgres, bucket: str, s3: S3, tmp_path: Path) -> Lake:
    """A catalog in PostgreSQL, a warehouse on S3."""
    name = f"iceberg_{abs(hash(tmp_path)):x}"[:40]
    postgres.create_database(name)
    keys = s3.environment
    theirs = {
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",  # versitygw refuses Arrow's uploads
        "s3.endpoint": s3.endpoint, "s3.region": keys["AWS_DEFAULT_REGION"],
        "s3.access-key-id": keys["AWS_ACCESS_KEY_ID"], "s3.secret-access-key": keys["AWS_SECRET_ACCESS_KEY"],
    }  # fmt: skip
    return Lake(tmp_path, postgres.url(name), f"{bucket}/{name}", theirs)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A catalog in SQLite, a warehouse in a folder."""
    return Lake(tmp_path)

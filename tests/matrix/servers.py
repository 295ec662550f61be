"""Which servers the tests run against here."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping

from tests.servers import kafka_jars
from tests.servers.postgres import programs
from tests.servers.s3 import MINIO, VERSITYGW

__all__ = ["server_versions"]


def server_versions() -> Mapping[str, str]:
    """Return the version of each server that the tests start on this machine."""
    mariadb = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin") or "mariadbd"
    return {
        "Apache Kafka": kafka_jars.VERSION,
        "PostgreSQL": _version([str(programs() / "initdb"), "--version"]),
        "MariaDB": _version([mariadb, "--version"]),
        "SQLite": sqlite3.sqlite_version,
        "versitygw (S3)": VERSITYGW.version.removeprefix("v"),
        "MinIO (S3)": MINIO.version.split("-")[1][:8],
    }


def _version(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    assert found is not None, said
    return found[0]

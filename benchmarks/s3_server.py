"""The S3 server of benchmarks, Spark's settings for it, and a count of its requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from pyspark.sql import SparkSession
from tests.servers.kafka_jars import JarSet
from tests.servers.s3 import S3Server, own_s3
from tests.servers.s3_rules import Answer, Ask
from tests.servers.s3a_jars import S3A, s3a_conf, s3a_jars

__all__ = ["Requests", "s3_server", "s3a_settings"]


@contextmanager
def s3_server(connector: JarSet = S3A) -> Iterator[S3Server]:
    """Run a server. A JVM that starts within the block has Spark's S3A connector, and credentials."""
    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("Spark runs already, without its S3A connector: run this benchmark first, or by itself")
    with own_s3() as server:
        started = {"PYSPARK_SUBMIT_ARGS": f"--jars {s3a_jars(connector)} pyspark-shell"}
        with patch.dict(os.environ, {**server.environment, **started}):
            yield server


def s3a_settings(server: S3Server) -> Mapping[str, str]:
    """Return the settings of a running session for a server."""
    return {name.removeprefix("spark.hadoop."): value for name, value in s3a_conf(server).items()}


class Requests:
    """A rule of the proxy that counts requests, and applies to none."""

    def __init__(self) -> None:
        self.count = 0

    def concerns(self, request: str) -> bool:
        self.count += 1
        return False

    def answer(self, request: str, ask: Ask) -> Answer | None:
        return ask()

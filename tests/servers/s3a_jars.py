"""Spark's own connector to S3 for tests: Hadoop's S3A, and the modules of the AWS SDK that it needs."""

from __future__ import annotations

from pathlib import Path

from tests.servers.kafka_jars import JarSet, jars
from tests.servers.s3 import REGION, S3

_HADOOP = "3.5.0"  # as in this Spark
_SDK = "2.35.4"  # what that Hadoop is built with; its `bundle` of all services has 558 MB
_MODULES = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol"),
    *("checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws"),
    *("http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils"),
    *("metrics-spi", "netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi"),
    *("s3", "s3-transfer-manager", "sdk-core", "third-party-jackson-core", "utils", "utils-lite"),
)
S3A = JarSet(
    f"hadoop-aws-{_HADOOP}",
    (
        f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",  # what S3A reads by, unless it is set
        "software.amazon.eventstream:eventstream:1.0.1",
        "org.reactivestreams:reactive-streams:1.0.4",
        *(f"software.amazon.awssdk:{module}:{_SDK}" for module in _MODULES),
    ),
    alone=True,  # Netty, Apache's HTTP client and logging are Spark's own
)
COMMITTERS = JarSet(
    "hadoop-aws-3.4.1-committers",  # what Spark 4.0.0 brings, and the newest SDK that adds no checksums by itself
    (
        "org.apache.hadoop:hadoop-aws:3.4.1",
        "org.apache.spark:spark-hadoop-cloud_2.13:4.0.0",
        *S3A.artifacts[2:4],
        *(f"software.amazon.awssdk:{module}:2.29.52" for module in _MODULES if module != "utils-lite"),
    ),
    alone=True,
)
"""S3A with Spark's binding to its committers. Maven Central has spark-hadoop-cloud for 4.0.0, but not for 4.3."""


def s3a_jars(of: JarSet = S3A) -> str:
    """Return the jars as `spark.jars` takes them."""
    return ",".join(str(jar) for jar in sorted(Path(jars(of)).glob("*.jar")))


def s3a_conf(server: S3) -> dict[str, str]:
    """Return Spark's settings for a server; credentials are in the environment."""
    return {
        "spark.hadoop.fs.s3a.endpoint": server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }

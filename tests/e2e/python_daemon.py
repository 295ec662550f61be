"""Spark's daemon of Python workers, with all imported that its forks need: each of them would import it anew."""

from __future__ import annotations

import os

import pandas  # noqa: F401
import sqlalchemy.dialects.sqlite  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers, types  # noqa: F401

import exactsink_postgres.backend  # noqa: F401

if "AWS_ENDPOINT_URL" in os.environ:
    import s3fs  # noqa: F401

if __name__ == "__main__":
    manager()

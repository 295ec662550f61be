"""Tables as Spark reads them, with Iceberg's and Delta's own jars, which Maven has for Spark 4.0."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.feather as feather
from tests.servers.kafka_jars import JarSet, jars
from tests.servers.spark_versions import python_with_spark, spark_home

__all__ = ["DELTA", "ICEBERG", "SPARK", "rows_in_spark"]

SPARK = "4.0.0"
DELTA = JarSet("delta-spark-4.0.0", ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"), alone=True)
ICEBERG = JarSet("iceberg-spark-4.0-1.10.0", ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",), alone=True)
_READ = """
import sys
from pyarrow import feather
from pyspark.sql import SparkSession
jars, kind, out, *asked = sys.argv[1:]
of_iceberg = {"spark.sql.catalog.default_iceberg": "org.apache.iceberg.spark.SparkCatalog",
              "spark.sql.catalog.default_iceberg.type": "hadoop", "spark.sql.catalog.default_iceberg.warehouse": out}
of_delta = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}
settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.jars": jars, **vars()[f"of_{kind}"]}
spark = SparkSession.builder.config(map=settings).getOrCreate()
for number, (place, where) in enumerate(zip(asked[::2], asked[1::2])):
    feather.write_feather(spark.read.format(kind).load(place).where(where).toArrow(), f"{out}/{number}")
"""


def rows_in_spark(wanted: JarSet, *asked: tuple[str, str]) -> list[Sequence[dict[str, Any]]]:
    """Read the rows of each place that its condition picks."""
    python, kind = python_with_spark(SPARK), "delta" if wanted == DELTA else "iceberg"
    paths = ",".join(map(str, sorted(jars(wanted).glob("*.jar"))))
    with tempfile.TemporaryDirectory() as out:
        environment = ["env", f"SPARK_HOME={spark_home(python)}", f"PYSPARK_PYTHON={python}", str(python), "-c", _READ]
        words = [word for place, where in asked for word in (place, where)]
        subprocess.run([*environment, paths, kind, out, *words], check=True)
        return [feather.read_table(Path(out, str(n)), memory_map=False).to_pylist() for n in range(len(asked))]

"""Read orders from files, and write them into files, Kafka, Postgres and a table of SQLite, committed together.

    python orders.py INCOMING

`mypy --strict` checks the options of each sink. `KAFKA`, `PGHOST` and its like say where the servers are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from exactsink import Job, Query, RunResult
from exactsink_files import Files
from exactsink_idempotent_upsert import Upsert
from exactsink_kafka import Kafka
from exactsink_postgres import Postgres

SCHEMA = "id BIGINT, amount DOUBLE"


def orders_job(folder: Path) -> Job:
    """Make the job; nothing is started."""
    brokers, table = "${KAFKA:-localhost:9092}", f"sqlite:///{folder}/orders.db"
    return Job(
        name="orders",
        checkpoint=folder / "checkpoint",
        trigger="10 seconds",
        sinks={
            "lake": Files(path=folder / "lake", where="amount > 0"),
            "topic": Kafka(bootstrap_servers=brokers, topic="orders", value_format="json", key=["id"]),
            "rows": Postgres(table="orders", create=True, epoch_column="epoch"),
            "newest": Upsert(url=table, table="orders", keys=["id"], create=True),
        },
    )


def stream(job: Job, orders: DataFrame) -> int:
    """Run until somebody stops it; return how many epochs there were."""
    query: Query = job.start(orders)
    query.awaitTermination()
    return query.epochs


def backfill(job: Job, orders: DataFrame, day: str) -> RunResult:
    """Write a day once, however often this is called."""
    return job.write(orders, run=day)


if __name__ == "__main__":
    spark = SparkSession.builder.appName("orders").getOrCreate()
    with orders_job(Path.cwd()) as job:
        stream(job, spark.readStream.schema(SCHEMA).csv(sys.argv[1]))

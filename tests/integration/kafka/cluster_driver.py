"""A driver of one Kafka sink without Spark, as a process: `python -m tests.integration.kafka.cluster_driver FOLDER`.

`FOLDER/job.json` says what it writes and where its faults are; each fires once over all runs of the folder. It ends as
`exactsink run` does: 75 says to start it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault
from exactsink.testing.driver_run import Script, run_driver
from exactsink.testing.faults import FaultTrigger, FaultTriggers
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions

__all__ = ["PARTITIONS", "ROWS_AN_EPOCH", "mark_of"]

PARTITIONS, ROWS = 2, 5
ROWS_AN_EPOCH = PARTITIONS * ROWS


def mark_of(folder: Path, fault: Fault) -> Path:
    """Return the file that says that a fault has fired."""
    return folder / f"{fault}.fired"


def main(folder: Path) -> int:
    job = json.loads((folder / "job.json").read_text())
    backend = KafkaBackend(KafkaOptions.model_validate(job["options"]))
    sinks = {"out": Sink("out", "kafka", backend, "", max_participants=PARTITIONS)}
    script = Script(job["job"], folder, sinks, [_batch(number) for number in range(job["epochs"])])
    faults = [Fault(**fault) for fault in job["faults"]]
    return run_driver(script, FaultTriggers([FaultTrigger(fault, mark_of(folder, fault)) for fault in faults]))


def _batch(number: int) -> list[Any]:
    first = number * ROWS_AN_EPOCH
    parts = [range(first + part * ROWS, first + (part + 1) * ROWS) for part in range(PARTITIONS)]
    return [pa.table({"value": pa.array([str(row).encode() for row in part], pa.binary())}) for part in parts]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Run Kafka's own tool for measuring a producer, in one transaction."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers.kafka_jars import TOOLS, jars, java

__all__ = ["LIKE_OURS", "run_tool"]

_TIMEOUT_MS = 900_000
_TELLS = re.compile(r"(?P<rows>\d+) records sent, (?P<speed>[\d.]+) records/sec")
LIKE_OURS: Mapping[str, str] = {  # Java's names for the settings of exactsink's writers
    "acks": "all",
    "enable.idempotence": "true",
    "batch.size": "262144",
    "linger.ms": "20",
    "compression.type": "none",
    "buffer.memory": "67108864",
}


def run_tool(bootstrap: str, topic: str, payloads: Path, rows: int, producer: Mapping[str, str] = LIKE_OURS) -> float:
    """Send so many records, chosen at random from a file's lines. Return the records per second, as reported."""
    settings = {"bootstrap.servers": bootstrap, **producer, "transaction.timeout.ms": str(_TIMEOUT_MS)}
    command = [java(), "-Xmx1g", "-cp", f"{jars(TOOLS)}/*", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", topic, "--num-records", str(rows), "--throughput", "-1"]
    command += ["--payload-file", str(payloads), "--transactional-id", topic]
    command += ["--transaction-duration-ms", str(_TIMEOUT_MS)]  # longer than it takes: one transaction
    command += ["--command-property", *(f"{name}={value}" for name, value in settings.items())]
    done = subprocess.run(command, cwd=payloads.parent, capture_output=True, text=True, check=False)
    reported = list(_TELLS.finditer(done.stdout))
    if done.returncode != 0 or not reported or int(reported[-1]["rows"]) != rows:
        raise RuntimeError(
            f"ProducerPerformance ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return float(reported[-1]["speed"])

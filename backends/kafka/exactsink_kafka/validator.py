"""Find rows that make no record, and make records of a quarantine's rows. Executors import this module.

Only the writer detects faults that brokers know of: missing topics and partitions, and a topic's `max.message.bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import BatchValidator, ConfigError, Fatal
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.records import Records

__all__ = ["RecordValidator", "made_records"]

_LAST_EPOCH = 2**63 - 1


class RecordValidator(BatchValidator):
    """Finds rows that make no record, or that are too large for the client."""

    def __init__(self, options: KafkaOptions, schema: pa.Schema) -> None:
        # Use the longest epoch number, because a row must not become bad only when the number has more digits.
        header = None if options.epoch_header is None else (options.epoch_header, str(_LAST_EPOCH).encode())
        self._most, self._setting = options.largest_row, options.record_limit[1]
        self._topic, self._header = options.topic, header
        super().__init__(self._refusal, schema)

    def _refusal(self, batch: pa.RecordBatch) -> str | None:
        try:
            records = Records(batch, self._topic, "no record", self._header)
        except Fatal as refusal:
            return refusal.what
        most = pc.max(records.sizes()).as_py() or 0
        if most > self._most:
            return f"no record: it has {most} bytes, and {self._setting} leaves {self._most}"
        return None


def made_records(options: KafkaOptions, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of texts and integers as JSON records, as the JVM makes them. Raises ConfigError without JSON."""
    unknown = [key for key in options.key if key not in rows.schema.names]
    if options.value_format != "json" or unknown:
        has = ", ".join(rows.schema.names)
        raise ConfigError(
            f"topic {options.topic or '*'} can't be a quarantine with these options",
            why=f"its rows have the columns {has}" + (f", and no {unknown[0]}" if unknown else ""),
            next='set value_format = "json"' + (f", and a key of {has}" if unknown else ""),
        )
    made = rows.to_pylist()
    columns = {"value": [json.dumps(row) for row in made]}
    if options.key:
        columns = {"key": [_key(options.key, row) for row in made], **columns}
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, pa.string()) for name in columns]))


def _key(names: Iterable[str], row: Mapping[str, Any]) -> str:
    chosen = {name: row[name] for name in names}
    return json.dumps(chosen) if len(chosen) > 1 else str(*chosen.values())

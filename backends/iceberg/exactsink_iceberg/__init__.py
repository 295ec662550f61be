"""The `iceberg` backend: tasks write Parquet files, and one snapshot of an Iceberg table names an epoch's.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`, `backend`: the options, and what the backend says of itself.
- `writer`: a task attempt's Parquet files, which no snapshot names; `partitions` divides their rows.
- `committer`: adds them to the table by one snapshot, or finds that they are there; what the sweep finds.
- `tables`: the table, the sink's mark in it, and the one call that commits; `durable_io` syncs the table's own files.
- `preflight`: columns and settings of a table that a plain writer can't serve.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls

__all__ = ["Iceberg"]

__getattr__ = sink_calls("iceberg", Iceberg="exactsink_iceberg.backend:IcebergOptions")

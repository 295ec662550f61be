"""The `iceberg` backend: tasks write Parquet files, and one snapshot of an Iceberg table names an epoch's files.

The modules, in the order in which a row, and then its vote, passes them:

- `plugin`: announces the backend.
- `options`, `backend`: the options and traits.
- `writer`: a task attempt's Parquet files, which no snapshot names; `partitions` divides their rows.
- `votes`: the content of a vote.
- `committer`: adds the files by one snapshot, or finds that they are there; lists participants for the sweep.
- `tables`: the table, the sink's mark in it (`marks`), and the one call that commits; `durable_io` syncs its files.
- `preflight`: checks a table for columns and settings that this writer does not support.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls

__all__ = ["Iceberg"]

__getattr__ = sink_calls("iceberg", Iceberg="exactsink_iceberg.backend:IcebergOptions")

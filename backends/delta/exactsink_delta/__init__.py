"""The `delta` backend: tasks write Parquet files, and one entry of a Delta table's log names an epoch's.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`, `backend`: the options, and what the backend says of itself.
- `writer`: a task attempt's Parquet files, which no reader finds.
- `committer`: adds them to the table by one entry, or finds that they are there; what the sweep finds.
- `log`: the table's log, the sink's mark in it, and that both are on disk.
- `preflight`: columns and settings of a table that a plain writer can't serve.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls

__all__ = ["Delta"]

__getattr__ = sink_calls("delta", Delta="exactsink_delta.backend:DeltaOptions")

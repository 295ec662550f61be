"""The `delta` backend: tasks write Parquet files, and one entry of a Delta table's log names an epoch's files.

The modules, in the order in which a row, and then its vote, passes them:

- `plugin`: announces the backend.
- `options`, `backend`: the options and traits.
- `writer`: a task attempt's Parquet files, which no reader finds.
- `committer`: adds the files to the table by one entry, or finds that they are there; lists participants for the sweep.
- `log`: the table's log, the sink's mark in it, and their durability.
- `preflight`: checks a table for columns and settings that this writer does not support.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

from exactsink.contract import sink_calls

__all__ = ["Delta"]

__getattr__ = sink_calls("delta", Delta="exactsink_delta.backend:DeltaOptions")

"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`, with `names` and `urls`: what a job's config says.
- `backend`: what the sink promises, and what a task refuses before it votes.
- `table`: what is to be done to a table; `limits`: what its columns take, which tasks check.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `databases`: which one; `database`: the seam, all that the strategies ask of a database.
- `sqlite`, `mysql`, `generic`: a database's side each, with its statements, values and preflight. `sqlite.rows` has the
  copy of a table on which tasks try rows that it might refuse.
- `postgres`: upserts by way of the postgres backend's COPY, staging tables, marks and sweep, beside the seam.
- `questions`: what `check` and a start find out about a table before the first row.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

__all__: list[str] = []

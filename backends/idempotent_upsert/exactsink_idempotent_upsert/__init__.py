"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`, with `names` and `urls`: what a job's config says.
- `backend`: what the sink promises, and what a task refuses before it votes.
- `table`: what is to be done to a table; `limits`: what its columns take, which tasks check.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `databases`: which one; `database`: the seam, all that the strategies ask of a database.
- `sqlite`, `mysql`, `generic`, `postgres`: a database's side each, with its statements, values and preflight.
  `sqlite.trial` is the copy of a table on which tasks try rows that it might refuse. `postgres` shares COPY, staging
  tables, marks and sweep with the postgres backend (`exactsink_postgres.public`), and keeps staged rows in tables.
- `setwise`: an epoch's rows in their order, and which of them count, where they go by way of a temporary table.
- `questions`: what `check` and a start find out about a table before the first row, partly by its information schema.

A module imports from those below it only: `plugin`, `backend`, `strategies`, `databases`, `options`, `urls`, a
database's folder, `database`, then the rest. An import rule refuses all else.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

__all__: list[str] = []

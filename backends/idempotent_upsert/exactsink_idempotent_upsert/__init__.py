"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`, with `names` and `urls`: what a job's config says.
- `backend`: what the sink promises, and what a task refuses before it votes.
- `table`: what is to be done to a table; `limits`: what its columns take, which tasks check.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `databases`: which one; `database`: the seam, all that the strategies ask of a database.
- `sqlite`, with `sqlite_statements`, `sqlite_rows`, `sqlite_values`: SQLite's side of it.
- `sqlite_trial`: the copy of a table on which tasks try rows that it might refuse.
- `mysql`, with `mysql_statements`, `mysql_values`, `mysql_catalog`, `mysql_errors`: MariaDB's and MySQL's.
- `generic`, with `generic_rows`: any other database's, by portable SQL.
- `spool`: rows in a file, until they apply in their order.
- `preflight_frame`, `preflight_sqlite`, `preflight_sqlite_late`, `preflight_mysql`: what keeps rows out, or may after the
  decision.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

__all__: list[str] = []

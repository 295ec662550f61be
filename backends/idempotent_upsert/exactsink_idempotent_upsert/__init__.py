"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `options`: what a job's config says, the URL included.
- `backend`: what the sink promises, what a task refuses before it votes, and which database the URL names.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `sqlite`, `mysql`, `generic`, `postgres`: a database's side each, with its statements, values and preflight.
  `sqlite.trial` is the copy of a table on which tasks try rows that it might refuse. `postgres` shares COPY, staging
  tables, marks and sweep with the postgres backend (`exactsink_postgres.public`), and keeps staged rows in tables.
- `own_tables`: markers, owners and votes, written once for the databases that are reached by their SQL.
- `setwise`: an epoch's rows in their order, and which of them count, where they go by way of a temporary table.
- `database`: the seam, all that the strategies ask of a database.
- `limits`: what a table's columns take, which tasks check.
- `questions`: what `check` and a start find out about a table before the first row, partly by its information schema.
- `table`: what is to be done to a table, and the names that SQL has for it.
- `conformance`, `bench`: targets for the conformance kit and `exactsink bench`; `postgres.targets` has both.

A module imports from those below it only, in this order. An import rule refuses all else.
"""

from exactsink.contract import sink_calls

__all__ = ["Upsert"]

__getattr__ = sink_calls("idempotent_upsert", Upsert="exactsink_idempotent_upsert.options:UpsertOptions")

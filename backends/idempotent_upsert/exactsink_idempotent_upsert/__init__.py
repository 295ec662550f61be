"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker are written in one transaction.

The modules, in the order in which a row and then its vote passes them:

- `plugin`: announces the backend.
- `options`: the options in a job's config, including the URL.
- `backend`: the sink's promise, the rows that a task refuses before it votes, and the database that the URL names.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `sqlite`, `mysql`, `generic`, `postgres`: the parts for one database each, with statements, values and preflight.
  `sqlite.trial` is the copy of a table on which tasks try rows that it might refuse. `postgres` shares COPY, staging
  tables, marks and sweep with the postgres backend (`exactsink_postgres.public`), and keeps staged rows in tables.
- `own_tables`: markers, owners and votes, written once for all databases that are used through SQL.
- `setwise`: an epoch's rows in their order, and the rows that count, if they pass through a temporary table.
- `database`: the interface between the strategies and a database.
- `limits`: the values that a table's columns can hold, which tasks check.
- `questions`: the checks of a table before the first row, partly through its information schema.
- `table`: the operations on a table, and its names in SQL.
- `conformance`, `bench`: targets for the conformance kit and `exactsink bench`; `postgres.targets` has both.

A module imports only from those below it in this list. An import rule refuses all other imports.
"""

from exactsink.contract import sink_calls

__all__ = ["Upsert"]

__getattr__ = sink_calls("idempotent_upsert", Upsert="exactsink_idempotent_upsert.options:UpsertOptions")

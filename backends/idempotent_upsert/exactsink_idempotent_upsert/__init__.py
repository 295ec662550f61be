"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction.

The way of a row, and then of its vote:

- `plugin`: announces the backend.
- `backend`: the options, and what a task refuses before it votes.
- `tables`: Arrow values as SQLite stores them, the order in which rows of a key apply, and the statements.
- `strategies`: staged, the driver applies rows and marker in one transaction; direct, each task upserts its rows.
- `sqlite`: the file's connections and transactions, its marker and owner tables, and what preflight finds.
- `conformance`: targets for the conformance kit.
"""

from __future__ import annotations

__all__: list[str] = []

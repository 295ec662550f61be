"""The pieces that upserts into Postgres share with this backend, in the only module that they import from it.

`SinkSession` is a driver's kept session: the mark, the sweep, locks named with their holders. `Load` is a task's COPY
in its transaction; `StagingWriter` and `StagingCommitter` move rows by way of a `StagingTable`. `Marks`,
`VoteRegistry` and other `OwnTable`s exist beside the sink's table, which `read_table` and its neighbours find, make
and fit. `findings` and its neighbours query the server before the first row.
"""

from __future__ import annotations

from exactsink_postgres.committer import UNBEGUN, SinkSession
from exactsink_postgres.errors import AGAIN, UNDECIDED
from exactsink_postgres.load import Load, Ticket
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import Marks, OwnTable, VoteRegistry
from exactsink_postgres.preflight import Asks, findings, settings
from exactsink_postgres.preflight_table import deferred_findings, grant, table_findings, unusable
from exactsink_postgres.server import Session, ask, pinned

from exactsink_postgres.staged import ATTEMPT_COLUMN, Gone, StagedTicket, Unproven  # isort: skip
from exactsink_postgres.staged import StagingCommitter, StagingWriter, check_staged  # isort: skip
from exactsink_postgres.staging_tables import ATTEMPT, Form, RowsAt, StagingTable
from exactsink_postgres.tables import Table, chosen_columns, create_table, ensure_table, read_table
from exactsink_postgres.type_mapping import Column, column_type, family, matches
from exactsink_postgres.validator import RowRules, TableValidator

# fmt: off
__all__ = [
    "AGAIN", "ATTEMPT", "ATTEMPT_COLUMN", "UNBEGUN", "UNDECIDED", "Asks", "Column", "Form", "Gone", "Load", "Marks",
    "OwnTable", "PostgresOptions", "RowRules", "RowsAt", "Session", "SinkSession", "StagedTicket", "StagingCommitter",
    "StagingTable", "StagingWriter", "Table", "TableValidator", "Ticket", "Unproven", "VoteRegistry", "ask",
    "check_staged", "chosen_columns", "column_type", "create_table", "deferred_findings", "ensure_table", "family",
    "findings", "grant", "matches", "pinned", "read_table", "settings", "table_findings", "unusable",
]
# fmt: on

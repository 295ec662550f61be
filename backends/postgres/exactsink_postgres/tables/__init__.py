"""Tables as the server's catalog has them, and as rows want them."""

from exactsink_postgres.tables.catalog import Table, TableName, UniqueIndex, quoted, read_table
from exactsink_postgres.tables.definition import (
    add_column_statements,
    chosen_columns,
    create_statement,
    problems,
)

__all__ = [
    "Table",
    "TableName",
    "UniqueIndex",
    "add_column_statements",
    "chosen_columns",
    "create_statement",
    "problems",
    "quoted",
    "read_table",
]

"""What MariaDB and MySQL say, in the contract's words."""

from __future__ import annotations

from exactsink_idempotent_upsert.database import MARKER_TABLE
from exactsink_idempotent_upsert.own_tables import Refusal

__all__ = ["code_of", "is_refusal", "refusal"]

_PASSING = {
    1020: "the row was changed meanwhile",
    1021: "free space on the server's disk",
    1040: "the server has as many connections as it may",
    1053: "the server is shutting down",
    1114: "free space on the server's disk",
    1152: "the connection broke off",
    1158: "the connection broke off",
    1159: "the connection broke off",
    1160: "the connection broke off",
    1161: "the connection broke off",
    1180: "free space on the server's disk, and see its log",
    1205: "see who holds locks on the table: SHOW ENGINE INNODB STATUS",
    1213: "another transaction had locks that this one needs: it is tried again",
    1290: "see whether the server is read-only: a standby, say",
    1317: "someone ended the statement",
    1836: "see whether the server is read-only: a standby, say",
    1927: "someone ended the connection",
    1969: "see max_statement_time",
    2002: "see that the server runs",
    2003: "see that the server runs",
    2006: "see that the server runs",
    2013: "see that the server runs",
    3024: "see max_execution_time",
    4031: "see wait_timeout",
}
"""Codes of what may go well later, with what to look at."""

_OUT_OF_RANGE = 1690
_NO_TABLE, _TOO_LARGE = 1146, 1153
_HINTS = {
    _TOO_LARGE: "raise max_allowed_packet",
    1292: "see what type the column has",
    1364: "give the column a default, or select it into this sink",
    1406: "see how long the column may be",
    1452: "a row refers to one that is not there: let this sink commit `after` the one that writes it",
    1665: "set binlog_format to MIXED or ROW",
}


def is_refusal(error: Exception) -> bool:
    """Return whether a statement ended because it met a row that it must not change."""
    return code_of(error) == _OUT_OF_RANGE


def code_of(error: Exception) -> int:
    """Return the server's or the driver's number; that of a lost connection where it has none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) and code else 2013


def refusal(error: Exception, table: str) -> Refusal | None:
    """Return what an error of the driver says; None for any other."""
    from pymysql.err import MySQLError

    if not isinstance(error, MySQLError):
        return None
    code = code_of(error)
    text = error.args[1] if len(error.args) > 1 else str(error)
    said = f"{text} ({code})"
    if code in _PASSING:
        return Refusal(True, said, _PASSING[code])
    fix = _HINTS.get(code, f"fix table {table}")
    if code == _NO_TABLE and MARKER_TABLE in str(text):
        fix = "bring back the database that the epoch was opened on"
    if code == _OUT_OF_RANGE:
        said = "a row collides with another key's on a second unique index"
        fix = "see which rows have the same values there, or drop the index"
    return Refusal(False, said, fix)

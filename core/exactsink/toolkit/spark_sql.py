"""Spark SQL for the expressions that a backend's `shape` returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain

__all__ = ["EXACT_TIMES", "quoted_name", "quoted_text", "text_map"]

EXACT_TIMES: Mapping[str, str] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of to_json and to_csv. Their defaults cut times to milliseconds, and offsets of old zones to minutes."""

_ODD = re.compile(r"(['\\])")


def quoted_name(name: str) -> str:
    """Quote a column's name."""
    return "`" + name.replace("`", "``") + "`"


def quoted_text(text: str) -> str:
    """Write a text as a literal.

    Quotes and backslashes are written as character codes, because their meaning in a literal depends on the version
    (two quotes are one from Spark 4.1 on, and none before) and on `spark.sql.parser.escapedStringLiterals`.
    """
    parts = [f"char({ord(part)})" if part in "'\\" else f"'{part}'" for part in _ODD.split(text) if part]
    return parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})" if parts else "''"


def text_map(options: Mapping[str, str]) -> str:
    """Write options as the map literal that to_json and to_csv accept."""
    return f"map({', '.join(map(quoted_text, chain(*options.items())))})"

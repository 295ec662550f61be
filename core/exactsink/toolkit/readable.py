"""Rows that no reader could use again, whichever sink they go into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.spark_sql import quoted_name
from exactsink.toolkit.tabular.json_lines import OWN

__all__ = ["unreadable"]

_AS_STRUCT = {b"variant": "to_json({})", b"geometry": "ST_AsBinary({})", b"geography": "ST_AsBinary({})"}
"""Casts of the types that Spark sends as structs of bytes, by the mark on a field of such a struct."""


def unreadable(schema: pa.Schema) -> Iterator[Finding]:
    """Find rows without columns, two columns of one name, and types that a sink would hold as structs of bytes."""
    if not schema.names:
        yield Finding("error", "the rows have no columns", "select at least one into this sink")
    for name, count in Counter(schema.names).items():
        if count > 1 and not name.startswith(OWN):
            yield Finding("error", f"the rows have {count} columns {name}", "rename all but one: df.toDF(*NAMES)")
    for field in schema:
        for mark in _AS_STRUCT.keys() & _marks(field.type):
            fix = f"cast it in the frame: {_AS_STRUCT[mark].format(quoted_name(field.name))}"
            kind = mark.decode().upper()
            yield Finding("error", f"column {field.name} is {kind}: the sink would hold it as a struct of bytes", fix)


def _marks(kind: pa.DataType) -> set[bytes]:
    parts = [kind.field(nth) for nth in range(kind.num_fields)]
    return set().union(*(part.metadata or {} for part in parts), *(_marks(part.type) for part in parts))

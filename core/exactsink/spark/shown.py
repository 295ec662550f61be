"""Show a job's sinks in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping

from exactsink.protocol.sinks import Sink

__all__ = ["sinks_table"]


def sinks_table(sinks: Mapping[str, Sink], in_doubt: Mapping[str, int]) -> str:
    """Return an HTML table: each sink with its backend, guarantee, target, and its participants not proven."""
    rows = [
        (
            name,
            sink.kind,
            sink.backend.strategy,
            sink.backend.traits.guarantee,
            sink.backend.target,
            in_doubt.get(name, 0),
        )
        for name, sink in sinks.items()
    ]
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in ("sink", "backend", "strategy", "guarantee", "target", "not proven"))
    return f"<table><tr>{head}</tr>{cells}</table>"

"""Tables as the commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from exactsink.sinks import Sink

__all__ = ["print_sinks", "print_table"]


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], out: TextIO) -> None:
    """Print rows under a header, columns aligned."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), file=out)


def print_sinks(sinks: Mapping[str, Sink], out: TextIO) -> None:
    """Print what each sink promises, and the job's guarantee: its weakest sink's."""
    rows = [(s.name, s.kind, s.backend.strategy, s.backend.traits.guarantee, s.backend.target) for s in sinks.values()]
    print_table(("sink", "backend", "strategy", "guarantee", "target"), rows, out)
    weakest = max(sinks.values(), key=lambda sink: sink.backend.traits.visible_early)
    print(f"the job's guarantee: {weakest.backend.traits.guarantee}", file=out, flush=True)

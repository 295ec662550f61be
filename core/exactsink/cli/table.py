"""Print the tables and lists of the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from exactsink.cli.plugins import commands_now
from exactsink.job.guarantees import Guarantee, guarantee_of, job_guarantee
from exactsink.job.registry import Registry
from exactsink.protocol.sinks import Sink

__all__ = ["print_guarantees", "print_table", "guarantees_of"]


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], out: TextIO) -> None:
    """Print rows under a header, columns aligned."""
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), file=out)


def guarantees_of(sinks: Mapping[str, Sink], registry: Registry) -> Sequence[Guarantee]:
    """Return each sink's guarantee, and its other strategies."""
    return [guarantee_of(sink, registry.strategies(sink.kind)) for sink in sinks.values()]


def print_guarantees(sinks: Mapping[str, Sink], registry: Registry, out: TextIO) -> None:
    """Print each sink's guarantee, and the job's guarantee, which is that of its weakest sink."""
    for each in guarantees_of(sinks, registry):
        print(f"sink {each.sink}: {each.backend}, {each.strategy}: {each.guarantee}", file=out)
        lines = {"target": each.target, "rows show": each.visible, "needs": each.needs, "in doubt": each.in_doubt}
        for name, line in (*lines.items(), *(("instead", other) for other in each.alternatives)):
            print(f"  {name + ':':<11}{commands_now().typed(line)}", file=out)
    print(f"the job's guarantee: {job_guarantee(sinks.values())}", file=out, flush=True)

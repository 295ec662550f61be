"""Show a job's state as a table, by rich: repeatedly on a terminal, once if the output is not a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from exactsink.watch.seen import Seen

__all__ = ["shown", "watch_terminal"]

_SHADES = " ▁▂▃▄▅▆▇█"
_NUMBERS = ("rows", "not proven", "undecided", "foreign")
_GOOD = ("proven", "at work", "no start yet")


def watch_terminal(look: Callable[[], Seen], every: float) -> None:
    """Show the state again and again until Ctrl-C; once if the output is not a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.print(shown(look()))
        return
    with Live(shown(look()), console=console, auto_refresh=False) as live:
        pause = threading.Event()
        while not pause.wait(every):
            live.update(shown(look()), refresh=True)


def shown(seen: Seen) -> Group:
    """Return a state as rich prints it. Text of a store is never read as markup."""
    style = "green" if seen.state in _GOOD else "bold red"
    head = Text.assemble((seen.job, "bold"), "  ", (seen.state, style), f"  {datetime.fromtimestamp(seen.at):%H:%M:%S}")
    lines = [head, Text(f"driver: {seen.driver or 'none'}; {seen.heartbeat}")]
    lines.append(Text(f"epoch: decided {_known(seen.decided)}, complete {_known(seen.complete)}"))
    if seen.periods:
        last = seen.periods[-1]
        phases = ", ".join(f"{name} {taken / max(last.epochs, 1):.3f}" for name, taken in last.phases.items())
        lines.append(
            Text(f"rows/s: {seen.rows_a_second:,.0f}  {_bars([period.rows_a_second for period in seen.periods])}")
        )
        lines.append(Text(f"seconds an epoch: {last.seconds / max(last.epochs, 1):.3f}: {phases}"))
        lines += [Text(f"behind: {count:,.0f} {of}") for of, count in last.behind.items()]
    table = Table(Column("sink", no_wrap=True), *_NUMBERS, Column("mark", overflow="fold"))
    for sink in seen.sinks:
        numbers = (sink.rows, sink.in_doubt, sink.undecided, sink.foreign)
        table.add_row(Text(sink.name), *(f"{number:,}" for number in numbers), Text(sink.mark or "-"))
    problems = dict.fromkeys(filter(None, [seen.problem, *(sink.problem for sink in seen.sinks)]))
    return Group(*lines, table, *(Text(problem, "red") for problem in problems))


def _bars(values: list[float]) -> str:
    most = max(values[-20:]) or 1.0
    return "".join(_SHADES[round(value / most * (len(_SHADES) - 1))] for value in values[-20:])


def _known(epoch: int | None) -> str:
    return "none" if epoch is None else str(epoch)

"""The kill matrix: every named point of the protocol, before and after, killed and stalled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

from exactsink.protocol.events import POINTS
from exactsink.testing.capabilities import Scenario
from exactsink.testing.context import SINK, Context
from exactsink.testing.faults import Fault

__all__ = ["SCENARIOS"]

Action = Literal["kill", "stall"]
Edge = Literal["before", "after"]

_START = ("claim", "recommit", "sweep")
_TASKS = ("write", "pre_commit")
_SHAPE = ([20, 20],) * 3
_COMMIT = f"commit:{SINK}"


_FAILURES: Mapping[Action, str] = MappingProxyType(
    {
        "kill": "kill -9: an operator or a full memory ends the process",
        "stall": "the machine is suspended, and wakes after a successor has taken over; its driver goes on as before",
    }
)


def _scenario(point: str, edge: Edge, action: Action) -> Scenario:
    who = "a participant" if point in _TASKS else "the driver"
    done = "killed" if action == "kill" else "stalled, and woken when its successor is done,"
    return Scenario(
        f"{'killed' if action == 'kill' else 'stalled'}-{edge}-{point.replace(':<sink>', '')}",
        f"{who} is {done} {edge} {point}: every row is applied once, and nothing stays in doubt",
        _FAILURES[action],
        _playing(point.replace("<sink>", SINK), edge, action),
    )


def _playing(point: str, edge: Edge, action: Action) -> Callable[[Context], None]:
    """At `claim` and `recommit`, a start meets an unfinished epoch; at `sweep`, undecided work.

    Other points are epoch 1's.
    """
    if point == "sweep":
        faults = [Fault("vote", "after", "kill", 1), Fault(point, edge, action)]
    elif point in _START:
        faults = [Fault(_COMMIT, "before", "kill", 0), Fault(point, edge, action)]
    else:
        faults = [Fault(point, edge, action, 1)]

    def play(context: Context) -> None:
        context.play(context.script(*_SHAPE), *faults)
        context.check_rows(range(120))

    return play


SCENARIOS = tuple(
    _scenario(point, edge, action) for action in get_args(Action) for point in POINTS for edge in get_args(Edge)
)

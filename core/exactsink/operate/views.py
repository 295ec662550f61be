"""What the sinks of a job hold in doubt. Only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import InDoubt
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.log import Log
from exactsink.protocol.sinks import Sink, committer_of

__all__ = ["Holding", "holdings"]


@dataclass(frozen=True, slots=True)
class Holding:
    """A participant that a sink holds, and whose it is: decided, undecided (the sweep's), or foreign."""

    sink: str
    participant: InDoubt
    whose: str


def holdings(history: JobHistory, sinks: Mapping[str, Sink], log: Log) -> Sequence[Holding]:
    """List what the sinks hold in doubt. Changes nothing."""
    found = []
    standing = log.standing_claims
    for sink in sinks.values():
        decided = log.decision.refs(sink.name) if log.decision else frozenset()
        committer = committer_of(sink, history.job, log)
        try:
            for held in committer.in_doubt():
                known = "undecided" if (held.generation, held.token) in standing else "foreign"
                found.append(Holding(sink.name, held, "decided" if held.ref in decided else known))
        finally:
            committer.close()
    return found

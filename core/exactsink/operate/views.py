"""What the sinks of a job hold in doubt. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import InDoubt
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.log import Log, knows_all
from exactsink.protocol.sinks import Sink, committer_of

__all__ = ["Holding", "holdings"]


@dataclass(frozen=True, slots=True)
class Holding:
    """A participant that a sink holds, and whose it is: decided, undecided (the sweep's), or foreign."""

    sink: str
    participant: InDoubt
    whose: str


def holdings(history: JobHistory, sinks: Mapping[str, Sink], log: Log, whole: Callable[[], Log]) -> Sequence[Holding]:
    """List what the sinks hold in doubt; `whole()` reads the log back to its first claim. Changes nothing."""
    found = []
    for sink in sinks.values():
        decided = log.decision.refs(sink.name) if log.decision else frozenset()
        committer = committer_of(sink, history.job, log)
        try:
            listed = list(committer.in_doubt())
            log = log if knows_all(log, listed) else whole()
            standing = log.standing_claims
            for held in listed:
                known = "undecided" if (held.generation, held.token) in standing else "foreign"
                found.append(Holding(sink.name, held, "decided" if held.ref in decided else known))
        finally:
            committer.close()
    return found

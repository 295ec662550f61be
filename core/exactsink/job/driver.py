"""A driver of one history, as a job's process and an operator's command make it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping

from exactsink.job.history import JobHistory
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Coordinator, State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.waiting import backoff

__all__ = ["coordinator_of"]

_COMMIT_ATTEMPTS = 8


def coordinator_of(
    history: JobHistory,
    sinks: Mapping[str, Sink],
    journal: Journal,
    events: Events,
    save_state: Callable[[State], None],
    role: str = "",
) -> Coordinator:
    """Make a coordinator that has not claimed yet; its claims name this process, and in which role."""
    return Coordinator(
        history.job,
        sinks,
        journal,
        events,
        driver=f"{role}{platform.node()}:{os.getpid()}",
        retry=Retry(_COMMIT_ATTEMPTS, backoff),
        save_state=save_state,
    )

"""A driver of one history, as a job's process and an operator's command make it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping

from exactsink.commit import Retry
from exactsink.coordinator import Coordinator
from exactsink.events import Events
from exactsink.home import Home
from exactsink.journal.journal import Journal
from exactsink.pause import pause
from exactsink.sinks import Sink
from exactsink.state import State

__all__ = ["coordinator_of"]

_COMMIT_ATTEMPTS = 8


def coordinator_of(
    home: Home,
    sinks: Mapping[str, Sink],
    journal: Journal,
    events: Events,
    save_state: Callable[[State], None],
    role: str = "",
) -> Coordinator:
    """Make a coordinator that has not claimed yet; its claims name this process, and in which role."""
    return Coordinator(
        home.job,
        sinks,
        journal,
        events,
        driver=f"{role}{platform.node()}:{os.getpid()}",
        retry=Retry(_COMMIT_ATTEMPTS, pause),
        save_state=save_state,
    )

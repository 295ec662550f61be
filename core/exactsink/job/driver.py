"""Make the driver of one history, for a job's process or an operator's command."""

from __future__ import annotations

import getpass
import logging
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import closing, suppress

import exactsink
from exactsink.contract import Retryable
from exactsink.job.history import JobHistory
from exactsink.job.stop import driver_name
from exactsink.observe.state import Heartbeat
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Coordinator, State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import fenced_by
from exactsink.protocol.journal.records import Identity
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.storage import storage_errors
from exactsink.toolkit.waiting import backoff

__all__ = ["Driver", "coordinator_of", "identity_of", "user_name"]

_COMMIT_ATTEMPTS = 8


class Driver:
    """A coordinator with its journal and its heartbeat. It has not claimed the job yet."""

    def __init__(self, history: JobHistory, sinks: Mapping[str, Sink], events: Events) -> None:
        with storage_errors(history.folder, f"the job's folder {history.folder} can't be made"):
            history.make()
        self._history = history
        self._events = events
        last = history.last_times()
        self.heartbeat = Heartbeat(
            history.state(), on_beat=lambda: events.report("beat", level=logging.DEBUG, last=last.read())
        )
        self.journal = history.journal(backoff)
        self.coordinator = coordinator_of(history, sinks, self.journal, events, self.heartbeat.write)

    def check_fenced(self) -> None:
        """Raise Fenced if another driver has claimed the job since this one did, because a new claim would fence it.

        A journal that does not answer now proves nothing: the next start reads it again.
        """
        mine = self.coordinator.last_claim
        if mine is None:
            return
        with closing(self._history.journal(backoff)) as journal, suppress(Retryable, OSError):
            fenced = fenced_by(journal.read(), mine)
            if fenced is not None:
                self._events.report("fenced", level=logging.WARNING, generation=mine.generation, by=fenced.why)
                raise fenced

    def close(self) -> None:
        """Record that the driver has ended, and close the sinks' connections. Rolls nothing back. Idempotent."""
        if self._history.run is None:  # a run is over once it is complete: its sinks never change
            self.coordinator.leave()
        self.heartbeat.close()
        self.coordinator.close()
        self.journal.close()


def coordinator_of(
    history: JobHistory,
    sinks: Mapping[str, Sink],
    journal: Journal,
    events: Events,
    save_state: Callable[[State], None],
    role: str = "",
) -> Coordinator:
    """Make a coordinator that has not claimed the job yet. Its claims name this process, and its `role`."""
    return Coordinator(
        history.job,
        sinks,
        journal,
        events,
        driver=f"{role}{driver_name()}",
        retry=Retry(_COMMIT_ATTEMPTS, backoff),
        save_state=save_state,
        identity=identity_of(history),
    )


def identity_of(history: JobHistory) -> Identity:
    """Return the identity that a claim of this process on this history keeps."""
    return Identity(
        history.job,
        run=history.run or "",
        checkpoint=str(history.checkpoint),
        release=exactsink.__version__,
        host=platform.node(),
        user=user_name(),
    )


def user_name() -> str:
    """Return the name of the operating system's user, or its number if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"

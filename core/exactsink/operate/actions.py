"""What an operator does to a job without its source: recover what is in doubt, or adopt another checkpoint.

Each claims first, so a driver that still runs is fenced, and each keeps an action in the journal.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from exactsink.contract import ConfigError, Fenced, InDoubtError
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.driver import coordinator_of, user_name
from exactsink.job.history import JobHistory
from exactsink.protocol.coordinator import State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Action
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.waiting import backoff

__all__ = ["LIVE_SECONDS", "Operator"]

LIVE_SECONDS = 60.0
"""A driver whose heartbeat is younger than this may live: only `--take-over` claims its job."""

_ROLE = "operator on "


class Operator:
    """Acts on one history: a job's, or a batch run's."""

    def __init__(self, history: JobHistory, sinks: Mapping[str, Sink], checkpoint: Checkpoint, events: Events) -> None:
        self._history = history
        self._sinks = sinks
        self._checkpoint = checkpoint
        self._events = events
        self._journal = history.journal(backoff)

    def read(self) -> Log:
        """Read the journal."""
        return self._journal.read()

    def close(self) -> None:
        """Let go of the journal. Idempotent."""
        self._journal.close()

    def recover(self, *, take_over: bool, sweep_tokens: frozenset[str] = frozenset()) -> None:
        """Commit the last decided epoch again, and abort what is undecided: as a driver's start does, without Spark.

        `sweep_tokens` are foreign tokens whose work goes too. Idempotent. Raises InDoubtError when votes are lost: only
        the job has their rows. Raises Fenced while a driver may live, unless `take_over`.
        """
        log = self._journal.read()
        if not log.claims:
            return
        self._refuse_live(take_over, log)
        with self._claimed(log.query_id or "", sweep_tokens):
            swept = f", and swept the tokens {', '.join(sorted(sweep_tokens))}" if sweep_tokens else ""
            self._keep("recover", f"recovered by an operator{swept}")

    def adopt(self, *, take_over: bool) -> tuple[int, int]:
        """Let the journal go on with the checkpoint that stands there now, or with the next new one where none does.

        The last decision is committed first. Gives the next batch and the epoch that it will be.
        """
        log = self._journal.read()
        query_id = self._checkpoint.query_id() or ""
        if log.claims and log.query_id == query_id:
            raise ConfigError(
                "there is nothing to adopt",
                why=f"the journal belongs to query {query_id}, and so does the checkpoint"
                if query_id
                else "the journal is bound to no query, and takes the next one",
                next="exactsink run JOB.toml",
            )
        self._refuse_live(take_over, log)
        batch = self._checkpoint.next_batch()
        with self._claimed((log.query_id or "") if log.claims else query_id, frozenset()):
            claim = self._journal.adopt(query_id, batch, self._journal.log.claims[-1].driver)
            self._events.report("adopted", query_id=query_id or "the next one", base=claim.base)
            self._keep(
                "adopt",
                f"adopted {'query ' + query_id if query_id else 'the next new query'}: its batch {batch} is epoch "
                f"{claim.first_epoch}",
            )
        return batch, claim.first_epoch

    @contextmanager
    def _claimed(self, query_id: str, sweep_tokens: frozenset[str]) -> Iterator[None]:
        """Claim, commit again and sweep, then hold the claim. Raises InDoubtError when something is lost."""
        journal, events = self._journal, self._events
        coordinator = coordinator_of(self._history, self._sinks, journal, events, self._save, _ROLE)
        with closing(coordinator):
            lost = coordinator.start(query_id, self._done(), sweep_tokens)
            if lost:
                raise InDoubtError(
                    f"{sum(lost.values())} votes of {', '.join(lost)} are lost, and only the job has their rows",
                    why="the store proves that they never became visible",
                    next="start the job: exactsink run JOB.toml (for a batch run: call write again)",
                )
            yield

    def _done(self) -> Callable[[int], bool]:
        journal, checkpoint = self._journal, self._checkpoint
        if self._history.run is not None:
            return lambda epoch: journal.log.is_complete
        return lambda epoch: checkpoint.is_epoch_done(epoch, journal.log)

    def _save(self, state: State) -> None:
        """Record how far the job is, and that nobody drives it."""
        self._history.folder.mkdir(parents=True, exist_ok=True)
        self._history.state().write(replace(state, heartbeat=0.0))

    def _keep(self, command: str, outcome: str) -> None:
        self._journal.keep(Action(_user(), command, reason="", outcome=outcome))
        self._events.report("noted", text=outcome)

    def _refuse_live(self, take_over: bool, log: Log) -> None:
        state = self._history.state().read()
        if state is None or (age := time.time() - state.heartbeat) >= LIVE_SECONDS:
            return
        if take_over:
            self._events.report("taken_over", generation=log.last_generation)
            return
        raise Fenced(
            f"driver {state.driver} may be running: its heartbeat is {age:.0f} s old",
            why="this command claims the job, which would stop that driver",
            next=f"stop it first, wait until the heartbeat is {LIVE_SECONDS:.0f} s old, or repeat with --take-over",
        )


def _user() -> str:
    """Return who acts, and on which machine."""
    return f"{user_name()} on {platform.node()}"

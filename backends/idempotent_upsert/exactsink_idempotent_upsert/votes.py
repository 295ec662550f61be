"""The votes of strategy `direct`, kept beside the rows that their tasks wrote, until the epoch is marked.

A database that went back (a failover to a replica that lags, a file from a copy) lost a task's rows and its vote
together, as one transaction wrote both. Executors import this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from exactsink.contract import InDoubt, Txn

__all__ = ["VOTES", "VOTE_TABLE", "Votes"]

VOTE_TABLE = "exactsink_votes"
VOTES = 2
"""The version of committables whose votes are kept; those of version 1, of an earlier release, never were."""

_AT_ONCE = 500


class Votes:
    """The table of votes, in the transaction of `run`: it runs a statement with its values, each at a `%s`."""

    def __init__(self, run: Callable[..., Sequence[Any]]) -> None:
        self._run = run

    def add(self, participant: str) -> None:
        self._run(f"INSERT INTO {VOTE_TABLE} VALUES (%s, %s)", participant, time.time())

    def of(self, job: str, sink: str) -> Iterator[InDoubt]:
        """List the participants of one sink that have voted, and are not marked."""
        prefix = f"{job}.{sink}."  # of characters that LIKE takes as they are
        for participant, voted_at in self._run(f"SELECT * FROM {VOTE_TABLE} WHERE participant LIKE %s", f"{prefix}%"):
            if participant.startswith(prefix) and (txn := Txn.parse(participant)) is not None:
                yield InDoubt.of(txn, age_seconds=max(0.0, time.time() - voted_at))

    def forget(self, participants: Iterable[str]) -> None:
        left = list(participants)
        while some := left[:_AT_ONCE]:
            places = ", ".join(["%s"] * len(some))
            self._run(f"DELETE FROM {VOTE_TABLE} WHERE participant IN ({places})", *some)
            del left[:_AT_ONCE]

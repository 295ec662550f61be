"""Ask brokers until they answer: through broken connections, moving coordinators and partitions without a leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kafka.errors import KafkaError

from exactsink.contract import Fatal
from exactsink_kafka.clients import Connection
from exactsink_kafka.wire.channel import Channel
from exactsink_kafka.wire.failures import explained

__all__ = ["MOVING", "Asker"]

MOVING = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: another try finds it."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25

Key = TypeVar("Key")
Reported = TypeVar("Reported")


class Asker:
    """Holds the channel to a cluster, and replaces it when it broke. Every request must be one that may be repeated."""

    def __init__(self, connection: Connection, client_id: str, patience_seconds: float) -> None:
        self.connection = connection
        self._client_id = client_id
        self._patience = patience_seconds
        self._channel: Channel | None = None
        self._coordinators: dict[str, int] = {}

    def use(self, doing: str, call: Callable[[Channel], Reported], until: float | None = None) -> Reported:
        """Call with a channel that is connected, again with a new one when it broke, until a moment (monotonic).

        Raises Retryable then; Fatal at once where another try can't help.
        """
        until = self._until() if until is None else until
        pause = _FIRST_PAUSE
        while True:
            try:
                return call(self._connected(until))
            except (KafkaError, OSError) as error:
                self.close()
                failed = explained(doing, error, self.connection)
                if isinstance(failed, Fatal) or time.monotonic() + pause >= until:
                    raise failed from error
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def persist(
        self,
        doing: str,
        keys: Iterable[Key],
        again: frozenset[int],
        once: Callable[[Channel, Sequence[Key]], dict[Key, tuple[int, Reported]]],
    ) -> dict[Key, tuple[int, Reported]]:
        """Ask `once` for (code, answer) of each key, and again for those with a code that another try may change.

        What is left after the patience keeps its last code.
        """
        until = self._until()
        reported: dict[Key, tuple[int, Reported]] = {}
        left = list(dict.fromkeys(keys))
        pause = _FIRST_PAUSE
        while left:
            reported |= self.use(doing, lambda channel, left=left: once(channel, left), until)  # type: ignore[misc]
            left = [key for key in left if reported[key][0] in again]
            if left and time.monotonic() + pause >= until:
                break
            if left:
                time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return reported

    def coordinators(self, channel: Channel, ids: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
        """Find the coordinators of ids: brokers by id, and error codes by id where there is none now."""
        unknown = [one for one in dict.fromkeys(ids) if one not in self._coordinators]
        codes = {}
        for one, code, broker in channel.find(unknown) if unknown else ():
            if code == 0:
                self._coordinators[one] = broker
            else:
                codes[one] = code
        return {one: self._coordinators[one] for one in ids if one not in codes}, codes

    def forget(self, codes: Iterable[tuple[str, int]]) -> None:
        """Forget the coordinators that said of an id that they are none."""
        for one, code in codes:
            if code in MOVING:
                self._coordinators.pop(one, None)

    def close(self) -> None:
        """Let go of the connections. Idempotent; the next use opens others."""
        channel, self._channel = self._channel, None
        self._coordinators.clear()
        if channel is not None:
            channel.close()

    def _connected(self, until: float) -> Channel:
        if self._channel is None:
            self._channel = Channel(self.connection, self._client_id, max(until - time.monotonic(), 0.1))
        return self._channel

    def _until(self) -> float:
        return time.monotonic() + self._patience

"""What librdkafka complains of, as errors of ours: what happened, why, and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from exactsink.contract import ExactsinkError, Fatal, Retryable

__all__ = ["ENDED", "ENDED_NEXT", "FULL", "UNDECIDED", "Failure", "Failures"]

UNDECIDED = "the epoch is undecided: no row of it shows, and it is written again"
ENDED = "the transaction is no longer this attempt's"
ENDED_NEXT = (
    "nothing, if another attempt of the task or a new driver ended it; where transactions time out (see the brokers' "
    "log), raise transaction_timeout_seconds, or make batches smaller"
)

FULL = -184  # _QUEUE_FULL
_LOGIN = frozenset({-169, 33, 34, 58})  # _AUTHENTICATION, mechanism, state, refused
_FOLLOWING = frozenset({-152, -151, -150, -172})
"""_PURGE_QUEUE, _PURGE_INFLIGHT, _FATAL, _STATE: what else went wrong makes librdkafka say them."""

_ALL_DOWN = -187
_CAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """librdkafka's error code and text, and the topic it was about."""

    code: int
    text: str
    topic: str | None = None


class Failures:
    """What went wrong so far with a producer's rows, filled by its callbacks or events; it knows no producer."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._first: Failure | None = None
        self._last_word: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Remember that a row was not delivered, or that the producer is done for: the task has to fail."""
        if self._first is None or (self._first.code in _FOLLOWING and failure.code not in _FOLLOWING):
            self._first = failure

    def hear(self, failure: Failure) -> None:
        """Remember what may pass by itself, a lost connection say: it reports why a later timeout came."""
        if self._last_word is None or failure.code != _ALL_DOWN:  # which says less than what came before it
            self._last_word = failure

    def check(self, ask: Callable[[], Failure | None]) -> None:
        """Raise when something went wrong. `ask` is asked what the transaction failed of, where rows just followed."""
        if self._first is not None:
            raise self._explained(self._first, ask)

    def cause(
        self, failure: Failure, hear: Callable[[float], None], ask: Callable[[], Failure | None]
    ) -> ExactsinkError:
        """Explain one that a call gave; where it only follows another, that one may be heard of a moment later."""
        until = time.monotonic() + _CAUSE_SECONDS
        hear(0)
        while failure.code in _FOLLOWING and self._first is None and time.monotonic() < until:
            hear(0.01)
        return self._explained(failure, ask)

    def _explained(self, failure: Failure, ask: Callable[[], Failure | None]) -> ExactsinkError:
        if failure.code in _FOLLOWING and (self._first is None or self._first.code in _FOLLOWING):
            reported = ask()
            if reported is not None:
                self.add(reported)
        return self._error(failure)

    def _error(self, failure: Failure) -> ExactsinkError:
        if self._first is not None and failure.code in _FOLLOWING:
            failure = self._first
        heard = self._last_word
        if heard is not None and heard.code in _LOGIN:
            failure = heard
        why = failure.text if heard is None or heard is failure else f"{failure.text} (before that: {heard.text})"
        topic = "the topic" if failure.topic is None else f"topic {failure.topic}"
        for kind in _KINDS:
            if failure.code in kind.codes:
                what, next_ = kind.what.format(topic=topic), kind.next.format(topic=topic)
                return kind.error(f"{self._doing}: {what}", why=f"{why}; {UNDECIDED}", next=next_)
        return Retryable(
            f"{self._doing}: {topic if failure.topic else 'the cluster'} did not take the rows",
            why=f"{why}; {UNDECIDED}",
            next="see that the brokers of bootstrap_servers are up, then start the job again",
        )

    def late(self, what: str, why: str) -> ExactsinkError:
        """Explain that time ran out, and what was heard of the brokers meanwhile."""
        heard = self._last_word
        if heard is not None and heard.code in _LOGIN:
            return self._error(heard)
        return Retryable(
            f"{self._doing}: {what}",
            why=f"{why if heard is None else f'{why}; the last word of the connection: {heard.text}'}; {UNDECIDED}",
            next="see that the brokers of bootstrap_servers are up and reachable from executors; where they are slow, "
            "give more time with transaction_timeout_seconds",
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What some codes mean; `{topic}` stands for the topic."""

    codes: frozenset[int]
    error: type[ExactsinkError]
    what: str
    next: str


_KINDS = (
    _Kind(frozenset({-144, -172, 47, 48, 49, 90}), Retryable, ENDED, ENDED_NEXT),  # _FENCED, _STATE, the brokers' words
    _Kind(
        frozenset({10, 18}),
        Fatal,
        "a record is too large for {topic}",
        "raise max.message.bytes of {topic} (kafka-configs.sh --alter --add-config max.message.bytes=N), and "
        'producer = {{"message.max.bytes" = N}} of the sink; or make rows smaller',
    ),
    _Kind(
        frozenset({-188, 3}),
        Fatal,
        "there is no {topic}",
        "make it (kafka-topics.sh --create), or fix the name; where it is there, give the sink's user DESCRIBE on it",
    ),
    _Kind(
        frozenset({-190}),
        Fatal,
        "{topic} has no such partition as a row names",
        "fix the column `partition`, or add partitions (kafka-topics.sh --alter --partitions N)",
    ),
    _Kind(
        frozenset({29, 31, 53}),  # topic, cluster, transactional id
        Fatal,
        "the sink's user may not write to {topic}",
        "give them WRITE and DESCRIBE on the topic, and on transactional ids by prefix: kafka-acls.sh --add --producer "
        "--allow-principal User:NAME --topic TOPIC --transactional-id JOB.SINK. --resource-pattern-type prefixed",
    ),
    _Kind(_LOGIN, Fatal, "the brokers refuse the login", "fix sasl_mechanism, sasl_username or sasl_password"),
    _Kind(
        frozenset({50}),
        Fatal,
        "the brokers keep no transaction for that long",
        "lower transaction_timeout_seconds, or raise transaction.max.timeout.ms of the brokers",
    ),
    _Kind(
        # the topic's name, the timestamp, the request, its format, a policy, the codec, the record
        frozenset({17, 32, 42, 43, 44, 76, 87}),
        Fatal,
        "{topic} refuses a record",
        "fix the rows (a compacted topic takes none without a key), or the settings of {topic}",
    ),
)

"""Kafka's error codes, and the reaction to each: another try, a proof, or an error with its fix.

Brokers' codes are positive, librdkafka's own are negative.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

from kafka import errors as kafka_errors

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.remedies import Remedies

__all__ = ["ENDED", "ENDED_NEXT", "UNDECIDED", "Failure", "Failures", "explained", "is_refusal", "named", "refused"]

# Codes in answers to the driver's requests

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, CLUSTER_NOT_AUTHORIZED = 1, 3, 5, 31
UNSUPPORTED_VERSION, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, ID_NOT_AUTHORIZED = 35, 48, 49, 53
GROUP_NOT_AUTHORIZED = 30
STATE_LOG, OFFSETS = "__transaction_state", "__consumer_offsets"
"""Kafka's own topics: for transactional ids, and for the offsets of groups, where the sink's mark is."""
UNKNOWN_TOPIC_ID, UNKNOWN_TRANSACTIONAL_ID = 100, 105
NOT_AUTHORIZED = frozenset({29, GROUP_NOT_AUTHORIZED, CLUSTER_NOT_AUTHORIZED, ID_NOT_AUTHORIZED, 58, 65})
NO_SUCH_TOPIC = frozenset({UNKNOWN_TOPIC, 17})  # INVALID_TOPIC_EXCEPTION: a name that no topic may have
MOVING = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: another try finds the coordinator."""
COMING = MOVING | {LEADER_NOT_AVAILABLE, 7}  # REQUEST_TIMED_OUT
NOT_ALLOWED = frozenset({29, CLUSTER_NOT_AUTHORIZED})  # to describe a topic, or settings
ENDING = MOVING | {51}  # CONCURRENT_TRANSACTIONS: markers are being written
OUT_OF_ORDER = 45
TAKEN = frozenset({0, 46})
"""Success, and DUPLICATE_SEQUENCE_NUMBER: the leader already has a batch that was sent again."""
AGAIN = ENDING | {UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, 6, 7, 13, 19, 20, 56, 74, 75}
"""The leader may accept the batch later, or has it already. The batch is sent again with its old sequence number."""
LEADERLESS = frozenset({LEADER_NOT_AVAILABLE, 6, 9, 56, 74, 75, 76, 78})
MOVED_ON = frozenset({47, INVALID_PRODUCER_ID_MAPPING, 90})
"""INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED: the coordinator knows only later uses."""
NOT_OPEN = MOVED_ON | {0, INVALID_TXN_STATE}
NOT_MINE = MOVED_ON | {INVALID_TXN_STATE, 22, 120}
"""Also INVALID_TXN_STATE, ILLEGAL_GENERATION, TRANSACTION_ABORTABLE: this transaction accepts no more offsets."""

# Codes that librdkafka reports for rows

_ALL_BROKERS_DOWN = -187
_LOGIN = frozenset({-169, 33, 34, 58})  # _AUTHENTICATION, mechanism, state, refused
_FOLLOWING = frozenset({-152, -151, -150, -172})
"""_PURGE_QUEUE, _PURGE_INFLIGHT, _FATAL, _STATE: librdkafka reports them because of another failure."""
_TOO_LARGE = frozenset({10, 18})  # MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE
_CAUSE_SECONDS = 1.0

UNDECIDED = "the epoch is not decided: none of its rows is visible, and the next start writes them all"
ENDED = "the transaction is no longer this attempt's"
ENDED_NEXT = (
    "nothing, if another attempt of the task or a new driver ended it; if transactions time out (see the brokers' "
    "log), raise transaction_timeout_seconds or make batches smaller"
)

_REFUSALS = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.AuthorizationError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.KafkaConfigurationError,
    kafka_errors.UnsupportedSaslMechanismError,
    ssl.SSLError,
    FileNotFoundError,
)


def named(code: int) -> str:
    """Name a broker's error code, with its number: `INVALID_TXN_STATE (48)`."""
    kind = kafka_errors.for_code(code)
    name = getattr(kind, "message", None) if kind.errno == code else None
    return f"{name or 'error'} ({code})"


def is_refusal(error: BaseException | None) -> TypeGuard[Exception]:
    """Return whether another try can't help, because a login, a certificate or a local file is wrong."""
    while error is not None:
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return False
        if isinstance(error, _REFUSALS):
            return True
        error = error.__cause__ or error.__context__
    return False


def explained(doing: str, error: Exception, options: KafkaOptions, *, upgrading: bool = False) -> ExactsinkError:
    """Return the error of a failed request: Fatal if another try can't help, else Retryable.

    `upgrading`: the brokers' versions differ.
    """
    cause = error.__cause__ or error
    why = str(cause) if isinstance(cause, kafka_errors.KafkaError) else f"{type(cause).__name__}: {cause}"
    what = f"{doing}: Kafka at {options.bootstrap_servers}"
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        if upgrading:
            fix = "finish the upgrade of every broker, then start the job again"
            return Retryable(f"{what} has brokers of different versions, and one is too old", why=str(error), next=fix)
        return Fatal(f"{what} is too old", why=str(error), next="use brokers of Apache Kafka 3.7 or newer")
    if is_refusal(error):
        fix = "set security_protocol, sasl_* and ssl_* as the listener at bootstrap_servers requires"
        return Fatal(f"{what} refused the connection", why=why, next=fix)
    if isinstance(error, kafka_errors.KafkaTimeoutError) and error.__cause__ is not None:
        why = f"{error}; {why}"
    fix = "check that its brokers run and that bootstrap_servers names them; then start the job again"
    return Retryable(f"{what} did not answer", why=why, next=fix)


def refused(
    doing: str, code: int, options: KafkaOptions, *, id: str = "", topic: str = "", group: str = ""
) -> ExactsinkError:
    """Return the error for a broker's code that further tries did not change.

    The code came from the coordinator of `id`, else from the coordinator of `group`; else it is about `topic`.
    """
    fixes = Remedies(options)
    if code == GROUP_NOT_AUTHORIZED and group:
        what = f"{doing}: the sink's user may not use offsets of group {group}"
        return Fatal(what, why=named(code), next=fixes.allow("Read", "--group", group))
    if code in NOT_AUTHORIZED and id and (code == ID_NOT_AUTHORIZED or not topic):
        fix = fixes.allow_ids(".".join([*id.split(".")[:2], ""]))
        return Fatal(f"{doing}: the sink's user may not use transactional id {id}", why=named(code), next=fix)
    if code in NOT_AUTHORIZED and topic:
        what = f"{doing}: the sink's user may not read topic {topic}, which shows whether its rows were committed"
        return Fatal(what, why=named(code), next=fixes.allow("Read Write Describe", "--topic", topic))
    about = id or (f"group {group}" if group else topic)
    if code == UNSUPPORTED_VERSION:
        return Fatal(doing, why=named(code), next="use brokers of Apache Kafka 3.7 or newer")
    what = f"{doing}: a broker refused it" + (f" for {about}" if about else "")
    fix = "start the job again; if it fails again, see the brokers' logs"
    if code in MOVING and (id or group):
        shown = fixes.show_partitions("unavailable", "--topic", STATE_LOG if id else OFFSETS)
        fix = f"start the brokers that this shows, then the job: {shown}"
    return Retryable(what, why=f"it answered {named(code)}", next=fix)


@dataclass(frozen=True, slots=True)
class Failure:
    """librdkafka's error code and text, the topic it was about, and the bytes of the row's key and value."""

    code: int
    text: str
    topic: str | None = None
    size: int = 0


class Failures:
    """Collects the failures of a producer's rows from its callbacks. It holds no reference to the producer."""

    def __init__(self, doing: str, options: KafkaOptions) -> None:
        self.doing = doing
        self._fixes = Remedies(options)
        self._first: Failure | None = None
        self._sizes: list[int] = []  # of rows in batches that a broker finds too large
        self._last_word: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Remember that a row was not delivered, or that the producer can't continue: the task has to fail."""
        self._sizes += [failure.size] if failure.code in _TOO_LARGE else []
        if self._first is None or (self._first.code in _FOLLOWING and failure.code not in _FOLLOWING):
            self._first = failure

    def note(self, failure: Failure) -> None:
        """Remember a failure that may pass by itself, for example a lost connection: it explains a later timeout."""
        if self._last_word is None or failure.code != _ALL_BROKERS_DOWN:  # it explains less than the failure before
            self._last_word = failure

    def check(self, ask: Callable[[], Failure | None]) -> None:
        """Raise if a row failed. If rows failed only because the transaction did, `ask` returns its failure."""
        if self._first is not None:
            raise self._explained(self._first, ask)

    def cause(
        self, failure: Failure, hear: Callable[[float], None], ask: Callable[[], Failure | None]
    ) -> ExactsinkError:
        """Return the error of a failed call. If it only follows another failure, wait up to a second for that one."""
        until = time.monotonic() + _CAUSE_SECONDS
        hear(0)
        while failure.code in _FOLLOWING and self._first is None and time.monotonic() < until:
            hear(0.01)
        return self._explained(failure, ask)

    def late(self, what: str, why: str) -> ExactsinkError:
        """Return the error for a timeout, with the last error of the connection."""
        heard = self._last_word
        if heard is not None and heard.code in _LOGIN:
            return self._error(heard)
        return Retryable(
            f"{self.doing}: {what}",
            why=f"{why if heard is None else f'{why}; the last error of the connection: {heard.text}'}; {UNDECIDED}",
            next="check that executors can reach the brokers of bootstrap_servers; if brokers are slow, "
            "raise transaction_timeout_seconds",
        )

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Replace Retryable, which means a missing answer, by the error that `late` returns."""
        try:
            yield
        except Retryable as error:
            raise self.late(error.what.removeprefix(f"{self.doing}: "), error.why or "no answer came") from error

    def _explained(self, failure: Failure, ask: Callable[[], Failure | None]) -> ExactsinkError:
        follows = failure.code in _FOLLOWING and (self._first is None or self._first.code in _FOLLOWING)
        if follows and (found := ask()) is not None:
            self.add(found)
        return self._error(failure)

    def _error(self, failure: Failure) -> ExactsinkError:
        if self._first is not None and failure.code in _FOLLOWING:
            failure = self._first
        heard = self._last_word
        if heard is not None and heard.code in _LOGIN:
            failure = heard
        why = failure.text if heard is None or heard is failure else f"{failure.text} (before that: {heard.text})"
        about = "the cluster" if failure.topic is None else f"topic {failure.topic}"
        kind: type[ExactsinkError] = Retryable
        what, fix = f"{about} did not take the rows", _UP
        topic = failure.topic or self._fixes.options.topic
        for codes, error, words, fixed in _KINDS:
            if failure.code in codes:
                kind, what = error, words.format(topic="the topic" if topic is None else f"topic {topic}")
                fix = fixed if isinstance(fixed, str) else fixed(self._fixes, topic or "TOPIC")
        if failure.code in _TOO_LARGE:
            sizes = self._sizes or [failure.size]
            why += f": a row of {max(sizes)} bytes" + (f", the largest of {len(sizes)}" if len(sizes) > 1 else "")
            what = what.replace("a record", "a batch of records") if len(sizes) > 1 else what
            fix = self._fixes.take_larger_records(topic or "TOPIC", by_broker=bool(self._sizes))
        return kind(f"{self.doing}: {what}", why=f"{why}; {UNDECIDED}", next=fix)


_UP = "check that the brokers of bootstrap_servers are up, then start the job again"
_KINDS: tuple[tuple[frozenset[int], type[ExactsinkError], str, str | Callable[[Remedies, str], str]], ...] = (
    (MOVED_ON | {-144, -172, 45, 48, 59, 120}, Retryable, ENDED, ENDED_NEXT),  # _FENCED, _STATE, the brokers' words
    (_TOO_LARGE, Fatal, "a record is too large for {topic}", ""),
    (frozenset({32}), Fatal, "{topic} refuses a record's timestamp", Remedies.set_clock),
    (frozenset({-188, 3}), Fatal, "there is no {topic}", Remedies.show_or_make_topic),
    (frozenset({-190}), Fatal, "a row names a partition that {topic} does not have", Remedies.add_partitions),
    (frozenset({29, 31, 53}), Fatal, "the sink's user may not write to {topic}", Remedies.allow_writing),
    (_LOGIN, Fatal, "the brokers refuse the login", "fix sasl_mechanism, sasl_username or sasl_password"),
    (frozenset({50}), Fatal, "the brokers keep no transaction for that long", Remedies.keep_transactions),
    # the topic's name, the request, its format, a policy, the codec, the record
    (frozenset({17, 42, 43, 44, 76, 87}), Fatal, "{topic} refuses a record", Remedies.take_such_records),
)
"""By librdkafka's codes for rows: the class of the error, its text, and the fix."""

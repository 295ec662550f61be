"""What a task says of librdkafka's errors: the first cause, and whether trying again may help."""

from __future__ import annotations

import pytest

from exactsink.contract import ExactsinkError, Fatal, Retryable
from exactsink_kafka.errors import Failure, Failures
from exactsink_kafka.options import KafkaOptions

QUIET = (lambda seconds: None, lambda: None)  # time passes, and no transaction says what it failed of
PURGED, STATE, FENCED, TRANSPORT, LOGIN, ALL_DOWN = -152, -172, -144, -195, -169, -187


def noted() -> Failures:
    return Failures("doing", KafkaOptions(bootstrap_servers="b:9092", topic="my-topic"))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (10, Fatal, "max.message.bytes"),
        (-188, Fatal, "kafka-topics.sh --bootstrap-server b:9092 --create --topic my-topic"),
        (-190, Fatal, "column `partition`"),
        (29, Fatal, "kafka-acls.sh"),
        (53, Fatal, "kafka-acls.sh"),
        (LOGIN, Fatal, "sasl_password"),
        (50, Fatal, "transaction.max.timeout.ms"),
        (87, Fatal, "fix the rows"),
        (FENCED, Retryable, "another attempt"),
        (90, Retryable, "another attempt"),
        (TRANSPORT, Retryable, "brokers"),
        (-192, Retryable, "brokers"),
    ],
)
def test_each_kind_says_whether_to_try_again_and_what_to_fix(code: int, kind: type[ExactsinkError], words: str) -> None:
    error = noted().cause(Failure(code, "broker's words", "my-topic"), *QUIET)
    assert type(error) is kind
    assert error.what.startswith("doing: ")
    assert "broker's words" in error.why
    assert "no row of it shows" in error.why
    assert words in error.next


def test_what_only_follows_gives_way_to_its_cause_whichever_comes_first() -> None:
    for codes in ([PURGED, 10], [10, PURGED], [STATE, 10, FENCED]):
        failures = noted()
        for code in codes:
            failures.add(Failure(code, str(code), "t"))
        with pytest.raises(Fatal, match="too large for topic t"):
            failures.check(QUIET[1])


def test_a_transaction_is_asked_what_it_failed_of_where_its_rows_only_followed() -> None:
    failures = noted()
    failures.check(QUIET[1])  # nothing went wrong
    failures.add(Failure(PURGED, "purged", "t"))
    with pytest.raises(Fatal, match="may not write"):
        failures.check(lambda: Failure(29, "not authorized"))
    direct = noted()
    direct.add(Failure(10, "too large", "t"))
    with pytest.raises(Fatal, match="too large"):
        direct.check(lambda: pytest.fail("the cause is known"))


def test_a_call_refused_because_of_the_state_waits_for_the_cause_a_moment() -> None:
    failures = noted()

    def heard(seconds: float) -> None:
        if seconds > 0:
            failures.add(Failure(10, "too large", "t"))

    assert isinstance(failures.cause(Failure(STATE, "state"), heard, QUIET[1]), Fatal)


def test_a_refused_login_explains_what_it_makes_impossible() -> None:
    failures = noted()
    failures.note(Failure(LOGIN, "bad password"))
    failures.note(Failure(ALL_DOWN, "all brokers are down"))
    assert "bad password" in failures.cause(Failure(TRANSPORT, "transport"), *QUIET).why
    assert isinstance(failures.late("late", "no time"), Fatal)
    lost = noted()
    lost.note(Failure(TRANSPORT, "connection refused"))
    error = lost.late("late", "no time")
    assert isinstance(error, Retryable)
    assert "connection refused" in error.why

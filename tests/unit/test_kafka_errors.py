"""What a task says of librdkafka's errors: the first cause, and whether trying again may help."""

from __future__ import annotations

import pytest

from exactsink.contract import Fatal, Retryable
from exactsink_kafka.errors import Failure, Failures, refused
from exactsink_kafka.options import KafkaOptions

QUIET = (lambda seconds: None, lambda: None)  # time passes, and no transaction says what it failed of
PURGED, STATE, FENCED, TRANSPORT, LOGIN, ALL_DOWN = -152, -172, -144, -195, -169, -187


def noted() -> Failures:
    return Failures("doing", KafkaOptions(bootstrap_servers="b:9092", topic="my-topic"))


FATAL = {10: "max.message.bytes", -188: "kafka-topics.sh --bootstrap-server b:9092 --create --topic my-topic"}
FATAL |= {-190: "column `partition`", 29: "kafka-acls.sh", 53: "kafka-acls.sh", LOGIN: "sasl_password"}
FATAL |= {50: "transaction.max.timeout.ms", 87: "fix the rows"}
RETRYABLE = {FENCED: "another attempt", 90: "another attempt", TRANSPORT: "brokers", -192: "brokers"}


@pytest.mark.parametrize("code", [*FATAL, *RETRYABLE])
def test_each_kind_says_whether_to_try_again_and_what_to_fix(code: int) -> None:
    error = noted().cause(Failure(code, "broker's words", "my-topic"), *QUIET)
    assert type(error) is (Fatal if code in FATAL else Retryable)
    assert error.what.startswith("doing: ")
    assert "broker's words" in error.why
    assert "none of its rows is visible" in error.why
    assert (FATAL | RETRYABLE)[code] in error.next


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


def test_whose_coordinator_is_away_is_named_with_what_brings_it_back() -> None:
    options, mark = KafkaOptions(bootstrap_servers="b:9092"), {"topic": "orders", "group": "exactsink.a.b"}
    for one, log in [("", "__consumer_offsets"), ("a.b.mark", "__transaction_state")]:
        error = refused("read the sink's mark", 15, options, id=one, **mark)
        assert isinstance(error, Retryable)
        assert error.what.endswith(f" for {one or 'group exactsink.a.b'}")
        assert f"--describe --topic {log} --unavailable-partitions" in error.next

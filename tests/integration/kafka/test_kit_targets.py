"""Where the conformance kit finds its brokers, and what it says of those that are of no use."""

from __future__ import annotations

import pytest

from exactsink.contract import ConfigError
from exactsink_kafka import conformance
from exactsink_kafka.conformance import targets


def test_the_kit_says_which_brokers_it_needs_and_which_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    with pytest.raises(ConfigError, match="no Kafka for the kit: KAFKA_BOOTSTRAP_SERVERS is not set") as none:
        targets()
    assert "3.7" in none.value.next
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(conformance, "_TRIAL_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"no Kafka for the kit at 127\.0\.0\.1:9") as none:
        targets()
    assert "KAFKA_BOOTSTRAP_SERVERS" in none.value.next

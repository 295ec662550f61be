"""What preflight makes of the facts of a cluster of several brokers, and of old ones: as values, no broker runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exactsink.contract import Finding, JobContext, Retryable
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight.entry import STATE_LOG, cluster_findings, state_log_findings
from exactsink_kafka.preflight.facts import GroupFacts, TopicFacts
from exactsink_kafka.preflight.grants import group_findings, id_findings, topic_grants
from exactsink_kafka.preflight.remedies import Remedies
from exactsink_kafka.preflight.times import Times, evidence_findings, timeout_findings
from exactsink_kafka.preflight.topic import copies_findings, partition_findings
from exactsink_kafka.vote import Transaction
from exactsink_kafka.wire import Cluster, Wire

MENDS = Remedies("kafka-1:9092", "User:shop", secured=False)
DAY = 86_400.0


def topic(replicas: int = 3, insync: int = 3, leaderless: tuple[int, ...] = ()) -> TopicFacts:
    return TopicFacts("orders", 6, replicas, insync, leaderless)


def configs(**given: str) -> Mapping[str, str]:
    usual = {"min_insync_replicas": "2", "cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"}
    return {name.replace("_", "."): value for name, value in (usual | given).items()}


def only(found: list[Finding]) -> tuple[str, str, str]:
    [finding] = found
    return finding.severity, finding.message, finding.fix


# Copies of a topic's rows


def test_three_copies_of_which_two_must_be_written_are_good() -> None:
    assert list(partition_findings(topic(), 2, MENDS)) == []
    assert list(copies_findings(topic(), configs(), 3, MENDS)) == []
    assert list(copies_findings(topic(1, 1), configs(min_insync_replicas="1"), 1, MENDS)) == []


def test_one_copy_where_there_are_more_brokers_is_a_warning() -> None:
    severity, message, fix = only(list(copies_findings(topic(1, 1), configs(min_insync_replicas="1"), 2, MENDS)))
    assert (severity, "one copy of its partitions (of 2 brokers)" in message) == ("warning", True)
    assert fix.startswith("kafka-reassign-partitions.sh --bootstrap-server kafka-1:9092 ")


def test_a_row_that_counts_as_written_with_one_copy_is_a_warning() -> None:
    severity, message, fix = only(list(copies_findings(topic(), configs(min_insync_replicas="1"), 3, MENDS)))
    assert (severity, "min.insync.replicas is 1 with 3 replicas" in message) == ("warning", True)
    assert fix == (
        "kafka-configs.sh --bootstrap-server kafka-1:9092 --alter --entity-type topics --entity-name orders "
        "--add-config min.insync.replicas=2"
    )


@pytest.mark.parametrize(
    ("facts", "min_insync", "message", "fix"),
    [
        (topic(3, 1), 2, "1 of 3 replicas in sync, min.insync.replicas is 2", "--under-min-isr-partitions"),
        (topic(2, 2), 3, "min.insync.replicas is 3, a partition has 2 replicas", "min.insync.replicas=1"),
        (topic(3, 3, (1, 4)), 2, "2 of 6 partitions have no leader (1, 4)", "--unavailable-partitions"),
    ],
)
def test_partitions_that_can_not_be_written_are_errors(
    facts: TopicFacts, min_insync: int, message: str, fix: str
) -> None:
    severity, said, fix = only(list(partition_findings(facts, min_insync, MENDS)))
    assert (severity, message in said, fix in fix) == ("error", True, True), said


# Old clusters, and where transactions are kept


@pytest.mark.parametrize(
    ("end_txn", "feature", "message", "fix"),
    [
        (4, 0, "version 4 of EndTxn", "Kafka 4.0 or newer"),
        (5, 0, "transaction.version is 0", "upgrade --feature transaction.version=2"),
    ],
)
def test_a_cluster_that_knows_no_such_transactions_is_an_error(
    end_txn: int, feature: int, message: str, fix: str
) -> None:
    severity, said, fix = only(list(cluster_findings(Cluster("c", (1,), end_txn, feature), MENDS)))
    assert (severity, message in said, fix in fix) == ("error", True, True)


@pytest.mark.parametrize("feature", [1, 2])
def test_both_versions_of_transactions_are_good(feature: int) -> None:
    assert list(cluster_findings(Cluster("c", (1,), 5, feature), MENDS)) == []


@pytest.mark.parametrize(
    ("replicas", "min_isr", "brokers", "absent", "severity", "message"),
    [
        ("3", "2", 1, True, "error", f"{STATE_LOG} can't be made"),
        ("3", "1", 3, True, "warning", f"{STATE_LOG}: min.insync.replicas is 1 with 3 replicas"),
        ("1", "1", 3, False, "warning", f"{STATE_LOG}: one copy"),
    ],
)
def test_the_state_of_transactions_is_judged_by_settings_where_it_can_not_be_seen(
    replicas: str, min_isr: str, brokers: int, absent: bool, severity: str, message: str
) -> None:
    settings = {"transaction.state.log.replication.factor": replicas, "transaction.state.log.min.isr": min_isr}
    found = only(list(state_log_findings(settings, brokers, absent, MENDS)))
    assert (found[0], message in found[1]) == (severity, True), found


def test_a_good_state_log_gives_no_finding() -> None:
    settings = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    assert list(state_log_findings(settings, 3, True, MENDS)) == []
    assert list(state_log_findings(settings, 2, False, MENDS)) == []  # made when there were three


# Times, the least of all brokers


def test_the_strictest_broker_counts() -> None:
    allowed = {
        1: {"transaction.max.timeout.ms": "900000", "transactional.id.expiration.ms": "5000"},
        2: {"transaction.max.timeout.ms": "60000", "transactional.id.expiration.ms": "604800000"},
    }
    assert Times.of(allowed) == Times(longest_timeout=60, id_expiration=5)


def test_ids_that_are_forgotten_before_their_transaction_ends_are_an_error() -> None:
    options = KafkaOptions(bootstrap_servers="kafka-1:9092", topic="orders")
    severity, message, fix = only(list(timeout_findings(options, Times(900, 899))))
    assert (severity, "forget a transactional id after 899 s" in message) == ("error", True)
    assert fix.startswith("transactional.id.expiration.ms=604800000 ")
    assert list(timeout_findings(options, Times(900, 900))) == []


@pytest.mark.parametrize(
    ("ids", "kept", "warned"),
    [
        (7 * DAY, None, False),
        (6 * DAY, None, True),
        (6 * DAY, {}, False),
        (6 * DAY, {"retention_ms": "604800000"}, False),
        (6 * DAY, {"retention_ms": "604799000"}, True),
        (6 * DAY, {"retention_bytes": "1000"}, True),
        (6 * DAY, {"cleanup_policy": "compact"}, True),
        (6 * DAY, {"cleanup_policy": "", "retention_ms": "1000"}, False),
    ],
)
def test_the_end_of_a_transaction_is_known_by_its_id_or_by_its_rows(
    ids: float, kept: dict[str, str] | None, warned: bool
) -> None:
    reported = None if kept is None else configs(**kept)
    found = list(evidence_findings(JobContext("shop", "orders", ""), Times(900, ids), "orders", reported, MENDS))
    assert [finding.severity for finding in found] == ["warning"] * warned


# What our user may do


@pytest.mark.parametrize(
    ("may", "missing"),
    [
        ({"READ", "WRITE", "DESCRIBE", "ALTER"}, None),
        ({"READ", "DESCRIBE"}, "Write"),
        ({"WRITE", "DESCRIBE"}, "Read"),
        ({"WRITE", "READ"}, "Describe"),
    ],
)
def test_what_is_missing_on_a_topic_is_named_with_its_grant(may: set[str], missing: str | None) -> None:
    facts = TopicFacts("orders", 6, 3, 3, may=frozenset(may))
    found = list(topic_grants(facts, MENDS))
    if missing is None:
        assert found == []
    else:
        assert only(found)[2] == (
            "kafka-acls.sh --bootstrap-server kafka-1:9092 --add --allow-principal User:shop "
            f"--operation {missing} --topic orders"
        )


class Answering(Wire):
    """A wire whose broker answers every end with one code."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.asked: list[Transaction] = []

    def end(self, transactions: object, *, commit: bool) -> list[int]:
        assert isinstance(transactions, list)
        assert not commit
        self.asked += transactions
        return [self._code]


def test_the_probe_of_ids_names_no_transaction_that_there_is() -> None:
    wire = Answering(49)
    assert list(id_findings(JobContext("shop", "orders", ""), wire, MENDS)) == []
    [asked] = wire.asked
    assert asked == Transaction("shop.orders.g0-0.s0", 2**63 - 1, 0)


def test_a_coordinator_that_does_not_answer_is_tried_again_and_not_taken_for_a_grant() -> None:
    with pytest.raises(Retryable, match="error 15"):
        list(id_findings(JobContext("shop", "orders", ""), Answering(15), MENDS))
    severity, _, fix = only(list(id_findings(JobContext("shop", "orders", ""), Answering(53), MENDS)))
    assert severity == "error"
    assert fix.endswith("--transactional-id shop.orders.g --resource-pattern-type prefixed")


def test_a_group_wants_read_and_no_members() -> None:
    good = GroupFacts("lag of shop", (), frozenset({"READ", "DESCRIBE"}))
    assert list(group_findings(good, "lag of shop", MENDS)) == []
    unread = GroupFacts("lag of shop", (), frozenset({"DESCRIBE"}))
    for facts in (None, unread):
        severity, _, fix = only(list(group_findings(facts, "lag of shop", MENDS)))
        assert (severity, fix.endswith("--operation Read --operation Describe --group 'lag of shop'")) == (
            "error",
            True,
        )


def test_commands_for_a_secured_cluster_want_an_administrator_s_login() -> None:
    secured = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "o'hara"}
    options = KafkaOptions.model_validate(
        {"bootstrap_servers": "kafka-1:9093", "topic": "orders", "sasl_password": "s3cr3t", **secured}
    )
    assert Remedies.of(options).acl(["Read"], "--topic", "orders") == (
        "kafka-acls.sh --bootstrap-server kafka-1:9093 --command-config admin.properties --add --allow-principal "
        "'User:o'\"'\"'hara' --operation Read --topic orders"
    )

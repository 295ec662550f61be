"""What preflight makes of what clusters say of themselves, also of old ones and of many brokers: no broker runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pytest

from exactsink.contract import Finding, JobContext, Retryable
from exactsink_kafka.errors import OFFSETS, STATE_LOG
from exactsink_kafka.messages import Cluster
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight import Checks, Layout
from exactsink_kafka.remedies import Remedies
from exactsink_kafka.transactions import Transaction
from exactsink_kafka.wire import Wire

DAY = 86_400.0
OPTIONS = KafkaOptions(bootstrap_servers="kafka-1:9092", topic="orders")
ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
MAY = frozenset({"READ", "WRITE", "DESCRIBE", "ALTER"})
LIMIT, EXPIRY = "transaction.max.timeout.ms", "transactional.id.expiration.ms"


def checks(brokers: int = 3, pause: float = 7 * DAY) -> Checks:
    return Checks(OPTIONS, JobContext("shop", "orders", "", longest_pause_seconds=pause), brokers)


def topic(replicas: int = 3, insync: int = 3, leaderless: tuple[int, ...] = (), may: frozenset[str] = MAY) -> Layout:
    return Layout("orders", 6, replicas, insync, leaderless, may)


def configs(**given: str) -> Mapping[str, str]:
    usual = {"min_insync_replicas": "2", "cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"}
    usual |= {"max_message_bytes": "1048588"}
    return {name.replace("_", "."): value for name, value in (usual | given).items()}


def one(found: Iterable[Finding], severity: str, message: str, fix: str) -> None:
    [finding] = found
    assert (finding.severity, message in finding.message, fix in finding.fix) == (severity, True, True), finding


def test_three_copies_of_which_two_must_be_written_are_good_and_so_is_one_of_one_broker() -> None:
    assert list(checks().topic(topic(), configs(), ROWS)) == []
    assert list(checks(1).topic(topic(1, 1), configs(min_insync_replicas="1"), ROWS)) == []


@pytest.mark.parametrize(
    ("facts", "given", "severity", "message", "fix"),
    [
        (topic(3, 1), {}, "error", "1 of 3 replicas in sync, min.insync.replicas is 2", "--under-min-isr-partitions"),
        (topic(2, 2), {"min_insync_replicas": "3"}, "error", "is 3, a partition has 2 replicas", "insync.replicas=1"),
        (topic(3, 3, (1, 4)), {}, "error", "2 of 6 partitions have no leader (1, 4)", "--unavailable-partitions"),
        (topic(may=MAY - {"WRITE"}), {}, "error", "lacks Write", "--operation Write --topic orders"),
        (topic(1, 1), {"min_insync_replicas": "1"}, "warning", "one copy of its partitions (of 3", "kafka-reassign-"),
        (topic(), {"min_insync_replicas": "1"}, "warning", "is 1 with 3", "--add-config min.insync.replicas=2"),
        (topic(), {"unclean_leader_election_enable": "true"}, "warning", "unclean", "election.enable=false"),
        (topic(), {"max_message_bytes": "5000"}, "warning", "5000 bytes at once", '{"message.max.bytes" = 4936}'),
        (topic(), {"cleanup_policy": "compact"}, "warning", "is compacted", "cleanup.policy=delete"),
    ],
)
def test_what_a_topic_refuses_or_can_lose_is_found(
    facts: Layout, given: dict[str, str], severity: str, message: str, fix: str
) -> None:
    one(checks().topic(facts, configs(**given), ROWS), severity, message, fix)


def test_a_cluster_that_knows_no_such_transactions_is_an_error() -> None:
    def found(end_txn: int, feature: int) -> list[Finding]:
        return list(checks().cluster(Cluster("c", (1,), end_txn, feature)))

    one(found(2, 0), "error", "version 2 of EndTxn", "Kafka 4.0 or newer")
    assert found(3, 0) == found(5, 0) == found(5, 1) == found(6, 2) == []
    assert [Cluster("c", (1,), *one).raises for one in [(4, 0), (4, 1), (5, 0), (5, 1)]] == [False, False, False, True]


def test_where_an_end_does_not_fence_its_task_brokers_have_to_refuse_late_rows() -> None:
    name = "transaction.partition.verification.enable"
    for settings in ({}, {name: "false"}):
        one(list(checks().late_rows([{name: "true"}, settings])), "error", "accepts rows after that", f"{name}=true")
    one(list(checks().late_rows([None])), "error", "can't read that it refuses them", "DescribeConfigs")
    assert list(checks().late_rows([{name: "true"}])) == []


def test_the_state_of_transactions_is_judged_by_settings_where_it_can_not_be_seen() -> None:
    def found(replicas: str, min_isr: str, brokers: int, absent: bool) -> list[Finding]:
        settings = {"transaction.state.log.replication.factor": replicas, "transaction.state.log.min.isr": min_isr}
        return list(checks(brokers).not_seen(STATE_LOG, settings, absent, (1, 1)))

    one(found("3", "2", 1, True), "error", f"{STATE_LOG} can't be made", "")
    one(found("3", "1", 3, True), "warning", f"{STATE_LOG}: min.insync.replicas is 1 with 3 replicas", "")
    one(found("1", "1", 3, False), "warning", f"{STATE_LOG}: one copy", "")
    assert found("3", "2", 3, True) == found("3", "2", 2, False) == []  # the second was made when there were three


OWN = [
    (3, 1, "error", "can't be made: offsets.topic.replication.factor is 3", "offsets.topic.replication.factor=1 in"),
    (1, 3, "warning", "one copy of its partitions (of 3 brokers): a lost disk can lose the mark", "kafka-reassign-"),
    (2, 3, "warning", "2 copies of its partitions (of 3 brokers): a lost disk can lose the mark", "kafka-reassign-"),
    (3, 3, "warning", "min.insync.replicas is 1 with 3 replicas: a lost disk can lose the mark", "insync.replicas=2"),
]


@pytest.mark.parametrize(("replicas", "brokers", "severity", "message", "fix"), OWN)
def test_what_keeps_the_mark_has_to_be_as_safe_as_the_rows(
    replicas: int, brokers: int, severity: str, message: str, fix: str
) -> None:
    settings = {"offsets.topic.replication.factor": str(replicas), "min.insync.replicas": "1"}
    one(checks(brokers).not_seen(OFFSETS, settings, True, (3, 2)), severity, message, fix)
    if severity == "warning":
        one(
            checks().copies(Layout(OFFSETS, 50, replicas, 1), configs(min_insync_replicas="1"), (3, 2)),
            severity,
            message,
            fix,
        )
    assert list(checks().copies(Layout(OFFSETS, 50, 3, 3), configs(), (3, 2))) == []


def test_ids_that_are_forgotten_before_their_transaction_ends_are_an_error() -> None:
    short = checks(pause=0)
    one(short.times(900, 899, None), "error", "a transactional id after 899 s", f"{EXPIRY}=604800000 ")
    one(short.times(899, 900, None), "error", f"allow 899 ({LIMIT})", f"{LIMIT}=900000 in every")
    assert list(short.times(900, 900, None)) == []


LONG = [{}, {"retention_ms": "604800000"}, {"cleanup_policy": "", "retention_ms": "1000"}]
SHORT = [None, {"retention_ms": "604799000"}, {"retention_bytes": "1000"}, {"cleanup_policy": "compact"}]


@pytest.mark.parametrize("kept", [*LONG, *SHORT])
def test_the_end_of_a_transaction_is_known_by_its_id_or_by_its_rows(kept: dict[str, str] | None) -> None:
    topic = None if kept is None else configs(**kept)
    found = list(checks().times(900, 6 * DAY, topic))
    assert [finding.severity for finding in found] == ["warning"] * (kept in SHORT)
    assert list(checks().times(900, 7 * DAY, topic)) == []


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


def test_the_probe_of_ids_names_no_transaction_that_there_is_and_takes_no_silence_for_a_grant() -> None:
    wire = Answering(49)
    assert list(checks().ids(wire)) == []
    assert wire.asked == [Transaction("shop.orders.none", 2**63 - 1, 0)]
    with pytest.raises(Retryable, match="COORDINATOR_NOT_AVAILABLE"):
        list(checks().ids(Answering(15)))
    one(checks().ids(Answering(53)), "error", "shop.orders.: no row", "-id shop.orders. --resource-pattern-type pref")


def test_commands_for_a_secured_cluster_want_an_administrator_s_login_and_are_quoted() -> None:
    secured = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "o'hara"}
    options = KafkaOptions.model_validate({"bootstrap_servers": "kafka-1:9093", "sasl_password": "s3cr3t", **secured})
    assert Remedies(options).allow("Read", "--topic", "orders") == (
        "kafka-acls.sh --bootstrap-server kafka-1:9093 --command-config admin.properties --add --allow-principal "
        "'User:o'\"'\"'hara' --operation Read --topic orders"
    )


SAFE = " --replication-factor 3 --config min.insync.replicas=2"
COPIES = [(1, " --replication-factor 1"), (2, " --replication-factor 2"), (5, SAFE), (None, "")]


@pytest.mark.parametrize(("brokers", "copies"), COPIES)
def test_the_command_for_a_topic_asks_for_as_many_copies_as_there_can_be(brokers: int | None, copies: str) -> None:
    command = f"kafka-topics.sh --bootstrap-server kafka-1:9092 --create --topic orders --partitions 6{copies}"
    assert Remedies(OPTIONS).make_topic("orders", brokers) == command

"""What a cluster is asked before the first row: can it give what the sink asks for, and which command fixes it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

import pyarrow as pa
from confluent_kafka import KafkaError

from exactsink.contract import Finding, JobContext
from exactsink_kafka.ids import UNBOUNDED_SLOTS
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight.facts import REFUSED, Facts, TopicFacts
from exactsink_kafka.preflight.grants import group_findings, id_findings, topic_grants
from exactsink_kafka.preflight.reach import check_settings, reached
from exactsink_kafka.preflight.remedies import Remedies
from exactsink_kafka.preflight.times import Times, budget_findings, evidence_findings, timeout_findings
from exactsink_kafka.preflight.topic import copies_findings, partition_findings, rows_findings
from exactsink_kafka.wire import END_TXN_VERSION, Cluster, Wire

__all__ = ["STATE_LOG", "cluster_findings", "findings", "row_findings", "state_log_findings"]

STATE_LOG = "__transaction_state"


def findings(
    options: KafkaOptions,
    ctx: JobContext,
    wire: Wire,
    schema: pa.Schema,
    participants: int | None,
    *,
    patience_seconds: float = 10.0,
) -> Iterator[Finding]:
    """Find what keeps such rows from the topic, or the sink from its promise; errors first, in a fixed order.

    Changes nothing, save that a new cluster makes its own topics for transactions and groups when it is first asked
    of one. `participants` is the most that an epoch can have, None when nothing bounds it.
    What our user may not ask for is a warning. Raises ConfigError for settings that librdkafka does not take and PEM
    files that can't be read here, Fatal for TLS and logins that don't fit, Retryable when the brokers don't answer.
    """
    client_id = f"{ctx.job}.{ctx.sink}.preflight"
    check_settings(options, client_id)
    facts = Facts(reached(options.connection, client_id, patience_seconds), patience_seconds)
    remedies, cluster = Remedies.of(options), wire.cluster()
    found = list(cluster_findings(cluster, remedies))
    if not found:  # the rest is for a cluster that knows such transactions
        found += _cluster_and_topic(options, ctx, facts, cluster, schema, remedies)
        if not any(finding.severity == "error" and STATE_LOG in finding.message for finding in found):
            found += id_findings(ctx, wire, remedies)
        found += row_findings(options, schema, participants)
        found += _writer(options)
        if (group := options.report_offsets_to) is not None:
            found += group_findings(facts.group(group), group, remedies)
    yield from sorted(found, key=lambda finding: finding.severity != "error")


def cluster_findings(cluster: Cluster, remedies: Remedies) -> Iterator[Finding]:
    """Look whether the cluster ends transactions as the sink must."""
    if cluster.end_txn < END_TXN_VERSION:
        message = (
            f"the brokers end transactions by version {cluster.end_txn} of EndTxn, this sink needs {END_TXN_VERSION}: "
            "Apache Kafka 4.0 or newer"
        )
        yield Finding("error", message, "upgrade every broker to Apache Kafka 4.0 or newer")
    elif cluster.transaction_version < 1:
        message = f"the cluster's feature transaction.version is {cluster.transaction_version}, this sink needs 1 or 2"
        yield Finding(
            "error", message, remedies.command("kafka-features", "upgrade", "--feature", "transaction.version=2")
        )


def _cluster_and_topic(
    options: KafkaOptions, ctx: JobContext, facts: Facts, cluster: Cluster, schema: pa.Schema, remedies: Remedies
) -> Iterator[Finding]:
    brokers = len(cluster.brokers)
    configs = yield from _topic(options, facts, brokers, schema, remedies)
    yield from budget_findings(options, ctx)
    allowed = facts.broker_configs(cluster.brokers)
    if allowed is None:
        message = (
            f"{remedies.principal} may not ask for the brokers' settings: how long transactions may live is unknown"
        )
        yield Finding("warning", message, remedies.acl(["DescribeConfigs"], "--cluster"))
    else:
        times = Times.of(allowed)
        yield from timeout_findings(options, times)
        yield from evidence_findings(ctx, times, options.topic, configs, remedies)
    yield from _state_log(facts, allowed, brokers, remedies)


def _topic(
    options: KafkaOptions, facts: Facts, brokers: int, schema: pa.Schema, remedies: Remedies
) -> Generator[Finding, None, Mapping[str, str] | None]:
    """Look at the topic, and give its settings where they are known."""
    name = options.topic
    if name is None:
        message = "each row names its own topic: none of them can be looked at before"
        yield Finding("warning", message, 'topic = "..." in the sink\'s options, where there is one alone')
        return None
    topic = facts.topic(name)
    if not isinstance(topic, TopicFacts):
        yield _no_topic(name, topic, brokers, remedies)
        return None
    yield from topic_grants(topic, remedies)
    configs = facts.topic_configs(name)
    if configs is None:
        message = f"{remedies.principal} may not ask for the settings of topic {name}: they are not checked"
        yield Finding("warning", message, remedies.acl(["DescribeConfigs"], "--topic", name))
        yield from partition_findings(topic, 1, remedies)
        return None
    yield from partition_findings(topic, int(configs["min.insync.replicas"]), remedies)
    yield from copies_findings(topic, configs, brokers, remedies)
    yield from rows_findings(options, topic, configs, schema, remedies)
    return configs


def _no_topic(name: str, error: KafkaError, brokers: int, remedies: Remedies) -> Finding:
    if error.code() in REFUSED:
        message = f"topic {name}: {remedies.principal} may not know whether there is one"
        return Finding("error", message, remedies.acl(["Write", "Read", "Describe"], "--topic", name))
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        copies = min(brokers, 3)
        words = ("--create", "--topic", name, "--partitions", "6", "--replication-factor", str(copies))
        safe = ("--config", "min.insync.replicas=2") if copies > 2 else ()
        message = f"there is no topic {name}, and brokers are not relied on to make it"
        return Finding("error", message, remedies.command("kafka-topics", *words, *safe))
    return Finding(
        "error", f"topic {name}: {error.str()}", remedies.command("kafka-topics", "--describe", "--topic", name)
    )


def _state_log(
    facts: Facts, allowed: Mapping[int, Mapping[str, str]] | None, brokers: int, remedies: Remedies
) -> Iterator[Finding]:
    """Look at the topic that decides transactions; where our user may not, at the settings that it was made by."""
    topic = facts.topic(STATE_LOG)
    if isinstance(topic, TopicFacts) and (configs := facts.topic_configs(STATE_LOG)) is not None:
        yield from partition_findings(topic, int(configs["min.insync.replicas"]), remedies)
        yield from copies_findings(topic, configs, brokers, remedies)
    elif allowed is not None:
        absent = isinstance(topic, KafkaError) and topic.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        yield from state_log_findings(next(iter(allowed.values())), brokers, absent, remedies)


def state_log_findings(configs: Mapping[str, str], brokers: int, absent: bool, remedies: Remedies) -> Iterator[Finding]:
    """Judge by a broker's settings how the state of transactions is kept, or will be."""
    replicas = int(configs["transaction.state.log.replication.factor"])
    if replicas > brokers and absent:
        message = (
            f"{STATE_LOG} can't be made: transaction.state.log.replication.factor is {replicas}, the cluster has "
            f"{brokers} brokers: no transaction can begin"
        )
        fix = f"start {replicas} brokers; or transaction.state.log.replication.factor={brokers} in every broker's"
        yield Finding("error", message, f"{fix} server.properties, then restart them one by one")
        return
    topic = TopicFacts(STATE_LOG, partitions=1, replicas=replicas, insync=replicas)
    min_insync = configs["transaction.state.log.min.isr"]
    yield from copies_findings(topic, {"min.insync.replicas": min_insync}, brokers, remedies)


def row_findings(options: KafkaOptions, schema: pa.Schema, participants: int | None) -> Iterator[Finding]:
    """Compare the rows' columns with the options, and an epoch's participants with the pool of ids.

    The pool needs no finding of its own: ids of former claims are forgotten after transactional.id.expiration.ms, and
    some hundred bytes each at a coordinator are little even when a job starts anew every few minutes for a week.
    """
    if options.topic is not None and "topic" in schema.names:
        message = f"the rows have a column topic, and it is not used: topic = {options.topic!r} in the options wins"
        yield Finding("warning", message, "take the column, or the option, out")
    if participants is None:
        most = UNBOUNDED_SLOTS // options.ids_per_participant
        message = (
            f"nothing bounds how many participants an epoch has, and a round has {UNBOUNDED_SLOTS} transactional ids "
            f"({options.ids_per_participant} for each of {most}): with more, tasks may fence each other and fail"
        )
        yield Finding("warning", message, f"max_participants = {most} in the config")


def _writer(options: KafkaOptions) -> Iterator[Finding]:
    """Load what the fast writer needs, where it was asked for by name. Executors look again when a task begins."""
    if options.writer != "fast":
        return
    try:
        from exactsink_kafka.producers.library import Library  # numpy and the library may be missing

        Library()
    except ImportError as error:
        fix = 'writer = "auto"; or pip install --only-binary :all: confluent-kafka numpy'
        yield Finding("error", f'writer = "fast" can\'t be used here: {error}', fix)

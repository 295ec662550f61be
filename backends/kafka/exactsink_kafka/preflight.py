"""Checks of a cluster before the first row: find faults that fail every epoch or can lose decided rows, with fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from exactsink.contract import Finding, JobContext, Retryable
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka import errors
from exactsink_kafka.connect import check_settings, connected
from exactsink_kafka.errors import OFFSETS, STATE_LOG
from exactsink_kafka.messages import KEEPS, Cluster
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.remedies import BATCH_BYTES as _BATCH
from exactsink_kafka.remedies import Remedies, duration, kept_seconds
from exactsink_kafka.transactions import NO_PRODUCER, Transaction
from exactsink_kafka.wire import Wire

__all__ = ["Checks", "Layout", "findings"]

_KEPT = {
    STATE_LOG: ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    OFFSETS: ("offsets.topic.replication.factor", "min.insync.replicas"),
}
"""Kafka's own topics that the promise depends on, and the brokers' settings by which they are created."""
_NEEDS = {"Write": "to write rows", "Read": "to prove later whether they were committed", "Describe": "to find it"}
"""The sink's operations on a topic. In Kafka, Write and Read include Describe, unless a deny rule removes it."""
_LIMIT, _EXPIRY = "transaction.max.timeout.ms", "transactional.id.expiration.ms"
_VERIFIED = "transaction.partition.verification.enable"
"""A setting of brokers since Kafka 3.6; true by default."""
_UPGRADE = "upgrade every broker to Apache Kafka 4.0 or newer, then to transaction.version 2"
_START = "start the brokers that hold them: "
T = TypeVar("T")
Settings = Mapping[str, str]


def findings(
    options: KafkaOptions, ctx: JobContext, wire: Wire, schema: pa.Schema | None, *, patience_seconds: float = 10.0
) -> Iterator[Finding]:
    """Check that such rows can be written, and that the cluster keeps the promise; errors first, in a fixed order.

    Without a `schema`, no columns are checked. Changes nothing, except that a new cluster creates its own topics for
    transactions and groups at the first query. A setting that the sink's user may not read is a warning.
    Raises ConfigError for settings that librdkafka refuses and PEM files that can't be read here, Fatal if TLS or the
    login does not fit the listener, Retryable if the brokers don't answer, or if the only errors are brokers that are
    down or leaders that are not elected yet.
    """
    client_id = f"{ctx.job}.{ctx.sink}.preflight"
    check_settings(options, client_id)
    queries = _Queries(connected(options, client_id, patience_seconds), patience_seconds)
    cluster = wire.cluster()
    checks = Checks(options, ctx, len(cluster.brokers))
    found = list(checks.cluster(cluster))
    if not found:  # the other checks need a cluster that knows such transactions
        found += _look(checks, queries, cluster, schema)
        if not any(finding.severity == "error" and STATE_LOG in finding.message for finding in found):
            found += checks.ids(wire)
    serious = [finding for finding in found if finding.severity == "error"]
    if serious and all(finding.fix.startswith(_START) for finding in serious):  # an election, or a broker's restart
        raise Retryable(serious[0].message, why="brokers are down, or no leader is elected yet", next=serious[0].fix)
    yield from sorted(found, key=lambda finding: finding.severity != "error")


@dataclass(frozen=True, slots=True)
class Layout:
    """A topic. `replicas` and `insync`: the fewest of any partition. `may`: the operations that the sink's user has."""

    name: str
    partitions: int
    replicas: int
    insync: int
    leaderless: tuple[int, ...] = ()
    may: frozenset[str] = frozenset()


def _look(checks: Checks, queries: _Queries, cluster: Cluster, schema: pa.Schema | None) -> Iterator[Finding]:
    """Check the topic, the brokers' settings, and Kafka's own topics."""
    topic, configs, there = checks.options.topic, None, None
    if topic is None:
        fix = 'topic = "..." in the sink\'s options, if all rows go to one topic'
        yield Finding("warning", "each row names its own topic, so exactsink checks no topic before the start", fix)
    elif not isinstance(there := queries.topic(topic), Layout):
        yield checks.no_topic(topic, there)
    else:
        configs = queries.settings("TOPIC", topic)
        yield from checks.topic(there, configs, schema)
    yield from checks.budget()
    of_brokers = [queries.settings("BROKER", str(broker)) for broker in cluster.brokers]
    yield from () if cluster.raises else checks.late_rows(of_brokers)
    allowed = [settings for settings in of_brokers if settings is not None]
    if len(allowed) < len(of_brokers):
        yield checks.unread("the brokers' settings, so how long transactions may live is unknown", "--cluster")
    else:
        limit, expiry = (min(int(one[name]) for one in allowed) / 1000 for name in (_LIMIT, _EXPIRY))
        yield from checks.times(limit, expiry, configs)
        yield from checks.marks(min(int(one["offsets.retention.minutes"]) for one in allowed) * 60)
    like = (there.replicas, int((configs or {}).get("min.insync.replicas", 1))) if isinstance(there, Layout) else (1, 1)
    for name in _KEPT if checks.options.marked_topic else (STATE_LOG,):
        log = queries.topic(name)
        if isinstance(log, Layout) and (made := queries.settings("TOPIC", name)) is not None:
            if name == STATE_LOG:  # in the other, only the group's partition matters
                yield from checks.partitions(log, int(made["min.insync.replicas"]))
            yield from checks.copies(log, made, like)
        elif allowed:
            absent = isinstance(log, KafkaError) and log.code() == errors.UNKNOWN_TOPIC
            yield from checks.not_seen(name, allowed[0], absent, like)


class Checks:
    """Compares a cluster's answers with the sink's needs. Only `ids` sends a request."""

    def __init__(self, options: KafkaOptions, ctx: JobContext, brokers: int) -> None:
        self.options = options
        self._ctx = ctx
        self._brokers = brokers
        self._fixes = Remedies(options)

    def cluster(self, cluster: Cluster) -> Iterator[Finding]:
        """Check that the cluster can end transactions by a version that the sink uses."""
        if cluster.end_txn < KEEPS[0]:
            message = f"the brokers have at most version {cluster.end_txn} of EndTxn, but the sink needs {KEEPS[0]}"
            yield Finding("error", message, _UPGRADE)

    def late_rows(self, of_brokers: Sequence[Settings | None]) -> Iterator[Finding]:
        """Check that brokers refuse rows after a transaction's end, if the end does not fence the task."""
        if any(one is None or one.get(_VERIFIED) != "true" for one in of_brokers):
            message = (
                "transaction.version is 0, so a transaction's end does not fence its task, and a broker accepts rows "
            )
            fix = f"{_VERIFIED}=true in every broker's server.properties; or {_UPGRADE}"
            if None in of_brokers:
                fix = self._fixes.allow("DescribeConfigs", "--cluster")
            yield Finding("error", f"{message}after that end, or exactsink can't read that it refuses them", fix)

    def no_topic(self, name: str, error: KafkaError) -> Finding:
        if error.code() in errors.NOT_ALLOWED:
            message = f"topic {name}: {self._fixes.principal} may not see whether it exists"
            return Finding("error", message, self._fixes.allow(" ".join(_NEEDS), "--topic", name))
        if error.code() == errors.UNKNOWN_TOPIC:
            message = f"there is no topic {name}, and exactsink does not rely on brokers to create it"
            return Finding("error", message, self._fixes.make_topic(name, self._brokers))
        show = self._fixes.command("kafka-topics", "--describe", "--topic", name)
        return Finding("error", f"topic {name}: {error.str()}", show)

    def unread(self, what: str, *resource: str) -> Finding:
        message = f"{self._fixes.principal} may not read {what}"
        return Finding("warning", message, self._fixes.allow("DescribeConfigs", *resource))

    def topic(self, topic: Layout, configs: Settings | None, schema: pa.Schema | None) -> Iterator[Finding]:
        """Check that rows can be written to the topic and stay there. `configs`: None if our user may not read them."""
        name, missing = topic.name, [need for need in _NEEDS if need.upper() not in topic.may]
        if missing:
            what = ", ".join(f"{need} {_NEEDS[need]}" for need in missing)
            fix = self._fixes.allow(" ".join(missing), "--topic", name)
            yield Finding("error", f"topic {name}: {self._fixes.principal} lacks {what}", fix)
        if configs is None:
            yield self.unread(f"the settings of topic {name}, so they are not checked", "--topic", name)
        yield from self.partitions(topic, 1 if configs is None else int(configs["min.insync.replicas"]))
        if configs is not None:
            yield from self.copies(topic, configs)
            yield from self._sizes(name, configs)
        if configs is not None and schema is not None:
            yield from self._cleanup(name, configs, schema)

    def partitions(self, topic: Layout, min_insync: int) -> Iterator[Finding]:
        """Check that every partition accepts rows."""
        name = topic.name
        if topic.leaderless:
            which = ", ".join(map(str, topic.leaderless))
            message = f"topic {name}: {len(topic.leaderless)} of {topic.partitions} partitions have no leader ({which})"
            yield Finding("error", message, f"{_START}{self._fixes.show_partitions('unavailable', '--topic', name)}")
        if min_insync > topic.replicas:
            message = f"min.insync.replicas is {min_insync}, a partition has {topic.replicas} replicas"
            fix = self._fixes.set_topic(name, f"min.insync.replicas={max(topic.replicas - 1, 1)}")
            yield Finding("error", f"topic {name}: {message}: brokers refuse every row", fix)
        elif min_insync > topic.insync:
            message = f"a partition has {topic.insync} of {topic.replicas} replicas in sync, min.insync.replicas is "
            message = f"topic {name}: {message}{min_insync}: brokers refuse its rows"
            yield Finding("error", message, f"{_START}{self._fixes.show_partitions('under-min-isr', '--topic', name)}")

    def copies(self, topic: Layout, configs: Settings, like: tuple[int, int] = (1, 1)) -> Iterator[Finding]:
        """Check that a topic can't lose decided rows, or the sink's mark, after brokers have acknowledged them.

        `like`: the replicas of the rows' topic, and its min.insync.replicas. Kafka's own topics need as many.
        """
        name, insync, (replicas, wanted) = topic.name, int(configs["min.insync.replicas"]), like
        lost = f"a lost disk can lose {'the mark, and stop the sink' if name == OFFSETS else 'decided rows'}"
        if topic.replicas < max(replicas, min(2, self._brokers)):
            copies = "one copy" if topic.replicas == 1 else f"{topic.replicas} copies"
            message = f"topic {name}: {copies} of its partitions (of {self._brokers} brokers): {lost}"
            yield Finding("warning", message, self._fixes.copy_topic(name))
        elif topic.replicas > 1 and insync < (least := max(wanted, min(2, topic.replicas))):
            message = f"topic {name}: min.insync.replicas is {insync} with {topic.replicas} replicas: {lost}"
            yield Finding("warning", message, self._fixes.set_topic(name, f"min.insync.replicas={least}"))
        if configs.get("unclean.leader.election.enable") == "true":
            message = f"topic {name}: unclean.leader.election.enable is true: a leader that lags can lose decided rows"
            yield Finding("warning", message, self._fixes.set_topic(name, "unclean.leader.election.enable=false"))

    def _sizes(self, name: str, configs: Settings) -> Iterator[Finding]:
        """Check that the topic accepts the largest record that producers send."""
        (most, setting), taken = self.options.record_limit, int(configs["max.message.bytes"])
        if taken < most + _BATCH:
            message = f"topic {name} takes {taken} bytes at once (max.message.bytes), producers send up to {most} "
            fix = f'producer = {{"message.max.bytes" = {max(taken - _BATCH, 1000)}}} of the sink; or raise the topic\'s'
            yield Finding("warning", f"{message}({setting}): brokers refuse more, and the epoch fails", fix)

    def _cleanup(self, name: str, configs: Settings, schema: pa.Schema) -> Iterator[Finding]:
        """Check the cleanup: compaction needs keys and removes proofs; deletion may go by the rows' own timestamps."""
        policy, kept = configs["cleanup.policy"], int(configs["retention.ms"])
        fix = self._fixes.set_topic(name, "cleanup.policy=delete")
        if "compact" in policy and "key" not in schema.names:
            message = f"topic {name} is compacted, and the rows have no key: brokers refuse every one"
            yield Finding("error", message, f'give the rows a column `key` (with JSON: key = ["..."]); or {fix}')
        elif "compact" in policy:
            message = f"topic {name} is compacted: rows without a key fail their task, proofs of commits may be lost"
            yield Finding("warning", message, f"check that no key is null; or {fix}")
        by_rows = "timestamp" in schema.names and configs.get("message.timestamp.type") != "LogAppendTime"
        if by_rows and "delete" in policy and kept >= 0:
            message = f"topic {name} keeps rows for {duration(kept / 1000)} (retention.ms) by their column timestamp"
            fix = f"{self._fixes.set_topic(name, 'retention.ms=-1')}; or leave the column out"
            yield Finding("warning", f"{message}: older rows may be deleted even before their commit", fix)

    def budget(self) -> Iterator[Finding]:
        """Check that a transaction may stay open for a whole epoch: else the broker aborts it before the end."""
        timeout, margin = self.options.transaction_timeout_seconds, self.options.commit_seconds
        epoch = self._ctx.epoch_budget_seconds
        if timeout < epoch + margin:
            message = f"transaction_timeout_seconds is {timeout:g}, an epoch may take {epoch:g} s (epoch_budget) and "
            message += f"its commit {margin:g} s: the broker may abort its transactions before their commit"
            needed = epoch + min(60.0, epoch / 3)  # with that timeout's own margin
            fix = f"transaction_timeout_seconds = {needed:g} in the sink's options; or epoch_budget = "
            yield Finding("error", message, f'{fix}"{int(timeout - margin) or 1} seconds" in [job]')

    def times(self, limit: float, expiry: float, configs: Settings | None) -> Iterator[Finding]:
        """Check that brokers allow transactions of that length, and can prove their end after the job's longest pause.

        `limit` and `expiry`: the strictest broker's, in seconds. The coordinator knows the end until it forgets the id.
        Then the records prove it, as long as the topic has them. Later the job stops with the evidence, and never
        guesses.
        """
        timeout, pause = self.options.transaction_timeout_seconds, self._ctx.longest_pause_seconds
        mine = f"transaction_timeout_seconds is {timeout:g}, the brokers"
        if timeout > limit:
            fix = f"transaction_timeout_seconds = {limit:g} of the sink; or {self._fixes.set_brokers(_LIMIT, timeout)}"
            yield Finding("error", f"{mine} allow {limit:g} ({_LIMIT}): they refuse every producer", fix)
        if expiry < timeout:
            message = f"{mine} forget a transactional id after {expiry:g} s ({_EXPIRY}): nothing may prove how an "
            yield Finding("error", f"{message}epoch ended", self._fixes.set_brokers(_EXPIRY, max(7 * 86_400, timeout)))
        if (window := max(expiry, kept_seconds(configs))) < pause:
            message = f"how a transaction ended is known for {duration(window)} (by {_EXPIRY}, or retention.ms), "
            message += f"but the job may pause for {duration(pause)} (longest_pause): then it stops, in doubt"
            fix = f'longest_pause = "{max(int(window // 60), 1)} minutes" in [job]'
            yield Finding("warning", message, f"{fix}; or {self._fixes.set_brokers(_EXPIRY, pause)}")

    def marks(self, kept: float) -> Iterator[Finding]:
        """Check that brokers keep the sink's mark for the job's longest pause. `kept`: for how many seconds they do."""
        if kept < (pause := self._ctx.longest_pause_seconds) and self.options.marked_topic is not None:
            message = f"brokers forget the sink's mark {duration(kept)} after its last epoch "
            message += f"(offsets.retention.minutes), but the job may pause for {duration(pause)} (longest_pause)"
            fix = f"offsets.retention.minutes={int(pause // 60)} in every broker's server.properties; or "
            fix += "marks_may_expire = true in the sink's options"
            yield Finding("warning" if self.options.marks_may_expire else "error", message, fix)

    def not_seen(self, name: str, configs: Settings, absent: bool, like: tuple[int, int]) -> Iterator[Finding]:
        """Check one of Kafka's own topics by a broker's settings, if it does not exist yet or can't be read."""
        setting, insync = _KEPT[name]
        replicas = int(configs[setting])
        if replicas > self._brokers and absent:
            message = f"{name} can't be made: {setting} is {replicas}, but the cluster has {self._brokers} brokers"
            fix = f"start {replicas} brokers; or {setting}={self._brokers} in every broker's server.properties"
            yield Finding("error", f"{message}: no row can be written", f"{fix}, then restart them one by one")
        else:  # the first start creates it with these settings
            kept = Layout(name, 1, replicas, replicas)
            yield from self.copies(kept, {"min.insync.replicas": configs[insync]}, like)

    def ids(self, wire: Wire) -> Iterator[Finding]:
        """Check the right to the sink's transactional ids: end a transaction that never existed.

        Brokers check the right first. Nothing is made or changed: no task has this id, and no producer this number.
        """
        begin = f"{self._ctx.job}.{self._ctx.sink}."  # the tasks' ids, and the mark's
        [code] = wire.end([Transaction(f"{begin}none", NO_PRODUCER, 0)], commit=False)
        if code == errors.ID_NOT_AUTHORIZED:
            message = f"{self._fixes.principal} may not use transactional ids that begin with {begin}"
            yield Finding("error", f"{message}: no row can be written", self._fixes.allow_ids(begin))
        elif code != errors.INVALID_PRODUCER_ID_MAPPING:
            doing, why = "check the right to the job's transactional ids", f"a broker answered {errors.named(code)}"
            raise Retryable(
                doing, why=why, next=f"see the brokers' logs for {STATE_LOG}, then `exactsink check JOB.toml`"
            )


class _Queries:
    """Queries a cluster through librdkafka. Raises Retryable if a broker does not answer."""

    def __init__(self, client: AdminClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def topic(self, name: str) -> Layout | KafkaError:
        """Query a topic. The error means that it does not exist, or that the sink's user may not see it."""
        ask = partial(self._client.describe_topics, include_authorized_operations=True, request_timeout=self._seconds)
        found = self._answer(f"query topic {name}", lambda: ask(TopicCollection([name]))[name])
        if isinstance(found, KafkaError):
            return found
        parts, may = found.partitions, frozenset(one.name for one in found.authorized_operations or ())
        leaderless = tuple(p.id for p in parts if p.leader is None or p.leader.id < 0)
        replicas, insync = min(len(p.replicas) for p in parts), min(len(p.isr) for p in parts)
        return Layout(name, len(parts), replicas, insync, leaderless, may)

    def settings(self, kind: str, name: str) -> Settings | None:
        """Query the settings of a TOPIC or a BROKER, defaults included; None if the sink's user may not read them."""
        one, doing = ConfigResource(ConfigResource.Type[kind], name), f"query the settings of {kind} {name}"
        found = self._answer(doing, lambda: self._client.describe_configs([one], request_timeout=self._seconds)[one])
        if not isinstance(found, KafkaError):
            return {name: entry.value for name, entry in found.items() if entry.value is not None}
        if found.code() in errors.NOT_ALLOWED:
            return None
        raise Retryable(doing, why=found.str(), next="exactsink check JOB.toml")  # for example, it was deleted now

    def _answer(self, doing: str, ask: Callable[[], Future[T]]) -> T | KafkaError:
        """Wait for an answer, and repeat the query while a coordinator loads. Return a broker's refusal as it is."""
        for _ in attempts_within(5.0, first_seconds=0.1, longest_seconds=0.1):
            try:
                return ask().result(self._seconds + 1)
            except (KafkaException, NoAnswerYet) as failure:
                error = failure.args[0] if isinstance(failure, KafkaException) else KafkaError(KafkaError._TIMED_OUT)
            if error.code() not in errors.COMING:
                break
        if error.code() > 0 and error.code() not in errors.COMING:
            return error
        raise Retryable(doing, why=error.str(), next="check that every broker can be reached from here")

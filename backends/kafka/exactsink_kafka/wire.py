"""Requests that no public client makes: end another process's transaction, and read how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import CoordinatorType

from exactsink_kafka import errors, messages
from exactsink_kafka.channel import Answers, Asker, Channel, Question, Talk, grouped, led
from exactsink_kafka.messages import Cluster, Described, Offset, OpenProducer, Seen, Topic
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Transaction

__all__ = ["Place", "Wire", "Writers"]

Place = tuple[str, int]
"""A topic's name and the number of one of its partitions."""

Writers = Mapping[Place, Sequence[OpenProducer]]
"""The producers with open transactions, by partition."""

_TAKEN_SECONDS = 60.0
"""The most that a transaction begun by `take` stays open, unless the options say less: it is ended at once."""

_ID, _GROUP = CoordinatorType.TRANSACTION, CoordinatorType.GROUP
_NEVER: frozenset[int] = frozenset()
Read = TypeVar("Read")


class Wire:
    """A connection to a cluster for raw requests, opened by the first one. For one thread at a time.

    A request is repeated for `patience_seconds` if a connection breaks, a coordinator moves, or a partition has no
    leader. Then it raises Retryable; if waiting can't help, it raises Fatal at once.
    """

    def __init__(self, options: KafkaOptions, client_id: str, *, patience_seconds: float = 30.0) -> None:
        self.asker = Asker(options, client_id, patience_seconds)
        self._raises: bool | None = None

    @property
    def admin(self) -> KafkaAdminClient:
        """Return the connected client for its public calls. It belongs to this wire: neither close nor keep it."""
        return self.asker.use("connect", lambda channel: channel.admin)

    def brokers(self) -> Sequence[int]:
        """Return the ids of the brokers that are alive."""
        return self.asker.use("query the cluster", lambda channel: channel.refresh()[1])

    def cluster(self) -> Cluster:
        """Query the cluster's id, brokers and features."""

        def once(channel: Channel) -> Cluster:
            name, brokers = channel.refresh()
            return messages.cluster_of(name, brokers, channel.ask([(messages.versions_request(), b) for b in brokers]))

        return self.asker.use("query the cluster", once)

    def ask(self, *questions: Question[Any], seconds: float | None = None) -> list[Any]:
        """Send questions together, and return their results in order. `seconds` replaces the patience."""
        return self.asker.persist(questions, seconds)

    def _one(self, question: Question[Read]) -> Read:
        answer: Read = self.ask(question)[0]
        return answer

    def about_cluster(self) -> Question[str]:
        """Return the question for the cluster's own id."""

        def once(channel: Channel, left: Sequence[None]) -> Talk:
            (answer,) = yield [(messages.metadata_request(), None)]
            return {None: (0, str(answer.cluster_id))}

        return Question("query the cluster", [None], _NEVER, once, lambda answers: answers[None][1])

    def topics(self, names: Iterable[str]) -> Mapping[str, Topic]:
        """Query topics by name. A topic that does not exist is not in the result."""
        return self._one(self.about_topics(names))

    def about_topics(self, names: Iterable[str]) -> Question[Mapping[str, Topic]]:
        """Return the question of `topics`."""
        doing = "query topics"

        def once(channel: Channel, left: Sequence[str]) -> Talk:
            (answer,) = yield [(messages.metadata_request(names=left), None)]
            self.asker.leaders.update(messages.leaders(answer))
            return {topic.name: (topic.error_code, topic) for topic in answer.topics}

        def read(found: Answers) -> Mapping[str, Topic]:
            return {
                name: Topic(name, str(topic.topic_id), tuple(sorted(p.partition_index for p in topic.partitions)))
                for name, (code, topic) in found.items()
                if code not in errors.NO_SUCH_TOPIC and self._answered(doing, code, topic=name)
            }

        return Question(doing, names, errors.LEADERLESS, once, read)

    def end(self, transactions: Sequence[Transaction], *, commit: bool) -> Sequence[int]:
        """Send EndTxn for each transaction to its coordinator, all together; return the error codes, in order.

        An end is repeated while the coordinator moves or loads, or writes markers, for `patience_seconds`; then its
        last code is returned. If an end does not raise the producer's epoch, another request does so after an abort,
        which fences a late task.
        """
        if transactions and self._raises is None:
            self._raises = self.cluster().raises
        raises = bool(self._raises)

        def once(channel: Channel, left: Sequence[Transaction]) -> Talk:
            brokers, lost = self.asker.coordinators(channel, [one.id for one in left])
            sent = [one for one in left if one.id in brokers]
            answers = yield [(messages.end_request(one, commit, raises), brokers[one.id]) for one in sent]
            codes: Answers = {one: (lost[one.id], None) for one in left if one.id in lost}
            codes |= {one: (answer.error_code, None) for one, answer in zip(sent, answers, strict=True)}
            self.asker.forget((one.id, code) for one, (code, _) in codes.items())
            return codes

        def read(codes: Answers) -> Sequence[int]:
            return [codes[one][0] for one in transactions]

        doing = f"{'commit' if commit else 'abort'} transactions"
        ended = self._one(Question(doing, transactions, errors.ENDING, once, read))
        if not (commit or raises):
            self._fence([one for one, code in zip(transactions, ended, strict=True) if code == 0])
        return ended

    def _fence(self, aborted: Sequence[Transaction]) -> None:
        """Raise the epochs of producers, unless somebody has raised them."""
        doing = "fence aborted transactions"
        fences = {one: partial(messages.fence_request, one, _TAKEN_SECONDS) for one in aborted}
        asked = [self._coordinated(doing, one.id, fence, errors.ENDING) for one, fence in fences.items()]
        for one, (code, _) in zip(aborted, self.ask(*asked), strict=True):
            self._answered(doing, 0 if code in errors.MOVED_ON else code, id=one.id)

    def describe(self, ids: Iterable[str]) -> Mapping[str, Described]:
        """Describe transactional ids. An id that its coordinator does not know is not in the result."""
        return self._one(self.about_transactions(ids))

    def about_transactions(self, ids: Iterable[str]) -> Question[Mapping[str, Described]]:
        """Return the question of `describe`."""
        doing = "describe transactions"

        def once(channel: Channel, left: Sequence[str]) -> Talk:
            brokers, lost = self.asker.coordinators(channel, left)
            requests = [(DescribeTransactionsRequest(transactional_ids=of), to) for to, of in grouped(brokers).items()]
            found: Answers = {one: (code, None) for one, code in lost.items()}
            for answer in (yield requests):
                found |= {state.transactional_id: (state.error_code, state) for state in answer.transaction_states}
            self.asker.forget((one, code) for one, (code, _) in found.items())
            return found

        def read(found: Answers) -> Mapping[str, Described]:
            return {
                one: messages.described(state)
                for one, (code, state) in found.items()
                if code != errors.UNKNOWN_TRANSACTIONAL_ID and self._answered(doing, code, id=one)
            }

        return Question(doing, ids, errors.MOVING, once, read)

    def ongoing(self, prefix: str) -> Sequence[Described]:
        """Describe all ids with this prefix, on all brokers, that have an open or an ending transaction."""
        doing = "list open transactions"

        def once(channel: Channel, left: Sequence[int]) -> Talk:
            answers = yield [(messages.listing_request(messages.OPEN, prefix), broker) for broker in left]
            return {broker: (answer.error_code, answer) for broker, answer in zip(left, answers, strict=True)}

        listed = set()
        for broker, (code, answer) in self._answers(doing, self.brokers(), errors.MOVING, once).items():
            self._answered(f"{doing} of broker {broker}", code)
            listed |= {state.transactional_id for state in answer.transaction_states}
        found = self.describe(sorted(one for one in listed if one.startswith(prefix)))
        return [one for one in found.values() if one.state in messages.OPEN]

    def open_in(self, partitions: Iterable[Place]) -> Writers:
        """Return the producers with open transactions in partitions. Waits for partitions without a leader."""
        doing = "query open transactions"

        def read(found: Answers) -> Writers:
            return {
                one: messages.open_producers(partition)
                for one, (code, partition) in found.items()
                if self._answered(f"{doing} in {one[0]}-{one[1]}", code, topic=one[0])
            }

        return self._one(Question(doing, partitions, errors.LEADERLESS, self._producers, read))

    def open_now(self, partitions: Iterable[Place]) -> Writers:
        """Return the same after one try: an unreachable partition is not in the result."""
        return self._one(self.about_writers(partitions))

    def about_writers(self, partitions: Iterable[Place]) -> Question[Writers]:
        """Return the question of `open_now`."""

        def read(found: Answers) -> Writers:
            return {one: messages.open_producers(partition) for one, (code, partition) in found.items() if code == 0}

        return Question("query open transactions", partitions, _NEVER, self._producers, read)

    def rows_of(self, transaction: Transaction, partitions: Iterable[Place]) -> Mapping[Place, OpenProducer]:
        """Return the partitions that have rows of an open transaction, with their first offsets."""
        return {
            partition: active
            for partition, writers in self.open_in(partitions).items()
            for active in writers
            if (active.id, active.epoch) == transaction.producer
        }

    def find(self, id: str) -> None:
        """Connect, and find the coordinator of a transactional id for later requests."""
        self.asker.use("find a coordinator", lambda channel: self.asker.coordinators(channel, [id]))

    def take(self, id: str) -> Transaction:
        """Take a transactional id: fence its last user, and abort that user's open transaction."""
        doing, lives = "take a transactional id", min(self.asker.options.transaction_timeout_seconds, _TAKEN_SECONDS)
        code, taken = self.begin(id, lives)
        self._answered(doing, code, id=id)
        return taken

    def begin(self, id: str, lives: float) -> tuple[int, Transaction]:
        """Take an id for a transaction of at most `lives` seconds; return the error code and the transaction."""
        request = partial(messages.take_request, id, lives)
        [(code, answer)] = self.ask(self._coordinated("take a transactional id", id, request, errors.ENDING))
        return int(code), Transaction(id, *((answer.producer_id, answer.producer_epoch) if answer else (-1, -1)))

    def join_partitions(self, one: Transaction, topic: str, partitions: Sequence[int], seconds: float) -> int:
        """Add partitions of a topic to a transaction within `seconds`; return the first error code."""
        request = partial(messages.partitions_request, one, topic, partitions)
        doing, again = "add partitions to a transaction", errors.ENDING | {errors.UNKNOWN_TOPIC}
        [(code, _)] = self.ask(
            self._coordinated(doing, one.id, request, again, code_of=messages.joined), seconds=seconds
        )
        return int(code)

    def join(self, one: Transaction, group: str) -> int:
        """Add a group's offsets to a transaction; return the coordinator's error code."""
        request = partial(messages.join_request, one, group)
        doing = "add a group's offsets to a transaction"
        [(code, _)] = self.ask(self._coordinated(doing, one.id, request, errors.ENDING))
        return int(code)

    def write_offset(self, one: Transaction, offset: Offset, *, joins: bool = False, keeper: int = -1) -> int:
        """Write a group's offset in a transaction; return the coordinator's error code.

        `joins`: see `Cluster`. `keeper`: the broker to contact first, -1 if none is known; see the method `keeper`.
        """
        code = 0 if joins else self.join(one, offset.group)
        return code or int(self.ask(self.about_offset(one, offset, joins=joins, keeper=keeper))[0])

    def about_offset(self, one: Transaction, offset: Offset, *, joins: bool, keeper: int) -> Question[int]:
        """Return the question that writes a group's offset in a transaction to which the group was added."""
        if keeper >= 0:
            self.asker.known.setdefault((_GROUP, offset.group), keeper)
        request, code_of = partial(messages.offset_request, one, offset, joins), messages.taken
        again = errors.ENDING | {errors.UNKNOWN_TOPIC}  # a broker may not know a new topic yet
        asked = self._coordinated("write a group's offset", offset.group, request, again, _GROUP, code_of)
        return Question(asked.doing, asked.keys, again, asked.once, lambda answers: int(answers[offset.group][0]))

    def keeper(self, group: str) -> int:
        """Return the broker that last coordinated a group, -1 if none is known."""
        return self.asker.known.get((_GROUP, group), -1)

    def about_texts(self, group: str, topic: str | None = None) -> Question[tuple[int, Mapping[str, str]]]:
        """Return the question for the error code and the metadata texts of a group's offsets; "" is no text.

        The texts are those of partition 0, by topic: of one topic, or of all topics that the user may see.
        """

        def read(answers: Answers) -> tuple[int, Mapping[str, str]]:
            code, answer = answers[group]
            found = [] if code else [(t.name, p) for t in answer.groups[0].topics for p in t.partitions]
            texts = {name: str(p.metadata or "") for name, p in found if p.partition_index == 0}
            return code, texts if code or topic is None else {topic: texts[topic]}

        request = partial(messages.read_request, group, topic)
        asked = self._coordinated("read a group's offset", group, request, errors.MOVING, _GROUP, messages.read)
        return Question(asked.doing, asked.keys, asked.again, asked.once, read)

    def mark(self, ended: Transaction, place: Place, coordinator_epoch: int, *, commit: bool) -> int:
        """Write the decided end of a transaction into a partition; return the leader's error code. Idempotent.

        Call it only if the marker got lost. `ended` has the epoch that the coordinator knows.
        """

        def once(channel: Channel, left: Sequence[Place]) -> Talk:
            (metadata,) = yield [(messages.metadata_request(names={place[0]}), None)]
            codes, leaders = led(metadata, left)
            for leader in leaders.values():
                request = messages.marker_request(ended, *place, coordinator_epoch, commit=commit)
                (answer,) = yield [(request, leader)]
                codes[place] = (answer.markers[0].topics[0].partitions[0].error_code, None)
            return codes

        return self._answers("write a marker", [place], errors.LEADERLESS, once)[place][0]

    def look(self, topic_id: str, partition: int, offset: int) -> Seen:
        """Read the batch at an offset of the topic with this id."""
        doing = f"read offset {offset} of partition {partition} of the topic with id {topic_id}"
        known: list[str] = []  # its name, as last answered

        def once(channel: Channel, left: Sequence[int]) -> Talk:
            (metadata,) = yield [(messages.metadata_request(ids=[topic_id]), None)]
            (topic,) = metadata.topics
            known.append(topic.name or topic_id)
            if topic.error_code:
                return {offset: (topic.error_code, None)}
            leader = {p.partition_index: p.leader_id for p in topic.partitions}.get(partition, -1)
            if leader < 0:
                return {offset: (errors.LEADER_NOT_AVAILABLE, None)}
            (fetched,) = yield [(messages.fetch_request(topic_id, partition, offset), leader)]
            (answer,) = fetched.responses[0].partitions
            if answer.error_code == errors.OFFSET_OUT_OF_RANGE:
                bounds = yield [(request, leader) for request in messages.bounds_requests(topic.name, partition)]
                return {offset: (errors.OFFSET_OUT_OF_RANGE, messages.seen_beyond(errors.OFFSET_OUT_OF_RANGE, bounds))}
            return {offset: (answer.error_code, messages.seen(answer, offset))}

        again = errors.LEADERLESS | {errors.UNKNOWN_TOPIC}
        code, found = self._answers(doing, [offset], again, once)[offset]
        if code == errors.UNKNOWN_TOPIC_ID:
            return Seen(code, -1, -1, None, frozenset())
        if code != errors.OFFSET_OUT_OF_RANGE:
            self._answered(doing, code, topic=known[-1])
        seen_there: Seen = found
        return seen_there

    def close(self) -> None:
        """Close the connections. Idempotent; the next request opens others."""
        self.asker.close()

    def _coordinated(
        self,
        doing: str,
        id: str,
        request: Callable[[], Any],
        again: frozenset[int],
        kind: CoordinatorType = _ID,
        code_of: Callable[[Any], int] = lambda answer: int(answer.error_code),
    ) -> Question[tuple[int, Any]]:
        """Return a question to the coordinator of a transactional id, or of a group; its result: code and answer."""

        def once(channel: Channel, left: Sequence[str]) -> Talk:
            brokers, lost = self.asker.coordinators(channel, left, kind)
            if lost:
                return {id: (lost[id], None)}
            (answer,) = yield [(request(), brokers[id])]
            self.asker.forget([(id, code_of(answer))], kind)
            return {id: (code_of(answer), answer)}

        return Question(doing, [id], again, once, lambda answers: answers[id])

    def _producers(self, channel: Channel, left: Sequence[Place]) -> Talk:
        """Query the leaders as last reported, then the new leader of each partition that has moved or was unknown."""
        known = {place: self.asker.leaders[place] for place in left if place in self.asker.leaders}
        codes = (yield from _asked_who_writes(known)) if known else {}
        stale = errors.LEADERLESS | errors.NO_SUCH_TOPIC
        if moved := [place for place in left if place not in codes or codes[place][0] in stale]:
            (metadata,) = yield [(messages.metadata_request(names={topic for topic, _ in moved}), None)]
            lost, leaders = led(metadata, moved)
            self.asker.leaders.update(leaders)
            codes |= lost | (yield from _asked_who_writes(leaders))
        return codes

    def _answers(
        self, doing: str, keys: Iterable[Any], again: frozenset[int], once: Callable[[Channel, Sequence[Any]], Talk]
    ) -> Answers:
        """Send one question, and return its raw answers."""
        return self._one(Question(doing, keys, again, once, dict))

    def _answered(self, doing: str, code: int, **about: str) -> bool:
        """Raise the error for a code about a transactional `id`, a `topic` or a `group`; return True for code 0."""
        if code:
            raise errors.refused(doing, code, self.asker.options, **about)
        return True


def _asked_who_writes(leaders: Mapping[Place, int]) -> Talk:
    codes: Answers = {}
    for answer in (yield [(messages.producers_request(of), leader) for leader, of in grouped(leaders).items()]):
        for topic in answer.topics:
            codes |= {(topic.name, p.partition_index): (p.error_code, p) for p in topic.partitions}
    return codes

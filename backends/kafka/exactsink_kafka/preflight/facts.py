"""What a cluster says of its topics, brokers and groups, asked through public calls; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerYet
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from exactsink.contract import Retryable

__all__ = ["REFUSED", "Facts", "GroupFacts", "TopicFacts"]

REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_COMING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_TRIES, _PAUSE_SECONDS = 50, 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. `replicas` and `insync` are the fewest of any partition; `may` is what our user may do with it."""

    name: str
    partitions: int
    replicas: int
    insync: int
    leaderless: tuple[int, ...] = ()
    may: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group; one that there is not has no members. `members` are their clients' ids."""

    name: str
    members: tuple[str, ...]
    may: frozenset[str]


class _Refused(Exception):
    """A broker said no."""

    def __init__(self, error: KafkaError) -> None:
        super().__init__(error.str())
        self.error = error

    def is_about_grants(self, doing: str) -> None:
        """Go on where our user may not know. Raises Retryable for what went away while we asked, say."""
        if self.error.code() not in REFUSED:
            raise Retryable(doing, why=self.error.str(), next="exactsink check JOB.toml")


class Facts:
    """Ask a cluster through librdkafka. What our user may not know is None; a silent broker raises Retryable."""

    def __init__(self, client: AdminClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def topic(self, name: str) -> TopicFacts | KafkaError:
        """Ask for a topic; the error says that there is none, or that our user may not know."""
        ask = self._client.describe_topics
        try:
            found = self._answer(
                f"ask for topic {name}",
                lambda: ask(TopicCollection([name]), include_authorized_operations=True, request_timeout=self._seconds)[
                    name
                ],
            )
        except _Refused as refused:
            return refused.error
        may = frozenset(operation.name for operation in found.authorized_operations or ())
        return TopicFacts(
            name=name,
            partitions=len(found.partitions),
            replicas=min(len(partition.replicas) for partition in found.partitions),
            insync=min(len(partition.isr) for partition in found.partitions),
            leaderless=tuple(p.id for p in found.partitions if p.leader is None or p.leader.id < 0),
            may=may,
        )

    def topic_configs(self, name: str) -> Mapping[str, str] | None:
        """Ask for a topic's settings, the brokers' defaults among them."""
        return self._configs(ConfigResource(ConfigResource.Type.TOPIC, name), f"ask for the settings of topic {name}")

    def broker_configs(self, brokers: Iterable[int]) -> Mapping[int, Mapping[str, str]] | None:
        """Ask each broker for its own settings: any may become a transaction's coordinator."""
        resources = {broker: ConfigResource(ConfigResource.Type.BROKER, str(broker)) for broker in brokers}
        begun = {broker: self._ask_configs(resource) for broker, resource in resources.items()}  # side by side
        found = {}
        for broker, resource in resources.items():
            configs = self._configs(resource, f"ask broker {broker} for its settings", begun[broker])
            if configs is None:
                return None
            found[broker] = configs
        return found

    def group(self, name: str) -> GroupFacts | None:
        """Ask for a consumer group."""
        ask = self._client.describe_consumer_groups
        try:
            found = self._answer(
                f"ask for group {name}",
                lambda: ask([name], include_authorized_operations=True, request_timeout=self._seconds)[name],
            )
        except _Refused as refused:
            if refused.error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return GroupFacts(name, (), frozenset())
            refused.is_about_grants(f"ask for group {name}")
            return None
        may = frozenset(operation.name for operation in found.authorized_operations or ())
        gone = found.state in (ConsumerGroupState.DEAD, ConsumerGroupState.EMPTY)
        members = () if gone else tuple(sorted(member.client_id for member in found.members)) or ("?",)
        return GroupFacts(name, members, may)

    def _ask_configs(self, resource: ConfigResource) -> Future[Any]:
        return self._client.describe_configs([resource], request_timeout=self._seconds)[resource]

    def _configs(
        self, resource: ConfigResource, doing: str, begun: Future[Any] | None = None
    ) -> Mapping[str, str] | None:
        try:
            entries = self._answer(doing, lambda: self._ask_configs(resource), begun)
        except _Refused as refused:
            refused.is_about_grants(doing)
            return None
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def _answer(self, doing: str, ask: Callable[[], Future[T]], begun: Future[T] | None = None) -> T:
        """Wait for an answer, and ask again while a coordinator loads. Raises _Refused for the broker's own no."""
        for left in reversed(range(_TRIES)):
            try:
                asked, begun = begun or ask(), None
                return asked.result(self._seconds + 1)
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() in _COMING and left:
                    self._client.poll(_PAUSE_SECONDS)
                elif error.code() > 0 and error.code() not in _COMING:
                    raise _Refused(error) from None
                else:
                    raise Retryable(
                        doing, why=error.str(), next="see that every broker can be reached from here"
                    ) from None
            except NoAnswerYet:
                raise Retryable(doing, why="no answer", next="see that every broker can be reached from here") from None
        raise AssertionError("the last try ends in an answer or an error")

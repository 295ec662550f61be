"""What our user must be allowed to do, beside connecting: which of it is missing, and the command that grants it."""

from __future__ import annotations

from collections.abc import Iterator

from exactsink.contract import Finding, JobContext, Retryable
from exactsink_kafka.ids import prefix
from exactsink_kafka.preflight.facts import GroupFacts, TopicFacts
from exactsink_kafka.preflight.remedies import Remedies
from exactsink_kafka.vote import Transaction
from exactsink_kafka.wire import Wire

__all__ = ["TOPIC_NEEDS", "group_findings", "id_findings", "topic_grants"]

TOPIC_NEEDS = {
    "WRITE": "to write rows",
    "READ": "to prove later whether they were committed",
    "DESCRIBE": "to find its partitions",
}
"""What the sink does with a topic. WRITE and READ hold DESCRIBE, a rule of Kafka's; a rule that denies may take it."""

_UNKNOWN_ID, _NOT_ALLOWED = 49, 53  # INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_NO_PRODUCER = 2**63 - 1  # brokers count producer ids up from 0


def topic_grants(topic: TopicFacts, remedies: Remedies) -> Iterator[Finding]:
    """Compare what our user may do with a topic with what the sink does."""
    missing = [operation for operation in TOPIC_NEEDS if operation not in topic.may]
    if missing:
        purposes = ", ".join(f"{_word(operation)} {TOPIC_NEEDS[operation]}" for operation in missing)
        message = f"topic {topic.name}: {remedies.principal} lacks {purposes}"
        yield Finding("error", message, remedies.acl([_word(o) for o in missing], "--topic", topic.name))


def id_findings(ctx: JobContext, wire: Wire, remedies: Remedies) -> Iterator[Finding]:
    """Ask for the end of a transaction that never was: brokers look first whether our user might end it.

    Nothing is made or changed by it: generation 0 is no claim's, so no task has this id, and no producer this number.
    """
    begin = prefix(ctx.job, ctx.sink)
    [code] = wire.end([Transaction(f"{begin}0-0.s0", _NO_PRODUCER, 0)], commit=False)
    if code == _NOT_ALLOWED:
        message = f"{remedies.principal} may not use transactional ids that begin with {begin}: no row can be written"
        words = ("--transactional-id", begin, "--resource-pattern-type", "prefixed")
        yield Finding("error", message, remedies.acl(["Write", "Describe"], *words))
    elif code != _UNKNOWN_ID:
        raise Retryable(
            "ask the transaction coordinator whether this job may use its ids",
            why=f"it answered error {code} of Kafka's protocol",
            next="see the brokers' logs for __transaction_state, then `exactsink check`",
        )


def group_findings(group: GroupFacts | None, name: str, remedies: Remedies) -> Iterator[Finding]:
    """Look whether the source's offsets can be committed to a group: brokers refuse it while anyone is a member."""
    grant = remedies.acl(["Read", "Describe"], "--group", name)
    if group is None:
        message = f"{remedies.principal} may not ask for group {name} (report_offsets_to), so not commit to it either"
        yield Finding("error", message, grant)
        return
    if group.may and "READ" not in group.may:
        message = f"group {name}: {remedies.principal} lacks Read, to commit the source's offsets (report_offsets_to)"
        yield Finding("error", message, grant)
    if group.members:
        some = ", ".join(group.members[:3])
        message = (
            f"group {name} has members ({some}): while it has one, brokers refuse the source's "
            "offsets (report_offsets_to)"
        )
        yield Finding("error", message, 'report_offsets_to = "a group that nobody consumes with"; or end its consumers')


def _word(operation: str) -> str:
    return operation.capitalize()

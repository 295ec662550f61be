"""What is committed to consumer groups: the sink's mark, and the source's end offsets for tools that show lag.

The mark is the text beside one offset, and is only ever written in transactions: each participant's own, and, for a
birth and to keep the mark from expiring, one under an id that a single driver at a time has. A plain commit of a
driver that was stalled would put the mark back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka import TopicPartition
from kafka.errors import KafkaError, NoError
from kafka.structs import OffsetAndMetadata

from exactsink.contract import Fatal, Finding, JobContext, LineageError, Mark, Retryable
from exactsink_kafka import errors
from exactsink_kafka.channel import Question
from exactsink_kafka.messages import Offset
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.remedies import Remedies
from exactsink_kafka.transactions import NO_PRODUCER, Transaction, prefix
from exactsink_kafka.wire import Wire

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

__all__ = ["MarkKeeper", "group_of", "mark_offset", "report_offsets", "source_offsets"]

_VERSION = 1
"""Of the mark's text."""

_BIRTHS = 5
_RENEW_SECONDS = 86_400.0


def group_of(job: str, sink: str) -> str:
    """Name the consumer group that keeps a sink's mark. It never has a member."""
    return f"exactsink.{job}.{sink}"


def mark_offset(job: str, sink: str, topic: str, mark: Mark) -> Offset:
    """Return the offset that keeps a mark: its number is the epoch's, for people who look; only the text is read."""
    text = {"exactsink": _VERSION, "lineage": mark.lineage, "epoch": mark.epoch, "tokens": sorted(mark.tokens)}
    return Offset(group_of(job, sink), topic, 0, mark.epoch or 0, json.dumps(text, separators=(",", ":")))


def _mark(group: str, text: str | None) -> Mark | None:
    """Read a mark's text; None where there is none, or something else was committed over it."""
    try:
        read = json.loads(text or "")
        version, mark = int(read["exactsink"]), Mark(read["lineage"], read["epoch"], frozenset(read["tokens"]))
    except (ValueError, KeyError, TypeError):
        return None
    if version != _VERSION:
        what, why = f"group {group} keeps a mark of version {version}", f"this release reads version {_VERSION}"
        raise Fatal(what, why=why, next="start the job with the release of exactsink that wrote it")
    return mark


class MarkKeeper:
    """Reads a sink's mark for the driver, gives a new sink its birth, and keeps the mark from expiring."""

    def __init__(self, options: KafkaOptions, ctx: JobContext, wire: Wire) -> None:
        self._options = options
        self._ctx = ctx
        self._wire = wire
        self._topic = options.marked_topic or ""
        self.group = group_of(ctx.job, ctx.sink)
        self._id = f"{ctx.job}.{ctx.sink}.mark"
        self._renewed = float("-inf")
        self._alone = not ctx.lineage  # before a claim, nobody knows whose mark is whose
        self.place: tuple[str, int] | None = None
        """Which partition of Kafka's own topic keeps it, once a transaction was seen to write there."""

    def read(self) -> Mark | None:
        """Read the mark as it is committed. It lags the answer to a commit by some ms."""
        return self.read_beside()[0]

    def read_beside(self, *questions: Question[Any]) -> tuple[Mark | None, list[Any]]:
        """Read the mark, and ask questions at the same time; gives what they are answered.

        The first time, refuse to share the name with another job. Raises LineageError.
        """
        asked = [self._wire.about_texts(self.group, self._topic), *questions]
        asked += [] if self._alone else [self._wire.about_texts(self.group)]
        (code, texts), *answers = self._wire.ask(*asked)
        self._check("read the sink's mark", code)
        if not self._alone:
            self._check_alone(*answers.pop())
        return _mark(self.group, texts.get(self._topic)), answers

    def _check_alone(self, code: int, texts: Mapping[str, str]) -> None:
        """Refuse to share the sink's name with a job that has another journal."""
        self._check("read the group's marks", code)
        for what, why, fix in self._shared(texts, {self._ctx.lineage, *self._ctx.succeeds}):
            raise LineageError(what, why=why, next=fix)
        self._alone = True

    def _shared(self, texts: Mapping[str, str], ours: Collection[str]) -> Iterator[tuple[str, str, str]]:
        """Find jobs with our names: each would find the other's transactions, and stop at them by chance."""
        for topic in sorted(texts.keys() - {self._topic}):
            if (mark := _mark(self.group, texts[topic])) is not None and mark.lineage not in ours:
                names = f"job named {self._ctx.job} has a sink {self._ctx.sink}"
                what = f"another {names} on this cluster for topic {topic}"
                why = f"group {self.group} keeps the mark of its journal {mark.lineage}, and ids have these names, too"
                words = ("--delete-offsets", "--group", self.group, "--topic", topic)
                gone = Remedies(self._options).command("kafka-consumer-groups", *words)
                yield what, why, f"give one of the jobs another name in [job]; or, once none writes there: {gone}"

    def put_birth(self) -> Mark:
        """Put the birth of the context's lineage where there is no mark; return what stands."""
        for _ in range(_BIRTHS):
            self._alone = False
            if (stands := self._write_again(birth=True)) is not None:
                return stands
        what = f"group {self.group} accepts no mark: another driver writes to it, or has an open transaction"
        raise Retryable(what, next="end the other drivers of this job, then start it again")

    def renew(self) -> None:
        """Write the mark that stands once more, once under a claim and then daily: brokers forget old ones.

        Only where nothing is decided and not yet committed: of two values written in transactions the one written
        later stands, whatever the order of their commits.
        """
        if time.monotonic() < self._renewed + _RENEW_SECONDS:
            return
        if self.read() is not None and self._write_again(birth=False) is not None:
            self._renewed = time.monotonic()

    def findings(self) -> Iterator[Finding]:
        """Find what keeps the mark from being written."""
        options, fixes = self._options, Remedies(self._options)
        if not self._topic:
            message = "each row names its own topic, so the sink keeps no mark: "
            message += "exactsink cannot detect that only the cluster was restored from a backup"
            yield Finding("warning", message, 'mark_topic = "..." in the sink\'s options')
            return
        if options.mark_topic is not None and self._topic not in self._wire.topics([self._topic]):
            yield Finding("error", f"there is no topic {self._topic} (mark_topic)", fixes.make_topic(self._topic))
        joined = self._wire.join(Transaction(self._id, NO_PRODUCER, 0), self.group)  # refused: it never was
        [(read, texts)] = self._wire.ask(self._wire.about_texts(self.group))
        mine = _mark(self.group, texts.get(self._topic))
        for what, why, fix in self._shared(texts, () if mine is None else {mine.lineage}):
            yield Finding("warning", f"{what}, perhaps: {why}. Then exactsink refuses a start", fix)
        if errors.GROUP_NOT_AUTHORIZED in (joined, read):
            message = f"{fixes.principal} may not use offsets of group {self.group}, so the sink can't keep its mark"
            yield Finding("error", message, fixes.allow("Read", "--group", self.group))

    def _write_again(self, *, birth: bool) -> Mark | None:
        """Write the mark that stands, or a birth if asked where none does; a mark is no birth's business.

        To take the id fences every older driver's writing. None where another one was quicker, or may be: an epoch's
        transaction that is open has perhaps written its mark before, and would be behind this one.
        """
        mine = self._wire.take(self._id)
        stands = self.read()
        if birth != (stands is None):
            return stands
        quiet, written = False, stands or Mark(self._ctx.lineage)
        code = self._wire.write_offset(mine, mark_offset(self._ctx.job, self._ctx.sink, self._topic, written))
        if code == 0:
            listed = self._wire.ongoing(prefix(self._ctx.job, self._ctx.sink))
            quiet = not any(one.offsets for one in listed) and self.read() == stands
            for _ in range(2 if quiet else 1):  # the second is answered when readers see the first
                [code] = self._wire.end([mine], commit=quiet)
        if code not in errors.NOT_MINE:
            self._check("write the sink's mark", code, id=self._id if quiet else "")
        return written if quiet and code == 0 else None

    def _check(self, doing: str, code: int, *, id: str = "") -> None:
        """Raise what a code means, said by the group's coordinator, or that of an `id`."""
        if code:
            raise errors.refused(doing, code, self._options, id=id, topic=self._topic, group=self.group)


# The source's offsets: nothing is ever read from there

_READ, _OUT = "kafka-acls.sh --add --operation Read", "remove report_offsets_to from the sink's options"
_CAUSES = {
    "UnknownMemberIdError": (
        "the group has consumers, so it accepts no offsets from others",
        "name a group without consumers: kafka-consumer-groups.sh --describe --members shows who does",
    ),
    "UnknownTopicOrPartitionError": (
        "this cluster has no such topic or partition: the source reads from another cluster",
        f"{_OUT}; it is for a source on the sink's own cluster",
    ),
    "TopicAuthorizationFailedError": ("the sink's user may not read the topic", f"{_READ} --topic ..., or {_OUT}"),
    "GroupAuthorizationFailedError": ("the sink's user may not use the group", f"{_READ} --group ..., or {_OUT}"),
}
_LARGEST_PARTITION, _LARGEST_OFFSET = 2**31 - 1, 2**63 - 1


def report_offsets(admin: KafkaAdminClient, group: str, ends: Sequence[str]) -> None:
    """Commit where the source stands to the group. Idempotent, from any process; no row hangs on it.

    Raises Retryable when the next epoch may have more luck (make a new `admin` then: it keeps the coordinator that it
    once found, also when that has moved), and Fatal when no source reports Kafka's offsets.
    """
    doing = f"commit the source's offsets to group {group}"
    offsets = {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "", None)
        for topic, partitions in source_offsets(ends).items()
        for partition, offset in partitions.items()
    }
    if not offsets:
        what = f"{doing}: no source of this job reports its offsets as Spark's Kafka source does"
        raise Fatal(what, why=f"they read {'; '.join(ends) or 'nothing'}", next=_OUT)
    try:
        answers = admin.alter_group_offsets(group, offsets)
    except (KafkaError, OSError) as error:
        raise Retryable(f"{doing}: {error}", next="the next epoch tries again") from error
    refused = {partition: str(answer.__name__) for partition, answer in answers.items() if answer is not NoError}
    if refused:
        raise _refusal(doing, refused)


def source_offsets(ends: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
    """Read Kafka's offsets, by topic and partition, out of the sources' offsets; other sources' are passed over.

    Of two sources that read the same partition the one that lags counts.
    """
    found: dict[str, dict[int, int]] = {}
    for end in ends:
        try:
            offsets = list(_offsets(json.loads(end)))
        except ValueError:
            continue
        for topic, partition, offset in offsets:
            there = found.setdefault(topic, {})
            there[partition] = min(offset, there.get(partition, offset))
    return found


def _offsets(end: Any) -> Iterator[tuple[str, int, int]]:
    """Read one source's end: `{"orders": {"0": 17, "1": 4}}`. Raises ValueError when it is no such thing."""
    if not isinstance(end, dict) or not all(isinstance(partitions, dict) for partitions in end.values()):
        raise ValueError(f"{end!r} is no object of objects")
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            number = int(partition) if partition.isascii() and partition.isdecimal() else -1
            if not 0 <= number <= _LARGEST_PARTITION:
                raise ValueError(f"{partition!r} is not a partition")
            if type(offset) is not int or not 0 <= offset <= _LARGEST_OFFSET:
                raise ValueError(f"{offset!r} is not an offset")
            yield topic, number, offset


def _refusal(doing: str, refused: Mapping[TopicPartition, str]) -> Retryable:
    """Return what the broker answered; it takes the offsets of the partitions that are not named."""
    error = next(iter(refused.values()))
    partitions = [f"{p.topic}/{p.partition}" for p, answer in refused.items() if answer == error]
    why, fix = _CAUSES.get(error, ("", "the next epoch tries again"))
    said = f"{', '.join(partitions[:3])}{', ...' if len(partitions) > 3 else ''}"
    return Retryable(f"{doing}: the broker answered {error} for {said}", why=why, next=fix)

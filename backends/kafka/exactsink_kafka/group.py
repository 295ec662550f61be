"""Offsets of consumer groups: the sink's mark, and the source's end offsets for tools that show lag.

The mark is the metadata text of one offset. It is written only in transactions, because a plain commit by a stalled
driver would put the mark back. Each participant writes it in its own transaction. A birth, and the renewal that keeps
the mark from expiring, use one transactional id, which only one driver at a time owns.
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
"""The version of the mark's text."""

_BIRTHS = 5
_RENEW_SECONDS = 86_400.0


def group_of(job: str, sink: str) -> str:
    """Name the consumer group that keeps a sink's mark. It never has a member."""
    return f"exactsink.{job}.{sink}"


def mark_offset(job: str, sink: str, topic: str, mark: Mark) -> Offset:
    """Return the offset that holds a mark in its text. Its number is the epoch, for people: nothing reads it."""
    text = {"exactsink": _VERSION, "lineage": mark.lineage, "epoch": mark.epoch, "tokens": sorted(mark.tokens)}
    return Offset(group_of(job, sink), topic, 0, mark.epoch or 0, json.dumps(text, separators=(",", ":")))


def _mark(group: str, text: str | None) -> Mark | None:
    """Read a mark from an offset's text; None if there is no text, or it is not a mark."""
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
        self._alone = not ctx.lineage  # before a claim, the journal's lineage is not known
        self.place: tuple[str, int] | None = None
        """The partition of __consumer_offsets that holds the mark; None until a transaction was seen to write there."""

    def read(self) -> Mark | None:
        """Read the committed mark. It can lag the answer to a commit by some milliseconds."""
        return self.read_beside()[0]

    def read_beside(self, *questions: Question[Any]) -> tuple[Mark | None, list[Any]]:
        """Read the mark and send questions at the same time; return the mark and the questions' results.

        Raises LineageError if the first read finds another job with this job's and sink's names.
        """
        asked = [self._wire.about_texts(self.group, self._topic), *questions]
        asked += [] if self._alone else [self._wire.about_texts(self.group)]
        (code, texts), *answers = self._wire.ask(*asked)
        self._check("read the sink's mark", code)
        if not self._alone:
            self._check_alone(*answers.pop())
        return _mark(self.group, texts.get(self._topic)), answers

    def _check_alone(self, code: int, texts: Mapping[str, str]) -> None:
        """Raise LineageError if a job with another journal uses this job's and sink's names."""
        self._check("read the group's marks", code)
        for what, why, fix in self._shared(texts, {self._ctx.lineage, *self._ctx.succeeds}):
            raise LineageError(what, why=why, next=fix)
        self._alone = True

    def _shared(self, texts: Mapping[str, str], ours: Collection[str]) -> Iterator[tuple[str, str, str]]:
        """Find other jobs with these names: each would find the other's transactions, and stop at them by chance."""
        for topic in sorted(texts.keys() - {self._topic}):
            if (mark := _mark(self.group, texts[topic])) is not None and mark.lineage not in ours:
                names = f"job named {self._ctx.job} has a sink {self._ctx.sink}"
                what = f"another {names} on this cluster for topic {topic}"
                why = f"group {self.group} keeps the mark of journal {mark.lineage}, and both jobs' ids begin alike"
                words = ("--delete-offsets", "--group", self.group, "--topic", topic)
                fix = "give one of the jobs another name in [job] and a new checkpoint; or, once no job writes there"
                yield what, why, f"{fix}: {Remedies(self._options).command('kafka-consumer-groups', *words)}"

    def put_birth(self) -> Mark:
        """Write the birth of this journal's lineage if there is no mark; return the mark that is there then.

        Idempotent. It fences older drivers, which then can't write a birth or a renewal.
        """
        for _ in range(_BIRTHS):
            self._alone = False
            if (found := self._write_again(birth=True)) is not None:
                return found
        what = f"group {self.group} accepts no mark: another driver writes to it, or has an open transaction"
        raise Retryable(what, next="stop the other drivers of this job, then start it again")

    def renew(self) -> None:
        """Write the current mark again, once under a claim and then daily, because brokers forget old offsets.

        Call it only when each decided epoch is committed: of two values written in transactions, the value that was
        written later stays, whatever the order of their commits.
        """
        if time.monotonic() < self._renewed + _RENEW_SECONDS:
            return
        if self.read() is not None and self._write_again(birth=False) is not None:
            self._renewed = time.monotonic()

    def findings(self) -> Iterator[Finding]:
        """Find conditions under which the mark can't be written."""
        options, fixes = self._options, Remedies(self._options)
        if not self._topic:
            message = "each row names its own topic, so the sink keeps no mark: "
            message += "exactsink cannot detect that only the cluster was restored from a backup"
            yield Finding("warning", message, 'mark_topic = "..." in the sink\'s options')
            return
        if options.mark_topic is not None and self._topic not in self._wire.topics([self._topic]):
            yield Finding("error", f"there is no topic {self._topic} (mark_topic)", fixes.make_topic(self._topic))
        joined = self._wire.join(Transaction(self._id, NO_PRODUCER, 0), self.group)  # refused: no such producer
        [(read, texts)] = self._wire.ask(self._wire.about_texts(self.group))
        mine = _mark(self.group, texts.get(self._topic))
        for what, why, fix in self._shared(texts, () if mine is None else {mine.lineage}):
            yield Finding("warning", f"perhaps {what}: {why}. Then exactsink refuses to start the job", fix)
        if errors.GROUP_NOT_AUTHORIZED in (joined, read):
            message = f"{fixes.principal} may not use offsets of group {self.group}, so the sink can't keep its mark"
            yield Finding("error", message, fixes.allow("Read", "--group", self.group))

    def _write_again(self, *, birth: bool) -> Mark | None:
        """Write the current mark again, or with `birth` a birth; return the mark that is there then.

        With `birth`, an existing mark is returned unchanged. Taking the transactional id fences older drivers. Return
        None if another writer was, or may have been, quicker: an epoch's open transaction may have written its mark
        before this one, which would then hide it.
        """
        mine = self._wire.take(self._id)
        found = self.read()
        if birth != (found is None):
            return found
        quiet, written = False, found or Mark(self._ctx.lineage)
        code = self._wire.write_offset(mine, mark_offset(self._ctx.job, self._ctx.sink, self._topic, written))
        if code == 0:
            listed = self._wire.ongoing(prefix(self._ctx.job, self._ctx.sink))
            quiet = not any(one.offsets for one in listed) and self.read() == found
            for _ in range(2 if quiet else 1):  # the second end is answered once readers see the first
                [code] = self._wire.end([mine], commit=quiet)
        if code not in errors.NOT_MINE:
            self._check("write the sink's mark", code, id=self._id if quiet else "")
        return written if quiet and code == 0 else None

    def _check(self, doing: str, code: int, *, id: str = "") -> None:
        """Raise the error for a code of the group's coordinator, or of the coordinator of `id`."""
        if code:
            raise errors.refused(doing, code, self._options, id=id, topic=self._topic, group=self.group)


# The source's offsets: exactsink writes them, and never reads them

_READ, _OUT = "kafka-acls.sh --add --operation Read", "remove report_offsets_to from the sink's options"
_CAUSES = {
    "UnknownMemberIdError": (
        "the group has consumers, so it accepts no offsets from others",
        "name a group without consumers: kafka-consumer-groups.sh --describe --members lists a group's consumers",
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
    """Commit the source's end offsets to a consumer group. Idempotent, from any process. No row depends on them.

    Raises Retryable if the next epoch may succeed, with a new `admin`, because this one keeps its coordinator even when
    that has moved. Raises Fatal if no source reports Kafka's offsets.
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
    """Read Kafka's offsets, by topic and partition, from the ends of all sources. Ends of other stores are ignored.

    If two sources read the same partition, the lower offset counts.
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
    """Read one source's end: `{"orders": {"0": 17, "1": 4}}`. Raises ValueError for any other form."""
    if not isinstance(end, dict) or not all(isinstance(partitions, dict) for partitions in end.values()):
        raise ValueError(f"{end!r} is not an object of objects")
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            number = int(partition) if partition.isascii() and partition.isdecimal() else -1
            if not 0 <= number <= _LARGEST_PARTITION:
                raise ValueError(f"{partition!r} is not a partition")
            if type(offset) is not int or not 0 <= offset <= _LARGEST_OFFSET:
                raise ValueError(f"{offset!r} is not an offset")
            yield topic, number, offset


def _refusal(doing: str, refused: Mapping[TopicPartition, str]) -> Retryable:
    """Return the error for the partitions that the broker refused. It has accepted the offsets of all others."""
    error = next(iter(refused.values()))
    partitions = [f"{p.topic}/{p.partition}" for p, answer in refused.items() if answer == error]
    why, fix = _CAUSES.get(error, ("", "the next epoch tries again"))
    said = f"{', '.join(partitions[:3])}{', ...' if len(partitions) > 3 else ''}"
    return Retryable(f"{doing}: the broker answered {error} for {said}", why=why, next=fix)

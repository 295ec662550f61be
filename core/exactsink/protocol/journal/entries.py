"""A journal's entries one by one, including damaged ones, for people. exactsink decides nothing by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exactsink.contract import Fatal, LineageError
from exactsink.protocol.journal.log import needed
from exactsink.protocol.journal.records import Claim, Kept, Record, decode
from exactsink.protocol.journal.stores import JournalStore

__all__ = ["EntryProblem", "Entry", "Need", "checked", "entries_of"]

Need = Literal["every start", "sweeps of old work", "history"]
"""Which reads need an entry. Old claims and notes are read if a store lists work that no newer claim has begun."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry: its record, or the `problem` for which it can't be read."""

    seq: int
    data: bytes
    record: Record | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """The problem with an entry, or with a missing one, and the reads that need it."""

    seq: int
    problem: str
    needed_by: Need


def entries_of(store: JournalStore) -> Iterator[Entry]:
    """Read every stored entry, from the oldest on."""
    for seq in sorted(store.list()):
        data = store.read(seq)
        if data is None:
            continue  # deleted since the listing
        try:
            yield Entry(seq, data, decode(data, seq))
        except (Fatal, LineageError) as error:
            yield Entry(seq, data, None, f"{error.what}: {error.why}")


def checked(entries: Iterable[Entry]) -> tuple[Sequence[int], Sequence[EntryProblem]]:
    """Return the stored seqs, and every problem: of an entry, its sum, its chain, or the entries that it names.

    Old decisions are deleted regularly, so a missing one is a problem only if the newest entry names it. Claims and
    notes are never deleted.
    """
    problems: dict[int, str] = {}
    sums: dict[int, str] = {}
    named: list[tuple[int, int, str, bool]] = []  # the naming entry, the named one, its sum, whether it must exist
    anchors: dict[int, Claim | Kept] = {}
    newest: Record | None = None
    last = -1
    for entry in entries:
        last, newest = entry.seq, entry.record
        if entry.record is None:
            problems[entry.seq], sums[entry.seq] = entry.problem, ""
            continue
        sums[entry.seq] = entry.record.sha256
        named += _named_by(entry.record)
        if isinstance(entry.record, Claim | Kept):
            anchors[entry.seq] = entry.record
    if newest is not None:
        named += [(newest.seq, seq, "", True) for seq in newest.names]
    for by, seq, sha256, must_stand in named:
        if seq not in sums:
            if must_stand:
                problems.setdefault(seq, f"journal entry {seq} is not there: entry {by} names it")
        elif sha256 and sums[seq] and sums[seq] != sha256:
            problems.setdefault(seq, f"journal entry {seq} is not the record that entry {by} follows")
    start = _read_at_start(newest, last, anchors)
    kept = set(anchors).union(seq for _, seq, _, must_stand in named if must_stand)
    found = [EntryProblem(seq, problem, _need(seq, start, kept)) for seq, problem in sorted(problems.items())]
    return sorted(sums), found


def _named_by(record: Record) -> Iterator[tuple[int, int, str, bool]]:
    if record.before >= 0:
        yield record.seq, record.before, record.before_sum, True
    if record.prior_sum:
        yield record.seq, record.seq - 1, record.prior_sum, False
    for seq, sha256 in zip(record.names, record.name_sums, strict=False):
        yield record.seq, seq, sha256, False


def _read_at_start(newest: Record | None, last: int, anchors: Mapping[int, Claim | Kept]) -> frozenset[int]:
    """Return the entries that every start reads: the newest, the one before, the named ones, claims and notes."""
    read = {last, last - 1}
    if newest is None:
        return frozenset(read)

    def walk(before: int) -> Iterator[Claim | Kept]:
        if isinstance(newest, Claim | Kept):
            yield newest
        while before >= 0:
            read.add(before)
            if (anchor := anchors.get(before)) is None:
                return
            yield anchor
            before = anchor.before

    needed(walk(newest.before), newest.names)  # it takes only as many as it needs
    return frozenset(read.union(newest.names))


def _need(seq: int, start: frozenset[int], kept: set[int]) -> Need:
    if seq in start:
        return "every start"
    return "sweeps of old work" if seq in kept else "history"

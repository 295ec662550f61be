"""Files in an object store: nobody sees an upload until its completion makes the object with the final name.

A participant lists its uploads in an object of its own, `_exactsink/TXN.uploads`, which a sweep reads first. If a
writer died before it could list an upload, the sweep finds the upload in the store's own listing, if there is one.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Txn,
    Unknown,
)
from exactsink_files.places import FilePlace, Look, foreign_file
from exactsink_files.preflight_stores import store_problems
from exactsink_files.stores import ObjectHead, Store, in_parallel
from exactsink_files.votes import Part, VotedFile, VotedFiles, own_txn, temp_root

__all__ = ["Uploads", "identity", "record_name"]

_RECORD = ".uploads"
_FILE = re.compile(r"(?:.*/)?(?P<txn>[^/]+?)(?:\.\d+)?\.(?:parquet|json|csv)", re.DOTALL)

_Answer = TypeVar("_Answer")


def record_name(txn: str) -> str:
    """Return the name of the object in `_exactsink` that lists a participant's uploads."""
    return txn + _RECORD


def identity(txn: str, final: str) -> dict[str, str]:
    """Return the metadata that identify an object as a participant's file with this final name."""
    return {"exactsink-txn": txn, "exactsink-file": hashlib.sha256(final.encode()).hexdigest()[:16]}


class Uploads(FilePlace):
    """A bucket, below a prefix: files wait as parts of uploads."""

    def __init__(self, store: Store) -> None:
        self.root = store.root
        self._store = store
        self._own = type(store)(temp_root(store.root))
        self._all_listed = False

    def problems(self, ctx: JobContext) -> Iterable[Finding]:
        return store_problems(self._own, str(self.root), ctx)

    def prepare(self) -> None:
        """Do nothing: a store needs no folders."""

    def look(self, votes: Mapping[str, VotedFiles]) -> Look:
        """Find missing files: one listing shows the waiting uploads, and a query each shows the state of the others."""
        files = [(name, file) for name, vote in votes.items() for file in vote.files]
        waiting = self._store.waiting([file for _, file in files]) if files else set()
        missing = {name: [_wrong_parts(file, file.parts)] for name, file in files if _wrong_parts(file, file.parts)}
        unlisted = [each for each in files if each[1].temp not in waiting]
        states = in_parallel(lambda each: self._state(each[1]), unlisted)
        for (name, file), (waits, evidence) in zip(unlisted, states, strict=True):
            waiting |= {file.temp} if waits else set()
            if evidence:
                missing.setdefault(name, []).append(evidence)
        return Look({name: "; ".join(found) for name, found in missing.items()}, frozenset(waiting))

    def gone(self, vote: VotedFiles) -> bool:
        return None in self._parts(vote)

    def shows(self, vote: VotedFiles) -> bool:
        return any(in_parallel(lambda file: self._store.head(self._store.key(file.final)), vote.files))

    def withdraw(self, vote: VotedFiles) -> None:
        in_parallel(lambda file: self._store.abort(self._store.key(file.final), file.temp), vote.files)
        if any(parts is not None for parts in self._parts(vote)):  # an abort's answer proves nothing
            what, fix = f"the store keeps uploads to {vote.root}", "start the job again; if this stays, check the store"
            raise Retryable(what, why="it had reported them as aborted", next=fix)
        self.drop([vote])

    def publish(self, votes: Mapping[str, VotedFiles], found: Look) -> Mapping[str, Sequence[Outcome]]:
        with self._store.completes_sent() as sent:
            return _each(votes, lambda name, file: self._place(name, file, file.temp in found.waiting, sent))

    def standings(self, votes: Mapping[str, VotedFiles]) -> Mapping[str, Sequence[Standing]]:
        return _each(votes, self._stands)

    def holds(self, txn: Txn) -> Sequence[str]:
        noted = len(self._noted(self._own.key(record_name(txn.id))))
        takes = f"{noted or 'its'} unfinished uploads below {self.root} take room in the store until it ends"
        rule = f" or {self._store.ends_by} ends them" if self._store.ends_by else ""
        return [f"{takes}{rule}; readers neither see them nor wait for them"]

    def drop(self, votes: Sequence[VotedFiles]) -> None:
        """Remove the lists of completed uploads, and their remaining parts."""
        self._store.forget([file for vote in votes for file in vote.files])
        if self._store.notes != "none":
            self._store.delete([self._store.key(vote.folder) for vote in votes])

    def remove(self, txns: Sequence[Txn]) -> None:
        """Abort all uploads of these participants: on their own lists, and in the store's listing."""
        ids = {txn.id for txn in txns}
        records = [self._own.key(record_name(name)) for name in sorted(ids) if self._store.notes != "none"]
        noted = {pair for found in in_parallel(self._noted, records) for pair in found if _txn_name(pair[0]) in ids}
        unfinished = self._store.unfinished(everywhere=True)
        listed = {(upload.name, upload.upload_id) for upload in unfinished if _txn_name(upload.name) in ids}
        for key in {key for key, _ in noted} - {key for key, _ in listed}:  # a server may find whole keys only
            listed |= {(key, upload.upload_id) for upload in self._store.uploads(key) if upload.name == key}
        in_parallel(lambda pair: self._store.abort(*pair), sorted(noted | listed))
        self._own.delete(records)

    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        """List the participants that have a list of uploads, or an upload.

        If the store finds none below the root, a committer lists the whole bucket once.
        """
        begun: dict[Txn, float] = {}
        begins = self._own.key(f"{ctx.job}.{ctx.sink}.")
        records = self._own.objects(begins) if self._store.notes != "none" else ()
        known = [(key.rpartition("/")[2].removesuffix(_RECORD), when) for key, when in records if key.endswith(_RECORD)]
        listed = self._store.unfinished(everywhere=not self._all_listed)
        self._all_listed = True
        for name, when in [*known, *((_txn_name(upload.name), upload.begun) for upload in listed)]:
            if (txn := own_txn(ctx, name)) is not None:
                begun[txn] = min(when, begun.get(txn, when))
        now = time.time()
        return [InDoubt.of(txn, age_seconds=max(0.0, now - when)) for txn, when in begun.items()]

    def _noted(self, record: str) -> list[tuple[str, str]]:
        """Read a list of uploads; an absent list counts as empty."""
        data = self._own.get(record)
        return [] if data is None else [(key, upload) for key, upload in json.loads(data)]

    def _parts(self, vote: VotedFiles) -> list[list[Part] | None]:
        return in_parallel(lambda file: self._store.parts(self._store.key(file.final), file.temp), vote.files)

    def _state(self, file: VotedFile) -> tuple[bool, str]:
        """Return whether an upload waits, and why its file can't get its name; empty if it can, or has it."""
        parts = self._store.parts(self._store.key(file.final), file.temp)
        if parts is not None and set(file.parts) <= set(parts):  # a Complete ignores parts that it does not name
            return True, ""
        if self._store.head(self._store.key(file.final)) is not None:  # its parts may be half removed
            return False, ""
        return False, self._gone(file) if parts is None else self._other_parts(file)

    def _place(self, name: str, file: VotedFile, waits: bool, sent: Mapping[str, int]) -> Outcome:
        """Complete one upload, or find that it is complete. Raises Fatal if a foreign object has its name.

        It completes only an upload that was seen to wait. After a repeat, only the object itself is a proof: see
        `Store.complete`.
        """
        refusal: OSError | None = None
        proof = "gone"
        completed = False
        if waits:
            try:
                self._store.complete(self._store.key(file.final), file.temp, file.parts, identity(name, file.final))
                completed = True
                if sent[file.temp] <= 1:
                    return Committed()
            except OSError as error:
                if not (proof := self._store.proves(error)):
                    raise
                refusal = error
        if self._is_named(name, file):
            return Committed() if completed else AlreadyCommitted()
        if completed:
            return Unknown(f"the store answered that it completed {self._named(file)}, but it shows no object")
        if proof == "gone":
            return Unknown(self._gone(file))
        if proof == "parts differ":
            return Unknown(f"{self._other_parts(file)}: {refusal}")
        raise Retryable(  # a condition failed, but the cause is gone, or another call has the same key
            f"{self.root}/{file.final} could not be completed",
            why=str(refusal),
            next="start the job again: the start queries the store again",
        ) from refusal

    def _stands(self, name: str, file: VotedFile) -> Standing:
        """Find whether one object has its final name. Raises Fatal if a foreign object has it."""
        waits, evidence = self._state(file)  # before the name, which an object gets before its upload goes
        if self._is_named(name, file):
            return AlreadyCommitted()
        return Prepared() if waits and not evidence else Unknown(evidence or self._gone(file))

    def _is_named(self, name: str, file: VotedFile) -> bool:
        """Return whether an object has its final name. Raises Fatal if a foreign object has it."""
        held = self._store.head(self._store.key(file.final))
        if held is not None and not self._is_voted(held, name, file):
            raise foreign_file(f"{self.root}/{file.final}", file)
        return held is not None

    def _is_voted(self, held: ObjectHead, txn: str, file: VotedFile) -> bool:
        """Return whether an object is the voted file, by its metadata, its size and its parts."""
        ours = identity(txn, file.final).items() <= held.metadata.items()
        return ours and held.size == file.size and self._store.is_made_of(held, file.parts)

    def _named(self, file: VotedFile) -> str:
        return f"the upload {file.temp} of {self.root}/{file.final}"

    def _gone(self, file: VotedFile) -> str:
        return f"{self._named(file)} is gone, and so is its object"

    def _other_parts(self, file: VotedFile) -> str:
        return f"the parts of {self._named(file)} are not the parts that the task voted for"


def _each(votes: Mapping[str, VotedFiles], call: Callable[[str, VotedFile], _Answer]) -> dict[str, list[_Answer]]:
    """Call for each file, many at a time; return the answers by participant."""
    files = [(name, file) for name, vote in votes.items() for file in vote.files]
    answers: dict[str, list[_Answer]] = {name: [] for name in votes}
    for (name, _), answer in zip(files, in_parallel(lambda each: call(*each), files), strict=True):
        answers[name].append(answer)
    return answers


def _wrong_parts(file: VotedFile, parts: Sequence[Part]) -> str:
    """Return the fault of a vote's list of parts, because a store would also complete a file with some of them only."""
    if [part.number for part in parts] != list(range(1, len(parts) + 1)) or not parts:
        return f"the vote for {file.final} does not list all parts of its upload {file.temp}"
    size = sum(part.size for part in parts)
    return "" if size == file.size else f"the parts of {file.final} have {size} bytes, {file.size} were voted for"


def _txn_name(key: str) -> str:
    """Return the participant's id in the key of one of exactsink's files; empty for other keys."""
    found = _FILE.fullmatch(key)
    return "" if found is None else found["txn"]

"""The driver's side: give a vote's files their final names, or remove them, and prove which.

A process can be killed after every step, and another process may be at the same step. So the committer reads the state
from the target alone. `places` gives the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Committable,
    Committed,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    LineageError,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Undecided,
    Unknown,
)
from exactsink.toolkit.tabular.folders import table_findings
from exactsink_files.audit import audited
from exactsink_files.marks import FolderMark, MarkFolder
from exactsink_files.places import FilePlace, explained
from exactsink_files.votes import VotedFiles, own_txn

__all__ = ["FilesCommitter"]

_TEXTS = (pa.string(), pa.large_string())


class FilesCommitter(Committer):
    """Commit files in their place. Marks before and after it prove which files were committed."""

    def __init__(
        self,
        ctx: JobContext,
        place: FilePlace,
        problems: Callable[[pa.Schema], list[Finding]],
        exact_folders: Sequence[str] = (),
    ) -> None:
        self._ctx = ctx
        self._place = place
        self._root = str(place.root)
        self._problems = problems
        self._exact_folders = exact_folders
        self._made = False
        self._marks = MarkFolder(ctx, place.root)
        self._held: Mark | Literal["any"] | None = "any"

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        yield from self._problems(schema)
        found = list(self.check_target(participants))
        yield from found
        if not any(finding.severity == "error" for finding in found):
            with explained(self._root):
                yield from table_findings(self._place.root)
        texts = [each.name for each in schema if each.name in self._exact_folders and each.type in _TEXTS]
        if texts and self._place.folds:
            yield Finding(
                "error",
                f"{self._root} does not keep apart names of folders that differ only in {self._place.folds}: rows "
                f"could come back with another value of partition column {texts[0]}",
                "set path to a file system that keeps them apart, or leave the column out of partition_by; if no two "
                "of its values differ only in this, set allow_folded_names = true",
            )

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        with explained(self._root):
            yield from self._place.problems(self._ctx)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the folders. Idempotent. They are durable when it returns, also if another process made them."""
        if not self._made:
            with explained(self._root):
                self._place.prepare()
                self._marks.confirm()
            self._made = True
        return self._place.ticket()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Name all files, and only then drop the temp names. It writes marks before the first name and after the last.

        Idempotent, from any process. If a participant lacks a file, none of its files is named, so that its rows are
        not doubled when they are written again.
        """
        votes = self._votes(committables)
        with explained(self._root):
            found = self._place.look(votes)
            missing = found.missing
            # After the look: a process marks the epoch before it drops a temp name.
            standing = self._check_held(epoch)
            lost = {name for name, vote in votes.items() if name in missing and self._lost(epoch, name, vote, standing)}
            outcomes: dict[str, Outcome] = {name: Lost(missing[name]) for name in lost}
            whole = {n: vote for n, vote in votes.items() if n not in missing and not standing.proves(epoch, n)}
            if whole.keys() != votes.keys() - missing.keys():
                self._marks.sync()  # another process's proof must be durable before temp names go
            if whole:
                tokens = [c.txn.token for c in committables if c.txn.id not in lost]
                kept = {n: v for n, v in votes.items() if n not in lost}
                manifest = self._marks.begin(epoch, kept, tokens, standing)
                outcomes |= {n: _outcome(files) for n, files in self._place.publish(whole, found).items()}
                named = {n for n, outcome in outcomes.items() if isinstance(outcome, Committed | AlreadyCommitted)}
                if all(n in named or standing.proves(epoch, n) for n in votes):
                    self._marks.finish(manifest)
            return self._settled(epoch, votes, outcomes, missing)

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        votes = self._votes(committables)
        with explained(self._root):
            found = self._place.look(votes)
            standing = self._check_held(epoch)  # after the look, as in `commit`
            rest = {name: vote for name, vote in votes.items() if not standing.proves(epoch, name)}
            whole = {name: vote for name, vote in rest.items() if name not in found.missing}
            answers: dict[str, Standing] = dict.fromkeys(votes, AlreadyCommitted())
            answers |= {name: _standing(files) for name, files in self._place.standings(whole).items()}
            for name in rest.keys() - whole.keys():
                lost = self._never_named(epoch, name, votes[name], standing)
                answers[name] = Lost(found.missing[name]) if lost else Unknown(found.missing[name])
            return list((answers | self._proven_since(epoch, answers)).values())

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        txn = own_txn(self._ctx, participant.ref)
        with explained(self._root):
            return [] if txn is None else self._place.holds(txn)

    def _votes(self, committables: Sequence[Committable]) -> dict[str, VotedFiles]:
        """Read votes, by participant. Raises Fatal if a vote names files that are not its participant's own."""
        votes = {committable.txn.id: VotedFiles.load(committable) for committable in committables}
        for committable in committables:
            votes[committable.txn.id].check_own(self._ctx, committable.txn, self._place.root)
        return votes

    def _settled(
        self, epoch: int, votes: Mapping[str, VotedFiles], outcomes: Mapping[str, Outcome], missing: Mapping[str, str]
    ) -> Sequence[Outcome]:
        """Return each vote's outcome. A missing file may have been named, and moved by a user, since the look.

        The temp files of an Unknown stay, as evidence.
        """
        final = {name: outcomes.get(name, Unknown(missing.get(name, ""))) for name in votes}
        if proven := self._proven_since(epoch, final):
            self._marks.sync()
            final |= proven
        ended = [votes[n] for n, outcome in final.items() if isinstance(outcome, Committed | AlreadyCommitted)]
        self._place.drop(ended)
        return list(final.values())

    def _proven_since(self, epoch: int, found: Mapping[str, Outcome | Standing]) -> dict[str, AlreadyCommitted]:
        """Return the Unknown votes that a mark proves by now: their files were named since the look, and then moved."""
        unknown = [name for name, one in found.items() if isinstance(one, Unknown)]
        now = self._marks.read() if unknown else None
        return {name: AlreadyCommitted() for name in unknown if now is not None and now.proves(epoch, name)}

    def _check_held(self, epoch: int) -> FolderMark:
        """Return the mark in the folder. Raises Retryable if it is not the mark that was compared with the journal."""
        standing = self._marks.read()
        mark = standing.mark
        if standing.epoch >= epoch and mark is not None:
            if mark.lineage != self._ctx.lineage:
                raise LineageError(
                    f"sink {self._ctx.sink}: {self._root} holds {mark}",
                    why=f"this journal is {self._ctx.lineage}, and another one writes there under the same job name",
                    next="give this job another name and a new checkpoint, or restore the folder's own journal",
                )
        elif self._held not in ("any", mark):
            raise Retryable(
                f"sink {self._ctx.sink}: the mark in {self._root} is not the one that was read before",
                why=f"it was {self._held}, and is {mark} now",
                next="start the job again: the start compares it with the journal",
            )
        return standing

    def _lost(self, epoch: int, name: str, vote: VotedFiles, standing: FolderMark) -> bool:
        """Return whether none of a vote's files was ever named, nor can be; remove the remaining temp files first.

        The proof is a mark that fits the journal and does not name the participant. A file that exists but differs from
        the vote is not lost.
        """
        if not self._never_named(epoch, name, vote, standing):
            return False
        self._place.withdraw(vote)
        return not self._marks.read().names(epoch, name) and not self._place.shows(vote)

    def _never_named(self, epoch: int, name: str, vote: VotedFiles, standing: FolderMark) -> bool:
        """Return whether a file of a vote is gone, and none of its files was ever named."""
        gone = self._place.gone(vote)
        return isinstance(self._held, Mark) and gone and not (standing.names(epoch, name) or self._place.shows(vote))

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        with explained(self._root):
            voted = {epoch: [f for c in votes for f in VotedFiles.load(c).files] for epoch, votes in epochs.items()}
            return audited(self._place.root, voted, deep=deep)

    def mark(self) -> Mark | None:
        with explained(self._root):
            self._held = self._marks.read().mark
        return self._held

    def put_birth(self) -> Mark:
        with explained(self._root):
            self._held = self._marks.put_birth()
        return self._held

    def trim_marks(self) -> None:
        with explained(self._root):
            self._marks.trim()

    def abort(self, undecided: Undecided) -> None:
        txns = [txn for participant in undecided if (txn := own_txn(self._ctx, participant.ref)) is not None]
        with explained(self._root):
            self._place.remove(txns)

    def in_doubt(self) -> Iterable[InDoubt]:
        with explained(self._root):
            return self._place.in_doubt(self._ctx)

    def close(self) -> None:
        """Do nothing: the committer holds nothing open."""


def _outcome(files: Sequence[Outcome]) -> Outcome:
    """Combine the outcomes of a participant's files."""
    return _unknown(files) or (Committed() if Committed() in files else AlreadyCommitted())


def _standing(files: Sequence[Standing]) -> Standing:
    """Combine the standings of a participant's files."""
    return _unknown(files) or (Prepared() if Prepared() in files else AlreadyCommitted())


def _unknown(files: Sequence[Outcome | Standing]) -> Unknown | None:
    unknown = [file.evidence for file in files if isinstance(file, Unknown)]
    return Unknown("; ".join(unknown)) if unknown else None

"""For every scenario of the kit, the defect that it must catch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Backend
from exactsink.testing import ConformanceTarget
from exactsink.testing.wrapped import WrappedApplier
from exactsink.toolkit.roads import Applier, Marker
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.conformance import TableTarget
from tests.conformance import defects_of_commits as commits
from tests.conformance import defects_of_marks as marks
from tests.conformance import defects_of_standings as standings
from tests.conformance import defects_of_work as work
from tests.conformance.reference_store import Defect, ReferenceTarget


class _Blind(Marker):
    def must_apply(self, stored: Marker | None) -> bool:
        return True


class _BlindApplier(WrappedApplier):
    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        return super().apply(_Blind(*(getattr(marker, field.name) for field in fields(marker))), batches)


class _BlindBackend(UpsertBackend):
    def applier(self) -> Applier:
        return _BlindApplier(super().applier())


@dataclass(frozen=True)
class AppliesBlindly(TableTarget):
    """Applies an epoch without looking at its marker under the lock."""

    strategy: str = "staged"

    def backend(self, folder: Path) -> Backend:
        return _BlindBackend(super().backend(folder).options)  # type: ignore[arg-type]


_CAUGHT_BY: Mapping[Defect, str] = {
    commits.CommitsFromMemory: (
        "killed-before-claim killed-after-claim killed-before-recommit killed-after-recommit "
        "killed-after-decide killed-before-commit stalled-before-claim stalled-after-claim "
        "stalled-after-recommit"
    ),
    work.LeavesOrphans: (
        "killed-before-sweep killed-after-sweep killed-after-write killed-before-pre_commit killed-after-vote "
        "stalled-before-sweep stalled-after-sweep stalled-after-write stalled-before-pre_commit "
        "stalled-before-vote stalled-before-decide"
    ),
    commits.DoublesOnRepeat: (
        "killed-before-open_epoch killed-before-write killed-after-commit killed-before-complete "
        "killed-after-complete killed-before-return killed-after-return stalled-after-commit "
        "stalled-before-complete stalled-after-complete stalled-before-return stalled-after-return "
        "commit-replayed"
    ),
    work.OpensOnce: "killed-after-open_epoch stalled-before-open_epoch stalled-after-open_epoch",
    work.PublishesEarly: (
        "killed-after-pre_commit killed-before-vote killed-before-decide stalled-before-write "
        "stalled-after-pre_commit stalled-after-vote undecided-invisible"
    ),
    commits.RemembersOneEpoch: "stalled-before-recommit stalled-after-decide stalled-before-commit",
    commits.NoGaps: "empty-epoch",
    work.DropsManyRows: "many-rows",
    work.PassesBadRows: "bad-rows-apart",
    work.JudgesByTheHour: "quarantine-replayed",
    work.ForgetsItsRules: "judged-again",
    work.Reverses: "order-kept",
    commits.OneByOne: "one-moment",
    work.NeedsItsModule: "other-process",
    commits.ChecksThenActs: "commits-at-once",
    commits.DoublesInOneProcess: "answer-lost",
    commits.RowsThenMark: "killed-inside-commit stalled-inside-commit",
    work.LeavesALock: "killed-inside-sweep",
    commits.CallsLostCommitted: "all-votes-lost",
    commits.CallsAllLost: "one-vote-lost",
    commits.SwallowsUnknown: "unknown-before-commit",
    commits.CallsUnknownLost: "unknown-after-commit",
    work.HidesOrphans: "loser-swept",
    commits.ReadsItsVersionOnly: "previous-release",
    work.ListsByPrefix: "others-untouched",
    work.AbortsEverything: "foreign-untouched",
    work.ListsOlderOnly: "another-journal",
    commits.OneMarkerForAll: "two-jobs-in-turn two-jobs-interleaved",
    marks.PutsBlindly: "births-at-once",
    marks.SeesItsOwnOnly: "second-journal",
    marks.ForgetsTheClaim: "mark-follows",
    marks.MarksWhatItWasAskedFor: "mark-kept",
    marks.TrimsAll: "marks-trimmed",
    standings.CommitsToKnow: "assessed",
    standings.SeesAllLost: "assessed-lost",
    standings.SeesAllPrepared: "assessed-inside-commit",
    standings.LooksForEvidenceFirst: "assessed-beside-commit",
}
_UNSEEN_WITH_MARKS = (
    *("stalled-before-recommit", "stalled-before-open_epoch"),
    *("stalled-after-decide", "stalled-before-commit"),
)
"""There the core stops a stalled driver by the marks, before it comes to the defect."""
SABOTAGES: Mapping[str, ConformanceTarget] = {
    **{
        name: ReferenceTarget(defect, marks=name not in _UNSEEN_WITH_MARKS)
        for defect, names in _CAUGHT_BY.items()
        for name in names.split()
    },
    "applied-late": AppliesBlindly(),
}
"""Scenario and the target whose defect it must catch."""

OTHER_SABOTAGES: Mapping[str, ConformanceTarget] = {"killed-inside-commit": ReferenceTarget(marks.MarksAfterwards)}
"""Another defect that a scenario must catch."""


def what(target: ConformanceTarget) -> str:
    """Return what the defect is."""
    return str((target.defect if isinstance(target, ReferenceTarget) else type(target)).__doc__)

"""For every scenario of the kit, the defect that it must catch."""

from __future__ import annotations

from collections.abc import Mapping

from exactsink.testing import ConformanceTarget
from tests.conformance.defects_of_appliers import AppliesBlindly
from tests.conformance.defects_of_commits import (
    CallsAllLost,
    CallsLostCommitted,
    CallsUnknownLost,
    ChecksThenActs,
    CommitsFromMemory,
    DoublesInOneLife,
    DoublesOnRepeat,
    NoGaps,
    OneByOne,
    OneMarkerForAll,
    ReadsItsVersionOnly,
    RemembersOneEpoch,
    RowsThenMark,
    SwallowsUnknown,
)
from tests.conformance.defects_of_work import (
    AbortsEverything,
    DropsManyRows,
    HidesOrphans,
    LeavesALock,
    LeavesOrphans,
    ListsByPrefix,
    ListsOlderOnly,
    NeedsItsModule,
    OpensOnce,
    PublishesEarly,
    Reverses,
)
from tests.conformance.ledger import LedgerBackend

__all__ = ["SABOTAGES", "STAGED_SABOTAGES"]

SABOTAGES: Mapping[str, type[LedgerBackend]] = {
    "killed-before-claim": CommitsFromMemory,
    "killed-after-claim": CommitsFromMemory,
    "killed-before-recommit": CommitsFromMemory,
    "killed-after-recommit": CommitsFromMemory,
    "killed-before-sweep": LeavesOrphans,
    "killed-after-sweep": LeavesOrphans,
    "killed-before-open_epoch": DoublesOnRepeat,
    "killed-after-open_epoch": OpensOnce,
    "killed-before-write": DoublesOnRepeat,
    "killed-after-write": LeavesOrphans,
    "killed-before-pre_commit": LeavesOrphans,
    "killed-after-pre_commit": PublishesEarly,
    "killed-before-vote": PublishesEarly,
    "killed-after-vote": LeavesOrphans,
    "killed-before-decide": PublishesEarly,
    "killed-after-decide": CommitsFromMemory,
    "killed-before-commit": CommitsFromMemory,
    "killed-after-commit": DoublesOnRepeat,
    "killed-before-complete": DoublesOnRepeat,
    "killed-after-complete": DoublesOnRepeat,
    "killed-before-return": DoublesOnRepeat,
    "killed-after-return": DoublesOnRepeat,
    "stalled-before-claim": CommitsFromMemory,
    "stalled-after-claim": CommitsFromMemory,
    "stalled-before-recommit": RemembersOneEpoch,
    "stalled-after-recommit": CommitsFromMemory,
    "stalled-before-sweep": LeavesOrphans,
    "stalled-after-sweep": LeavesOrphans,
    "stalled-before-open_epoch": OpensOnce,
    "stalled-after-open_epoch": OpensOnce,
    "stalled-before-write": PublishesEarly,
    "stalled-after-write": LeavesOrphans,
    "stalled-before-pre_commit": LeavesOrphans,
    "stalled-after-pre_commit": PublishesEarly,
    "stalled-before-vote": LeavesOrphans,
    "stalled-after-vote": PublishesEarly,
    "stalled-before-decide": LeavesOrphans,
    "stalled-after-decide": RemembersOneEpoch,
    "stalled-before-commit": RemembersOneEpoch,
    "stalled-after-commit": DoublesOnRepeat,
    "stalled-before-complete": DoublesOnRepeat,
    "stalled-after-complete": DoublesOnRepeat,
    "stalled-before-return": DoublesOnRepeat,
    "stalled-after-return": DoublesOnRepeat,
    "empty-epoch": NoGaps,
    "many-rows": DropsManyRows,
    "order-kept": Reverses,
    "undecided-invisible": PublishesEarly,
    "one-moment": OneByOne,
    "other-process": NeedsItsModule,
    "commits-at-once": ChecksThenActs,
    "commit-replayed": DoublesOnRepeat,
    "answer-lost": DoublesInOneLife,
    "killed-inside-commit": RowsThenMark,
    "stalled-inside-commit": RowsThenMark,
    "killed-inside-sweep": LeavesALock,
    "all-votes-lost": CallsLostCommitted,
    "one-vote-lost": CallsAllLost,
    "unknown-before-commit": SwallowsUnknown,
    "unknown-after-commit": CallsUnknownLost,
    "loser-swept": HidesOrphans,
    "previous-release": ReadsItsVersionOnly,
    "others-untouched": ListsByPrefix,
    "foreign-untouched": AbortsEverything,
    "another-journal": ListsOlderOnly,
    "two-jobs-in-turn": OneMarkerForAll,
    "two-jobs-interleaved": OneMarkerForAll,
}
"""Scenario and the defect that it must catch."""

STAGED_SABOTAGES: Mapping[str, type[ConformanceTarget]] = {"applied-late": AppliesBlindly}
"""The same for scenarios that only a staged backend can be tried with."""

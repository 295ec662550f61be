"""Defects in how marks are compared, planted in the real code one at a time: `defects` has them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exactsink.contract import Mark
from exactsink.protocol import marks
from exactsink.protocol.journal import log
from exactsink.protocol.marks import Marks

Patch = pytest.MonkeyPatch


def lenient(*parts: str) -> Callable[[Patch], None]:
    """Take a mark though these parts of it are not what is expected."""

    def plant(patch: Patch) -> None:
        real = marks.is_part

        def part(mark: Mark | None, expected: Mark | None) -> bool:
            if mark is not None and expected is not None:
                if "newer" in parts and (mark.epoch or -1) > (expected.epoch or -1):
                    return True
                if "older" in parts and (mark.epoch or -1) < (expected.epoch or -1):
                    return True
            return real(mark, expected)

        patch.setattr(marks, "is_part", part)
        if "participants" in parts:
            patch.setattr(marks, "is_at", part)

    return plant


def unread(patch: Patch) -> None:
    """Read the mark before a commit, and don't compare it."""
    patch.setattr(Marks, "check_commit", lambda self, name: self.committers[name].mark())


def bind_only(patch: Patch) -> None:
    """Don't compare when an epoch is opened; births are put all the same."""

    def bind(self: Any) -> None:
        for name in self.sinks:
            if marks.expected_of(self.log(), name, self._target(name)) is None:
                self._found[name] = self.committers[name].put_birth()

    patch.setattr(Marks, "open_epoch", bind)


def tokens_unread(patch: Patch) -> None:
    def part(mark: Mark | None, expected: Mark | None) -> bool:
        return mark is not None and expected is not None and mark.epoch == expected.epoch

    patch.setattr(marks, "is_part", part)


def no_start_look(patch: Patch) -> None:
    patch.setattr(Marks, "check_start", lambda self, *_: None)
    patch.setattr(Marks, "check_committed", lambda self, *_: None)


def no_rewrite_look(patch: Patch) -> None:
    """Read the mark before lost rows are written again, and don't compare it."""
    patch.setattr(Marks, "_contradiction", lambda self, name, lost: (self.committers[name].mark(), "")[1])


def old_tokens(patch: Patch) -> None:
    real = log._remarked
    patch.setattr(log, "_remarked", lambda expected, sink, resolved: real(expected, sink, resolved=True))


def _is_above(mark: Mark | None, expected: Mark | None) -> bool:
    return mark is not None and expected is not None and (mark.epoch or 0) > (expected.epoch or 0)


def above_is_committed(patch: Patch) -> None:
    """Take a higher epoch in the target for a newer driver's, before a commit too."""
    real = Marks._unfinished

    def unfinished(self: Any, name: str) -> Any:
        fits = real(self, name)
        return lambda mark, expected: fits(mark, expected) or _is_above(mark, expected.now)

    patch.setattr(Marks, "_unfinished", unfinished)

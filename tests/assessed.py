"""A commit whose outcomes are held against what `assess` said just before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from exactsink.contract import Committable, Committer, Outcome, Retryable, Standing
from exactsink.testing import Session
from exactsink.testing.scenarios.standings import agree

__all__ = ["commit_assessed"]


def commit_assessed(session: Session, epoch: int, committables: Sequence[Committable]) -> list[Outcome]:
    """Assess and commit with one committer. What `assess` raises, `commit` may yet wait for."""

    def call(committer: Committer) -> list[Outcome]:
        said: Sequence[Standing] = ()
        with suppress(Retryable):
            said = committer.assess(epoch, committables)
        outcomes = list(committer.commit(epoch, committables))
        assert not said or [agree(*pair) for pair in zip(said, outcomes, strict=True)] == [True] * len(outcomes), said
        return outcomes

    return session.with_committer(call)

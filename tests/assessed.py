"""A commit whose outcomes are held against what `assess` said just before it."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.contract import Committable, Committer, ExactsinkError, Outcome, Retryable, Standing
from exactsink.testing import Session
from exactsink.testing.scenarios.standings import agree


def commit_assessed(session: Session, epoch: int, committables: Sequence[Committable]) -> list[Outcome]:
    """Assess and commit with one committer. Where `assess` raises, `commit` does, or has waited for an answer."""

    def call(committer: Committer) -> list[Outcome]:
        said: Sequence[Standing] = ()
        refused: ExactsinkError | None = None
        try:
            said = committer.assess(epoch, committables)
        except ExactsinkError as error:
            refused = error
        outcomes = list(committer.commit(epoch, committables))
        assert refused is None or isinstance(refused, Retryable)
        assert refused or all(agree(*pair) for pair in zip(said, outcomes, strict=True)), (said, outcomes)
        return outcomes

    return session.with_committer(call)

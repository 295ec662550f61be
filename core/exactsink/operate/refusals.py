"""Why an operator's command on what is in doubt is refused, or leaves something, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exactsink.contract import ConfigError, InDoubtError, LineageError, Lost
from exactsink.operate.indoubt import Doubt
from exactsink.protocol.commit import SinkCommit
from exactsink.protocol.journal.log import Log

__all__ = [
    *("GIVEN_UP", "Word", "check_journal", "failure_of", "is_decided", "is_foreign", "nothing_left", "votes_lost"),
]

GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True)
class Word:
    """An operator's word on a sink of an epoch: `committed` and `lost` are for what nothing proves, `given-up` for
    what is proven lost. `refs` are the participants that are meant; all that it fits where none is named."""

    epoch: int
    sink: str
    outcome: str
    reason: str
    refs: frozenset[str] = frozenset()

    def is_on(self, ref: str, *, lost: bool) -> bool:
        """Return whether it is on a participant that is proven lost, or else unknown."""
        return lost == (self.outcome == GIVEN_UP) and (not self.refs or ref in self.refs)


def failure_of(sink: str, results: Mapping[str, SinkCommit]) -> Exception | None:
    """Return why a sink is not committed; None where it is, or its error is raised anyway."""
    result = results.get(sink)
    if result is None:
        return InDoubtError(
            f"sink {sink} is held back: a sink that it comes after is not committed",
            next="`exactsink indoubt list JOB.toml` shows which, then commit that one first",
        )
    if result.error is not None:
        return result.error
    lost = [outcome for outcome in result.outcomes if isinstance(outcome, Lost)]
    if not lost:
        return None
    return votes_lost(result.committables[0].txn.epoch, {sink: len(lost)}, lost[0].evidence)


def votes_lost(epoch: int, lost: Mapping[str, int], why: str) -> InDoubtError:
    """Return the error of votes that the store proves lost, by sink."""
    named = next(iter(lost)) if len(lost) == 1 else "NAME"
    return InDoubtError(
        f"{sum(lost.values())} votes of {', '.join(lost)} are lost, and only the job has their rows",
        why=why or "the store proves that they never became visible",
        next="start the job, which writes them again: `exactsink run JOB.toml`; or, "
        f"where its source can't: exactsink indoubt resolve JOB.toml --epoch {epoch} --sink {named} "
        f"--as {GIVEN_UP} --reason 'TEXT'",
    )


def nothing_left(word: Word) -> ConfigError:
    kind = "proven lost" if word.outcome == GIVEN_UP else "neither proven committed nor proven lost"
    return ConfigError(
        f"nothing of epoch {word.epoch} in sink {word.sink} is {kind}",
        why="all else is committed, or is what another word is for: `committed` and `lost` are for what nothing "
        f"proves, `{GIVEN_UP}` for what is proven lost",
        next="exactsink indoubt list JOB.toml",
    )


def check_journal(log: Log, *, without_journal: bool) -> None:
    if without_journal and log.claims:
        raise ConfigError(
            f"the job has a journal, of generation {log.last_generation}",
            why="it knows what was decided, and --no-journal is for a job of which none is left",
            next="repeat without --no-journal",
        )
    if not without_journal and not log.claims:
        raise ConfigError(
            "the journal is empty, so nothing is proven undecided",
            why="the job has not run yet, its folder is gone, or the config's checkpoint is not the job's",
            next="bring the job's folder back; where it is gone for good, and no driver runs anywhere, repeat with "
            "--no-journal",
        )


def is_decided(doubt: Doubt) -> InDoubtError:
    return InDoubtError(
        f"{doubt.ref} is decided: it is never aborted",
        why=f"epoch {doubt.epoch} counts on its {doubt.rows} rows, and other sinks may show them already",
        next=f"exactsink indoubt commit JOB.toml --sink {doubt.sink}",
    )


def is_foreign(doubt: Doubt) -> LineageError:
    return LineageError(
        f"{doubt.ref} is foreign: this journal has no claim of generation {doubt.generation}, token {doubt.token}",
        why="another driver, with another journal, may yet decide it, or has",
        next=f"once you know that no such job runs: exactsink indoubt abort JOB.toml {doubt.short} "
        f"--token {doubt.token} --reason 'TEXT'",
    )

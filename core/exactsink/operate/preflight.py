"""Check, before the first row, whether every sink can give the guarantee that the job requires: the part without Spark.

`run` and `check` use each sink's columns, once Spark has analyzed the frames. `check --no-spark` uses the columns that
are known without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from exactsink.contract import ExactsinkError, Finding, PreflightError, Retryable
from exactsink.job.columns import changed_columns
from exactsink.job.config import JobConfig
from exactsink.job.guarantees import check_guarantee, check_order
from exactsink.job.history import JobHistory
from exactsink.protocol.checked import of_sink
from exactsink.protocol.journal.records import Columns
from exactsink.protocol.sinks import Sink, committer_of
from exactsink.toolkit.readable import unreadable
from exactsink.toolkit.waiting import backoff

__all__ = [
    "Found",
    "ask_sink",
    "column_refusals",
    "look_at_journal",
    "promise_refusals",
]


@dataclass(frozen=True, slots=True)
class Found:
    """Each sink's findings, other reasons to refuse the job, and warnings about the journal's place.

    `away` are the errors of sinks that did not answer. `not_looked_at` lists the checks that need Spark.
    """

    findings: Mapping[str, Sequence[Finding]]
    refusals: Sequence[ExactsinkError] = ()
    journal: Sequence[Finding] = ()
    away: Mapping[str, ExactsinkError] = field(default_factory=dict)
    not_looked_at: Sequence[str] = ()

    @property
    def errors(self) -> Sequence[tuple[str, Finding]]:
        """The findings that stop the job, each with its sink."""
        return [(sink, f) for sink, found in self.findings.items() for f in found if f.severity == "error"]

    def refuse(self) -> None:
        """Raise the error that would stop the job, with all findings and the statements that fix them."""
        lines = [f"sink {sink}: {finding.message}\n  fix: {finding.fix}" for sink, finding in self.errors]
        refusal = self.refusal(PreflightError("\n".join(lines), next="fix that, then `exactsink check JOB.toml`"))
        if refusal is not None:
            raise refusal

    def refusal(self, by_findings: PreflightError) -> ExactsinkError | None:
        """Return the gravest error that would stop the job. Errors that a person must fix are graver than others.

        `by_findings` is the error for the findings.
        """
        all_of = [*self.refusals, *self.away.values()]
        grave = [error for error in all_of if not isinstance(error, Retryable)]
        ordered = [*grave, *([by_findings] if self.errors else []), *all_of]
        return ordered[0] if ordered else None


def ask_sink(job: str, sink: Sink, schema: pa.Schema | None) -> Sequence[Finding]:
    """Run a sink's preflight; without a schema, only the checks that need no columns. Changes nothing."""
    try:
        with closing(committer_of(sink, job)) as committer:
            if schema is None:
                return list(committer.check_target(sink.max_participants))
            return [*unreadable(schema), *committer.check(schema, sink.max_participants)]
    except ExactsinkError as error:
        named = of_sink(sink.name, error)
        raise named from named.__cause__


def look_at_journal(config: JobConfig) -> tuple[Sequence[PreflightError], Sequence[Finding]]:
    """Return why the journal can't be kept in its place, and warnings."""
    found = list(JobHistory.of(config).check())
    refusals = [PreflightError(f.message, next=f.fix) for f in found if f.severity == "error"]
    return refusals, [finding for finding in found if finding.severity != "error"]


def column_refusals(
    config: JobConfig, sinks: Mapping[str, Sink], columns: Mapping[str, Columns]
) -> Sequence[ExactsinkError]:
    """Return why the next epoch would be refused for its columns; empty while the last epoch must be committed first.

    A journal that can't be read is reported when the job starts.
    """
    with suppress(ExactsinkError, OSError), closing(JobHistory.of(config).journal(backoff)) as journal:
        if not (log := journal.read()).decision_is_open:
            found = (changed_columns(sinks[name], log.decision, now) for name, now in columns.items())
            return [refusal for refusal in found if refusal is not None]
    return []


def promise_refusals(config: JobConfig, sinks: Mapping[str, Sink], *, stream: bool) -> Sequence[PreflightError]:
    """Return why the sinks together can't give the guarantee that the job requires."""
    job = config.job
    try:
        check_order(sinks)
        check_guarantee(sinks, require=job.require, allow_early_rows=job.allow_early_rows, stream=stream)
    except PreflightError as refusal:
        return [refusal]
    return []

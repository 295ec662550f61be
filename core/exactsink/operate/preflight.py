"""Look before the first row whether every sink can give what the job asks for: all that needs no Spark.

`run` and `check` ask with each sink's columns, once Spark has analyzed the frames; `check --no-spark` with what is
known of them without it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

import pyarrow as pa

from exactsink.contract import ExactsinkError, Finding, PreflightError, Retryable
from exactsink.job.columns import changed_columns
from exactsink.job.config import JobConfig
from exactsink.job.config.model import SourceSection
from exactsink.job.guarantees import check_guarantee, check_order
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.records import Columns
from exactsink.protocol.sinks import Sink, committer_of
from exactsink.toolkit.storage import is_object_url, object_scheme
from exactsink.toolkit.tabular.json_lines import OWN
from exactsink.toolkit.waiting import backoff

__all__ = [
    "Found",
    "ask_sink",
    "column_refusals",
    "found_together",
    "look_at_journal",
    "own_targets",
    "promise_refusals",
]


@dataclass(frozen=True, slots=True)
class Found:
    """Each sink's findings, what else refuses the job, and warnings of the journal's place.

    `away` are the errors of sinks that gave no answer; `not_looked_at` is what only Spark can look at.
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
        """Raise what would stop the job, with all findings and the statements that fix them."""
        lines = [f"sink {sink}: {finding.message}\n  fix: {finding.fix}" for sink, finding in self.errors]
        refusal = self.refusal(PreflightError("\n".join(lines), next="fix that, then `exactsink check JOB.toml`"))
        if refusal is not None:
            raise refusal

    def refusal(self, by_findings: PreflightError) -> ExactsinkError | None:
        """Return what would stop the job, the gravest: what a person has to fix before what may pass by itself.

        `by_findings` is what the findings raise.
        """
        all_of = [*self.refusals, *self.away.values()]
        grave = [error for error in all_of if not isinstance(error, Retryable)]
        ordered = [*grave, *([by_findings] if self.errors else []), *all_of]
        return ordered[0] if ordered else None


def ask_sink(job: str, sink: Sink, schema: pa.Schema | None) -> Sequence[Finding]:
    """Ask a sink's target; without a schema, for all that hangs on no column. Changes nothing."""
    try:
        with closing(committer_of(sink, job)) as committer:
            if schema is None:
                return list(committer.check_target(sink.max_participants))
            return [*_same_names(schema), *committer.check(schema, sink.max_participants)]
    except ExactsinkError as error:
        if f"sink {sink.name}" in error.what:
            raise
        raise type(error)(f"sink {sink.name}: {error.what}", why=error.why, next=error.next) from error


def _same_names(schema: pa.Schema) -> Iterator[Finding]:
    """Two columns of one name: nobody can read them by it, and some stores keep one of the two."""
    for name, count in Counter(schema.names).items():
        if count > 1 and not name.startswith(OWN):
            yield Finding("error", f"the rows have {count} columns {name}", "rename all but one: df.toDF(*NAMES)")


def look_at_journal(config: JobConfig) -> tuple[Sequence[PreflightError], Sequence[Finding]]:
    """Return why the journal's place can't hold one, and warnings."""
    found = list(JobHistory.of(config).check())
    refusals = [PreflightError(f.message, next=f.fix) for f in found if f.severity == "error"]
    return refusals, [finding for finding in found if finding.severity != "error"]


def column_refusals(
    config: JobConfig, sinks: Mapping[str, Sink], columns: Mapping[str, Columns]
) -> Sequence[ExactsinkError]:
    """Return why the next epoch would be refused for its columns; nothing while the last one is to be committed first.

    A journal that can't be read says so when the job starts.
    """
    with suppress(ExactsinkError, OSError), closing(JobHistory.of(config).journal(backoff)) as journal:
        if not (log := journal.read()).decision_is_open:
            found = (changed_columns(sinks[name], log.decision, now) for name, now in columns.items())
            return [refusal for refusal in found if refusal is not None]
    return []


def promise_refusals(config: JobConfig, sinks: Mapping[str, Sink], *, stream: bool) -> Sequence[PreflightError]:
    """Return why the sinks together can't give what the job asks for."""
    job = config.job
    try:
        check_order(sinks)
        check_guarantee(sinks, require=job.require, allow_early_rows=job.allow_early_rows, stream=stream)
    except PreflightError as refusal:
        return [refusal]
    return []


def found_together(config: JobConfig, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find what only shows where a job's sinks, source and checkpoint are seen side by side. Each with its sink."""
    yield from own_targets(config.source, sinks)
    yield from _in_the_jobs_folders(config, sinks)
    yield from _shared(sinks)
    mode = config.job.output_mode
    for name, sink in sinks.items():
        if mode != "append" and sink.backend.traits.appends:
            message = f'output_mode = "{mode}" gives a key again in each epoch that changes it: each stays as a row'
            yield name, Finding("warning", message, "use idempotent_upsert; nothing, if all changes are wanted")


def _in_the_jobs_folders(config: JobConfig, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find targets below the checkpoint or the journal: both are removed, or put back, as a whole."""
    folders = [_folder(str(config.checkpoint)), _folder(str(config.history))]
    for name, sink in sinks.items():
        target = _folder(sink.backend.target) if "://" in sink.backend.target else ""
        for folder in folders:
            if target == folder or target.startswith(f"{folder}/"):
                message = f"{target} is in the job's own folder {folder}: who removes that removes the rows"
                yield name, Finding("error", message, "give the sink a folder beside it")


def _shared(sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    first: dict[tuple[str, str], str] = {}
    for name, sink in sinks.items():
        brokers = str(getattr(sink.backend.options, "bootstrap_servers", ""))
        other = first.setdefault((brokers, sink.backend.target), name)
        if other != name:
            message = f"it writes into {sink.backend.target}, as sink {other} does: a row that both get is there twice"
            yield name, Finding("warning", message, "give it another target; nothing, if their `where` share no row")


def own_targets(source: SourceSection | None, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find the sinks that write into what the job reads: an endless loop. Each with its finding.

    An error where that is sure; else a warning: a topic of the same name, perhaps on another cluster, or a folder in
    the source's.
    """
    if source is not None and source.format == "kafka":
        yield from _own_topics(source, sinks)
    elif source is not None and source.path:
        yield from _own_folders(source, source.path, sinks)


def _own_topics(source: SourceSection, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    options = {key.lower(): str(value) for key, value in source.options.items()}
    brokers = _addresses(options.get("kafka.bootstrap.servers", ""))
    for name, sink in sinks.items():
        kind, _, topic = sink.backend.target.partition(":")
        if kind != "kafka" or not _reads(options, topic):
            continue
        if brokers & _addresses(str(getattr(sink.backend.options, "bootstrap_servers", ""))):
            message = f"topic {topic} is the job's own source: each epoch's rows would be the next one's input"
            yield name, Finding("error", message, "give the sink, or the source, another topic")
        else:
            message = f"the job's source has a topic {topic}, too: on the same cluster that is an endless loop"
            yield name, Finding("warning", message, "nothing, if they are two clusters")


def _own_folders(source: SourceSection, path: str, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Spark takes each file in the source's folder, whatever its name ends with; folders in it where it is asked to.

    With a pattern or a filter nothing is sure.
    """
    options = {key.lower(): str(value).lower() for key, value in source.options.items()}
    place = _folder(path)
    before, pattern, _ = re.split(r"([*?\[{]|$)", place, maxsplit=1)
    fixed = before.rpartition("/")[0] if pattern else place
    unsure = pattern or "pathglobfilter" in options
    folders = {name: _folder(sink.backend.target) for name, sink in sinks.items() if "://" in sink.backend.target}
    for name, target in folders.items():
        if target != fixed and not target.startswith(f"{fixed}/"):
            continue
        if not unsure and (target == place or options.get("recursivefilelookup") == "true"):
            message = f"{target} is in the job's own source: each epoch's files would be the next one's input"
            yield name, Finding("error", message, "give the sink, or the source, another folder")
        else:
            message = f"{target} is in the source's folder {fixed}: an endless loop if the source takes its files"
            yield name, Finding("warning", message, "give the sink another folder; nothing, if it never does")


def _folder(place: str) -> str:
    """Return one name for what a source and a sink may spell in several ways."""
    rest = place.partition("://")[2]
    return f"{object_scheme(place)}://{rest.rstrip('/')}" if is_object_url(place) else os.path.realpath(rest or place)


def _addresses(servers: str) -> frozenset[str]:
    return frozenset(address.strip().lower() for address in servers.split(",") if address.strip())


def _reads(options: Mapping[str, str], topic: str) -> bool:
    """Return whether a source with these options reads the topic."""
    if topic in (name.strip() for name in options.get("subscribe", "").split(",")):
        return True
    with suppress(ValueError):
        if topic in json.loads(options.get("assign", "{}")):
            return True
    with suppress(re.error):  # Java's patterns are not quite Python's
        return bool(re.fullmatch(options.get("subscribepattern", "(?!)"), topic))
    return False

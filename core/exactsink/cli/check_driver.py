"""`exactsink check --no-spark`: check a job from the driver alone. Also print the findings of any check."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from exactsink.cli.opened import Opened
from exactsink.cli.plain import plain
from exactsink.cli.plugins import commands_now
from exactsink.cli.table import guarantees_of, print_guarantees
from exactsink.contract import ExactsinkError, Finding, PreflightError
from exactsink.job.guarantees import job_guarantee
from exactsink.job.registry import Registry, installed_plugins
from exactsink.operate.driver_check import check_from_driver
from exactsink.operate.preflight import Found
from exactsink.protocol.sinks import Sink

__all__ = ["check", "report"]


def check(path: str, answer: dict[str, Any], within: float) -> None:
    """Print every sink and finding, and the checks that were left out. Raises the error that would stop the job."""
    opened = Opened.of(path)
    answer["job"] = opened.config.job.name
    found = check_from_driver(opened.config, opened.sinks, seconds=within)
    report(opened.sinks, found, answer)


def report(sinks: Mapping[str, Sink], found: Found, answer: dict[str, Any]) -> None:
    """Print a check's findings, and raise the error that would stop the job."""
    registry = Registry(installed_plugins())
    count = len(found.errors)
    what = "1 finding would stop the job" if count == 1 else f"{count} findings would stop the job"
    fix = f"fix {'it' if count == 1 else 'them'}, then `exactsink run JOB.toml`"
    refusal = found.refusal(PreflightError(what, next=fix))
    others = [_finding(other) for other in found.refusals if other is not refusal]
    away = {name: [error] for name, error in found.away.items()}
    by_sink = {name: [*map(_typed, found.findings[name]), *map(_finding, away.get(name, ()))] for name in sinks}
    journal = list(map(_typed, found.journal))
    answer["guarantee"] = job_guarantee(sinks.values())
    answer["sinks"] = {
        promise.sink: plain(promise) | {"findings": plain(by_sink[promise.sink])}
        for promise in guarantees_of(sinks, registry)
    }
    answer["journal"] = plain(journal)
    answer["findings"] = plain(others)
    answer["not_looked_at"] = list(found.not_looked_at)
    print_guarantees(sinks, registry, sys.stdout)
    _print("", [*others, *journal])
    for name, findings in by_sink.items():
        _print(f"sink {name}: ", findings)
    for unseen in found.not_looked_at:
        print(f"not checked without Spark: {unseen}")
    if refusal is not None:
        raise refusal


def _finding(error: ExactsinkError) -> Finding:
    """Return an error as a finding."""
    return _typed(Finding("error", ": ".join(filter(None, (error.what, error.why))), error.next))


def _typed(finding: Finding) -> Finding:
    """Return a finding with commands that are ready to type."""
    typed = commands_now().typed
    return Finding(finding.severity, typed(finding.message), typed(finding.fix))


def _print(place: str, findings: Iterable[Finding]) -> None:
    for finding in findings:
        print(f"{finding.severity}: {place}{finding.message}\n  fix: {finding.fix}")

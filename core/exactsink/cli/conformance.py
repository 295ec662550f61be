"""`exactsink conformance`: try an installed backend under faults, on the targets that its plugin ships."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from exactsink.cli.table import print_table
from exactsink.contract import ConfigError, ExactsinkError, Fatal
from exactsink.job.registry import Registry, installed_plugins
from exactsink.testing import SCENARIOS, ConformanceTarget, Result, Runner

__all__ = ["conformance"]


def conformance(name: str, scenarios: Sequence[str], as_json: bool) -> None:
    """Play the scenarios, all by default, on every target of a backend. Raises Fatal when one failed."""
    chosen = [_known(scenario) for scenario in scenarios] or list(SCENARIOS)
    targets = _targets(name, Registry(installed_plugins()))
    results: list[tuple[str, Result]] = []
    with tempfile.TemporaryDirectory(prefix="exactsink-conformance-") as folder, closing(Runner()) as runner:
        for target, given in targets.items():
            for scenario in chosen:
                result = runner.play(scenario, given, Path(folder, target, scenario))
                results.append((target, result))
                if not as_json:
                    _report(target, result)
    if as_json:
        print(json.dumps([{"target": target, **asdict(result)} for target, result in results], indent=1))
    else:
        _sum_up(results)
    failed = [f"{target}: {result.scenario}" for target, result in results if result.outcome == "failed"]
    if failed:
        raise Fatal(
            f"{len(failed)} of {len(results)} scenarios failed on backend {name}",
            why=", ".join(failed),
            next=f"exactsink conformance {name} --scenario {failed[0].partition(': ')[2]}",
        )


def _report(target: str, result: Result) -> None:
    fired = f"{len(result.faults)} faults" if len(result.faults) != 1 else result.faults[0]
    said = result.why if result.outcome != "passed" else fired
    print(f"{target:<16}{result.scenario:<26}{result.outcome:<8}{result.seconds:7.2f} s  {said}", flush=True)


def _sum_up(results: Sequence[tuple[str, Result]]) -> None:
    rows = []
    for target in dict.fromkeys(target for target, _ in results):
        outcomes = [result.outcome for name, result in results if name == target]
        rows.append((target, *(outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))))
    print()
    print_table(("target", "passed", "failed", "skipped"), rows, sys.stdout)


def _known(scenario: str) -> str:
    if scenario not in SCENARIOS:
        close = difflib.get_close_matches(scenario, list(SCENARIOS), n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"there is no scenario {scenario}{hint}", next="leave --scenario out to play all")
    return scenario


def _targets(name: str, registry: Registry) -> Mapping[str, ConformanceTarget]:
    """Return the targets that a backend's plugin ships. Raises ConfigError when there are none."""
    spec = registry.spec(name, "exactsink conformance")
    if not spec.conformance:
        why = "its BackendSpec names no `conformance` function"
        raise ConfigError(f"backend {name} ships no targets for the conformance kit", why=why)
    module, _, function = spec.conformance.partition(":")
    try:
        targets: Mapping[str, ConformanceTarget] = getattr(importlib.import_module(module), function)()
    except ExactsinkError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the targets of backend {name} can't be had", why=why, next=spec.install) from error
    return targets

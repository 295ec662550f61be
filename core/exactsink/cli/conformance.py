"""`exactsink conformance`: test an installed backend under faults, on the targets that its plugin ships."""

from __future__ import annotations

import importlib
import queue
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactsink.cli.plain import plain, print_json
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError, ExactsinkError, Fatal
from exactsink.job.registry import Registry, installed_plugins
from exactsink.testing import SCENARIOS, ConformanceTarget, Result, Runner
from exactsink.toolkit.nearest import nearest

__all__ = ["conformance"]


def conformance(name: str, scenarios: Sequence[str], as_json: bool, *, only: Sequence[str] = (), jobs: int = 1) -> None:
    """Play the scenarios, all by default, on every target of a backend, `jobs` at the same time.

    The files of a failed scenario stay in a new folder below the system's (TMPDIR). Raises Fatal if one failed.
    """
    chosen = [_known("scenario", scenario, SCENARIOS) for scenario in scenarios] or list(SCENARIOS)
    targets = _targets(name, Registry(installed_plugins()))
    named = [_known("target", target, targets) for target in only] or list(targets)
    plays = [_Play(target, scenario) for target in named for scenario in chosen]
    folder = Path(tempfile.mkdtemp(prefix="exactsink-conformance-"))
    results: dict[_Play, Result] = {}
    for play, result in _played(plays, targets, folder, min(jobs, len(plays))):
        results[play] = result
        if not as_json:
            _report(f"{len(results)}/{len(plays)}", play, result, folder)
    with suppress(OSError):  # it stays if it holds evidence
        folder.rmdir()
    if as_json:
        print_json([_body(play, results[play], folder) for play in plays])
    else:
        _sum_up(results)
    failed = [play for play in plays if results[play].outcome == "failed"]
    if failed:
        raise Fatal(
            f"{len(failed)} of {len(plays)} scenarios failed on backend {name}",
            why=", ".join(f"{play.target}: {play.scenario}" for play in failed),
            next=f"look into {failed[0].folder(folder)}, then "
            f"exactsink conformance {name} --target {failed[0].target} --scenario {failed[0].scenario}",
        )


@dataclass(frozen=True, slots=True)
class _Play:
    """A scenario on one target."""

    target: str
    scenario: str

    def folder(self, evidence: Path) -> Path:
        """Return the folder of this play: `log` is the drivers' log, `target` the store, `jobs` has the journals."""
        return evidence / self.target / self.scenario


def _played(
    plays: Sequence[_Play], targets: Mapping[str, ConformanceTarget], folder: Path, jobs: int
) -> Iterator[tuple[_Play, Result]]:
    """Play all, and yield each as it ends. Only a failed play leaves files in the folder."""
    with ExitStack() as stack:
        runners: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for _ in range(jobs):
            runners.put(stack.enter_context(closing(Runner())))

        def play(one: _Play) -> tuple[_Play, Result]:
            runner = runners.get()
            try:
                result = runner.play(one.scenario, targets[one.target], one.folder(folder))
            finally:
                runners.put(runner)
            if result.outcome != "failed":
                shutil.rmtree(one.folder(folder), ignore_errors=True)
                with suppress(OSError):  # other plays' files are in it
                    (folder / one.target).rmdir()
            return one, result

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for ended in as_completed([pool.submit(play, one) for one in plays]):
            yield ended.result()


def _report(count: str, play: _Play, result: Result, folder: Path) -> None:
    fired = f"{len(result.faults)} faults" if len(result.faults) != 1 else result.faults[0]
    said = result.why if result.outcome != "passed" else fired
    line = f"{count:>9}  {play.target:<16}{play.scenario:<26}{result.outcome:<8}{result.seconds:7.2f} s  {said}"
    print(line, flush=True)
    if result.outcome == "failed":
        print(f"  promise: {SCENARIOS[play.scenario].promise}\n  evidence: {play.folder(folder)}", flush=True)


def _body(play: _Play, result: Result, folder: Path) -> dict[str, Any]:
    evidence = str(play.folder(folder)) if result.outcome == "failed" else None
    return {"target": play.target, **plain(result), "evidence": evidence}


def _sum_up(results: Mapping[_Play, Result]) -> None:
    rows = []
    for target in sorted({play.target for play in results}):
        outcomes = [result.outcome for play, result in results.items() if play.target == target]
        rows.append((target, *(outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))))
    print()
    print_table(("target", "passed", "failed", "skipped"), rows, sys.stdout)


def _known(what: str, name: str, names: Iterable[str]) -> str:
    if name not in names:
        raise ConfigError(f"there is no {what} {name}{nearest(name, names)}", next=f"leave --{what} out to play all")
    return name


def _targets(name: str, registry: Registry) -> Mapping[str, ConformanceTarget]:
    """Return the targets that a backend's plugin ships. Raises ConfigError if there are none."""
    spec = registry.spec(name, "exactsink conformance")
    if not spec.conformance:
        why, fix = "its BackendSpec names no `conformance`", f"`exactsink init FOLDER --plugin {name}` writes one"
        raise ConfigError(f"backend {name} ships no targets for the conformance kit", why=why, next=fix)
    module, _, function = spec.conformance.partition(":")
    try:
        targets: Mapping[str, ConformanceTarget] = getattr(importlib.import_module(module), function)()
    except ExactsinkError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the targets of backend {name} can't be made", why=why, next=spec.install) from error
    return targets

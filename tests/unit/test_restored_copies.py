"""Targets, journals and all of it put back from a copy, epochs later: the job stops, or goes on; no row comes twice."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from tests.unit.test_idempotent import KeyedFiles, KeyedOptions, held

from exactsink.contract import Backend, InDoubtError, LineageError
from exactsink.testing import ConformanceTarget, Script
from exactsink.testing.context import Context
from exactsink.testing.driver_run import run_driver
from exactsink.testing.processes import ask, ask_fresh_process, ended, start
from exactsink_files.conformance import FilesTarget
from exactsink_idempotent_upsert.conformance import StagedTarget, TableTarget

BATCHES = ([5, 5], [5, 5], [5, 5], [5, 5], [5, 5])


@dataclass(frozen=True)
class KeyedTarget(ConformanceTarget):
    """A store with keys only; each row counts how often it was let through."""

    def backend(self, folder: Path) -> Backend:
        return KeyedFiles(KeyedOptions(folder=str(folder / "store")))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter({int(key): row["puts"] for key, row in held(folder / "store").items()})


TARGETS: Mapping[str, tuple[ConformanceTarget, Sequence[str]]] = {
    "files": (FilesTarget.of("parquet", partition_by=["kind"]), ["lake"]),
    "staged": (StagedTarget("staged"), ["table.db"]),
    "direct": (TableTarget("direct"), ["table.db"]),
    "keyed": (KeyedTarget(), ["store", "staging"]),  # its marks are in the staging folder
}
"""Each target, and what of its folder is put back or emptied."""


@dataclass(frozen=True)
class Ran:
    code: int
    said: str
    rows: Counter[int]


class Copies:
    """A job whose journal and target are copied after two epochs, and that has gone on for two more."""

    def __init__(self, name: str, folder: Path) -> None:
        self.target, self.own = TARGETS[name]
        self.context = Context(self.target, folder)
        self.copy = folder / "copy"
        self.script = self.context.script(*BATCHES)
        self.first = [self.run(self.script, 2)]
        shutil.copytree(self.context.place, self.copy / "target")
        shutil.copytree(self.script.folder, self.copy / "journal")
        self.first.append(self.run(self.script, 4))

    def run(self, script: Script, epochs: int = len(BATCHES)) -> Ran:
        """Play a driver run over the first epochs, in a process of its own."""
        said = self.context.folder / "said"

        def work() -> int:
            os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
            return run_driver(replace(script, batches=script.batches[:epochs]), None)

        code = ended(start(work))
        return Ran(code, said.read_text(), ask(lambda: self.target.applied(self.context.place)))

    def put_back_target(self) -> None:
        for name in self.own:
            _remove(self.context.place / name)
            there = self.copy / "target" / name
            (shutil.copytree if there.is_dir() else shutil.copy)(there, self.context.place / name)

    def put_back_journal(self) -> None:
        shutil.rmtree(self.script.folder)
        shutil.copytree(self.copy / "journal", self.script.folder)

    def empty(self) -> None:
        for name in self.own:
            _remove(self.context.place / name)
        ask(lambda: self.target.backend(self.context.place))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def played(name: str, folder: Path, play: Callable[[Copies], list[Ran]]) -> list[Ran]:
    """Be the interpreter without threads."""
    copies = Copies(name, folder)
    return copies.first + play(copies)


def target_back(copies: Copies) -> list[Ran]:
    copies.put_back_target()
    ran = [copies.run(copies.script), copies.run(copies.script)]
    copies.put_back_journal()
    return [*ran, copies.run(copies.script)]


def journal_back(copies: Copies) -> list[Ran]:
    copies.put_back_journal()
    ran = [copies.run(copies.script), copies.run(copies.script)]
    copies.put_back_target()
    return [*ran, copies.run(copies.script)]


def another_journal(copies: Copies) -> list[Ran]:
    other = replace(copies.script, folder=copies.script.folder / "other", batches=copies.context.rows([3], first=900))
    other.folder.mkdir()
    return [copies.run(other), copies.run(other), copies.run(copies.script)]


def emptied(copies: Copies) -> list[Ran]:
    copies.empty()
    return [copies.run(copies.script), copies.run(copies.script)]


def each_once(epochs: int) -> Counter[int]:
    return Counter(range(10 * epochs))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    ("play", "code", "stands", "values"),
    [
        (target_back, InDoubtError.exit_code, 2, ("epoch 1 (token ", "the journal expects epoch 3 (token ")),
        (journal_back, LineageError.exit_code, 4, ("epoch 3 (token ", "the journal expects epoch 1 (token ")),
        (another_journal, LineageError.exit_code, 4, ("epoch 3 (token ", "expects a target without a mark")),
        (emptied, InDoubtError.exit_code, 0, ("holds no mark", "the journal expects epoch 3 (token ")),
    ],
)
def test_what_does_not_belong_together_stops_the_job_with_both_values_and_what_does_goes_on(
    name: str, play: Callable[[Copies], list[Ran]], code: int, stands: int, values: Sequence[str], tmp_path: Path
) -> None:
    first, second, *refused = ask_fresh_process(partial(played, name, tmp_path, play))
    assert [(ran.code, ran.rows) for ran in (first, second)] == [(0, each_once(2)), (0, each_once(4))]
    for ran in refused[:2]:
        assert (ran.code, ran.rows) == (code, each_once(stands)), ran.said
        assert all(value in ran.said for value in values), ran.said
    for ran in refused[2:]:
        assert (ran.code, ran.rows) == (0, each_once(5)), ran.said

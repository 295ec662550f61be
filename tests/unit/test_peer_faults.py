"""The table of faults beside peers: rows are counted by id, and the command fails for ours alone, or for no fault."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.peer_faults import __main__ as command
from benchmarks.peer_faults.plays import FaultError, Play, Played, Stage, lines_of
from click.testing import CliRunner

WANTED = Counter({1: 1, 2: 1, 3: 1})
WHOLE = {"Kafka": WANTED}
LOST = {"Kafka": Counter({1: 1, 2: 1})}
DOUBLED = {"Kafka": Counter({1: 2, 2: 1, 3: 1}), "Postgres": WANTED}


@dataclass(frozen=True)
class NoStage:
    folder: Path

    def at(self, folder: Path) -> NoStage:
        return NoStage(folder)


def play(tool: str, targets: dict[str, Counter[int]]) -> Play:
    def act(stage: Stage) -> Played:
        if not targets:
            raise FaultError("not so: it was killed")
        return Played(WANTED, targets, "exit 0")

    return Play(tool, "a fault", act)


def test_rows_are_counted_by_id() -> None:
    swapped = play("it", {"Kafka": Counter({1: 2, 2: 1})})
    [line] = lines_of(swapped, swapped.act(None))  # type: ignore[arg-type]
    assert (line.rows, line.lost, line.doubled, line.differ) == (3, 1, 1, 0), "as many rows, and not the same"
    both = play("it", DOUBLED)
    kafka, postgres = lines_of(both, both.act(None))  # type: ignore[arg-type]
    assert (kafka.lost, kafka.doubled, kafka.differ) == (0, 1, 1)
    assert (postgres.lost, postgres.doubled, postgres.differ) == (0, 0, 1)


@pytest.mark.parametrize(
    ("plays", "code"),
    [
        ((play("exactsink: kafka", WHOLE), play("Flink", LOST)), 0),
        ((play("exactsink: kafka", LOST),), 1),
        ((play("exactsink: kafka", DOUBLED),), 1),
        ((play("exactsink: kafka", WHOLE), play("Flink", {})), 1),
    ],
)
def test_the_command_fails_for_ours_and_for_a_fault_that_was_not_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plays: tuple[Play, ...], code: int
) -> None:
    monkeypatch.setattr(command, "_PLAYS", plays)
    monkeypatch.setattr(command, "_stage", lambda: nullcontext(NoStage(tmp_path)))
    ended = CliRunner().invoke(command.main, ["--out", str(tmp_path)])
    assert ended.exit_code == code, ended.output
    found = json.loads((tmp_path / "peer_faults.json").read_text())
    assert {line["tool"] for line in found["lines"]} | {name.split(":")[0] for name in found["failed"]} == {
        each.tool for each in plays
    }

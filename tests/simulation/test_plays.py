"""Random plays with an operator who does as is printed: no row is lost or doubled that nobody was warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from exactsink.cli import rebase
from exactsink.protocol.lineage import out_of_order
from tests.printed import Announced, announced, commands, costs_of, differences
from tests.simulation import defects, defects_of_marks
from tests.simulation.plays import counted, plays
from tests.simulation.schedules import Lab
from tests.simulation.world import Violation

Patch = pytest.MonkeyPatch
QUICK, ALL, CHUNK = 200, 10_000, 1000
CHUNKS = [
    pytest.param(range(first, first + CHUNK), marks=[pytest.mark.proof, pytest.mark.timeout(1800)])
    for first in range(0, ALL, CHUNK)
]
WITH_DEFECT = range(500, 800)
REDECIDE_GONE = (387, 2180, 4633)
"""Their journal goes back to before a redecide: a loss that the target contradicts is for a person's word."""


@pytest.mark.parametrize("seeds", [range(QUICK), *CHUNKS], ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_no_row_is_lost_or_doubled_in_silence(seeds: range, record_property: Callable[[str, object], None]) -> None:
    count = Counter[str]()
    for one in plays(Lab(), seeds):
        count.update(counted(one))
    record_property("schedules", count["plays"])
    assert count["with a part put back"] > len(seeds) / 4, "restores are played"
    assert count["plays that cost what was announced"] > len(seeds) / 20, "and some cost rows"


def test_a_journal_from_before_a_redecide_leaves_a_command() -> None:
    assert sum(counted(one)["plays"] for one in plays(Lab(), REDECIDE_GONE)) == len(REDECIDE_GONE)


def _silent(patch: Patch) -> None:
    """Let `rebase` say of every sink that nothing is missing or doubled."""
    real = rebase.print_table

    def silent(header: Any, rows: Any, out: Any) -> None:
        real(header, [[*row[:-1], "nothing is missing or doubled"] for row in rows], out)

    patch.setattr(rebase, "print_table", silent)


def _adopt_for_nothing(patch: Patch) -> None:
    """Let an error say nothing of what `adopt` costs."""

    def quiet(epoch: int, expected: int) -> Any:
        error = out_of_order(epoch, expected)
        error.next = error.next.replace("missing", "gone")
        return error

    patch.setattr("exactsink.protocol.coordinator.out_of_order", quiet)


DEFECTS: dict[str, Callable[[Patch], None]] = {
    "rebase says that nothing is missing or doubled": _silent,
    "nobody says what adopt costs": _adopt_for_nothing,
    "trust another journal's ids": defects._trust_other_ids,
    "skip by number alone": defects._skip_by_number,
    "no look at start": defects_of_marks.no_start_look,
    "take a newer mark": defects_of_marks.lenient("newer"),
    "take an older mark": defects_of_marks.lenient("older"),
    "redecide not folded": defects._redecide_not_folded,
    "swallow a commit error": defects._swallow_commit_error,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_planted_defect_is_found(name: str, monkeypatch: Patch) -> None:
    DEFECTS[name](monkeypatch)
    with pytest.raises(Violation):
        for _ in plays(Lab(), WITH_DEFECT):
            pass


def test_a_person_reads_the_commands_that_can_be_typed() -> None:
    text = (
        "exactsink: x\n  next: bring it back, chmod u+rwx '/a b'; or `exactsink rebase JOB.toml --sink lake=3 --yes "
        "--reason '...'`, which goes on; or, where its source can't: exactsink indoubt resolve '/a b.toml' --epoch 3 "
        "--sink NAME --as given-up (or lost)"
    )
    resolve = ("exactsink", "indoubt", "resolve", "/a b.toml", "--epoch", "3", "--sink")
    assert commands(text) == [
        ("chmod", "u+rwx", "/a b"),
        ("exactsink", "rebase", "JOB.toml", "--sink", "lake=3", "--yes", "--reason", "..."),
        (*resolve, "NAME", "--as", "given-up"),
    ]


def test_what_a_table_says_is_held_against_the_rows() -> None:
    line = "lake  epoch 4 (token a) of b  epoch 5 (token c)  {}"
    words = "epochs 1 to 2 come again: doubled here; epoch 3 is not read again, and not here: missing"
    assert list(announced(line.format(words), ("lake", "db"))) == [
        Announced("lake", "doubled", 1, 2),
        Announced("lake", "missing", 3, 3),
    ]
    assert list(announced(line.format("can't be known: its mark is gone"), ("lake",))) == [Announced("lake", "unknown")]
    rows = {epoch: (epoch,) for epoch in range(5)}
    costs = costs_of(line.format(words), rows, ("lake",))
    assert differences({"lake": Counter([0, 1, 1, 2, 2, 4])}, range(5), costs) == ([], True)
    assert differences({"lake": Counter([0, 1, 1, 2, 4])}, range(5), costs)[0] == [
        "lake: epochs [2] were announced as doubled, and are not"
    ]
    assert len(differences({"lake": Counter([1, 1, 2, 2, 4, 4, 9])}, range(5), costs)[0]) == 3

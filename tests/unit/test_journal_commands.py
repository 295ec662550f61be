"""`exactsink journal` and `history` over damaged entries: what is damaged is shown, and whether anybody needs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import Job

from exactsink.protocol.journal.entries import checked
from exactsink.protocol.journal.records import decode, sealed

Command = Callable[..., Ended]


@pytest.fixture
def long_job(job: Job) -> Job:
    """Leave claims at 0, 6 and 9, decisions at 1 to 5 and 7 to 8."""
    journal = job.journal
    for generation, epochs in ((1, range(5)), (2, range(5, 7)), (3, range(0))):
        claim = journal.claim("query-1", "host:17")
        for epoch in epochs:
            job.decide(journal, epoch, *([job.vote(claim, epoch, 0)] if epoch == 6 else []))
        assert claim.generation == generation
    return job


def _entry(job: Job, seq: int) -> Path:
    return next(job.history.rglob(f"*{seq:03}.json"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"host:17", b"host:71").replace(b'"generation": 1', b'"generation": 7'))


def _replace(path: Path) -> None:
    """Put the entry of another copy there: it is whole, and not the one that later entries name."""
    path.write_bytes(sealed(replace(decode(path.read_bytes()), nonce="f" * 32))[1])


@pytest.mark.parametrize("damage", [_cut, _edit, _replace, Path.unlink])
def test_each_damaged_entry_is_found_with_who_needs_it(long_job: Job, damage: Callable[[Path], None]) -> None:
    needs = {0: "sweeps of old work", 2: "history", 6: "every start", 7: "history", 8: "every start"}
    if damage in (_cut, _edit):
        needs[9] = "every start"  # of the newest, nobody else has the sum
    if damage is Path.unlink:
        del needs[2], needs[7]  # old decisions are deleted in the course of things
    assert checked(long_job.journal.entries()) == ([*range(10)], [])
    for seq, needed_by in needs.items():
        path = _entry(long_job, seq)
        whole = path.read_bytes()
        damage(path)
        [problem] = checked(long_job.journal.entries())[1]
        assert (problem.seq, problem.needed_by) == (seq, needed_by)
        path.write_bytes(whole)


@pytest.mark.parametrize(("seq", "is_needed"), [(0, False), (2, False), (8, True)])
def test_verify_says_what_a_recovery_needs(long_job: Job, command: Command, seq: int, is_needed: bool) -> None:
    assert command("journal", "verify", long_job.file).code == 0
    _cut(_entry(long_job, seq))
    ended = command("journal", "verify", long_job.file, "--json")
    assert (ended.code, [problem["seq"] for problem in ended.body["problems"]]) == (3, [seq])
    assert ("move the journal away" in ended.err) is is_needed
    assert (command("recover", long_job.file).code != 0) is is_needed
    assert long_job.rows() == (0 if is_needed else 3)


def test_history_steps_over_what_is_damaged(long_job: Job, command: Command) -> None:
    _cut(_entry(long_job, 2))
    out = command("history", long_job.file).out
    kinds = [word for line in out.splitlines()[1:5] for word in ("claim", "decide", "damaged") if f" {word} " in line]
    assert (kinds, "journal verify" in out) == (["claim", "decide", "damaged", "decide"], True)


def test_verify_passes_over_no_damaged_decision_in_silence(long_job: Job, command: Command) -> None:
    assert command("recover", long_job.file).code == 0
    assert command("verify", long_job.file).code == 0
    _cut(_entry(long_job, 2))
    ended = command("verify", long_job.file)
    assert (ended.code, "journal entries 2 are damaged" in ended.err) == (3, True)


def test_export_prints_every_entry_as_it_is_stored(long_job: Job, command: Command) -> None:
    _cut(_entry(long_job, 2))
    lines = command("journal", "export", long_job.file).out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(10))
    assert lines[3].encode() == _entry(long_job, 3).read_bytes()
    assert "damaged" in lines[2]

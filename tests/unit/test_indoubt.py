"""`exactsink indoubt` and what `recover` does to a part of a job, on a sink of files; rows are counted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from tests.printed import commands
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job

from exactsink.contract import Committable, JobContext
from exactsink.job.config import load_config
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.records import Action, Claim, Clean, Identity, Resolve
from exactsink.testing import Session

Command = Callable[..., Ended]
T = TypeVar("T")


def listed(command: Command, job: Job, *words: str) -> dict[str, Any]:
    """Return what the list says of each participant, by its name."""
    return {line["ref"]: line for line in command("indoubt", "list", job.file, "--json", *words).body}


def state_of(command: Command, job: Job) -> dict[str, str]:
    return {ref: line["state"] for ref, line in listed(command, job).items()}


def damage(job: Job, vote: Committable) -> None:
    """Leave nothing that proves what became of a participant."""
    for path in (job.folder / "lake" / "_exactsink").glob(f"{vote.ref}/*"):
        path.write_text("broken")


def actions_of(job: Job, kind: type[T]) -> list[T]:
    journal = job.journal
    journal.read()
    return [kept for kept in journal.whole().anchors if isinstance(kept, kind)]


def actions(job: Job) -> list[Action]:
    return actions_of(job, Action)


@pytest.fixture
def votes(job: Job) -> list[Committable]:
    """Leave two participants decided and one undecided."""
    return job.decided()[1]


def test_list_names_what_is_decided_undecided_and_foreign(job: Job, command: Command, votes: list[Committable]) -> None:
    foreign = job.vote(FOREIGN, 0, 3)
    found = listed(command, job)
    states = {votes[0].ref: "prepared", votes[1].ref: "prepared", votes[2].ref: "undecided", foreign.ref: "foreign"}
    assert {r: line["state"] for r, line in found.items()} == states
    assert [(found[v.ref]["rows"], found[v.ref]["epoch"]) for v in votes] == [(3, 0), (3, 0), (None, 0)]
    table = command("indoubt", "list", job.file)
    assert (table.code, table.out.count("prepared")) == (0, 2)
    assert "nothing is in doubt" in command("indoubt", "list", job.file, "--run", "monday").out


def test_a_reference_is_any_beginning_that_names_one(job: Job, command: Command, votes: list[Committable]) -> None:
    found = listed(command, job)
    for vote in votes:
        for reference in (vote.ref, vote.ref[:-1], found[vote.ref]["reference"], found[vote.ref]["reference"][:6]):
            assert f"{vote.ref} in sink lake" in command("indoubt", "explain", job.file, reference).out
    many = command("indoubt", "explain", job.file, "orders.lake")
    assert (many.code, all(v.ref in many.err for v in votes)) == (2, True)
    assert command("indoubt", "explain", job.file, "orders.mill").code == 2


def explain(command: Command, job: Job, vote: Committable) -> dict[str, str]:
    out = command("indoubt", "explain", job.file, vote.ref).out
    return {label: text.strip() for label, _, text in (line.partition(":") for line in out.splitlines())}


def test_explain_says_whose_why_and_what_comes_next(job: Job, command: Command, votes: list[Committable]) -> None:
    foreign = job.vote(FOREIGN, 0, 3)
    decided, undecided, other = (explain(command, job, v) for v in (votes[0], votes[2], foreign))
    assert "begun by driver host:17 (generation 1, token" in decided["whose"]
    assert "rows in this sink: 6 (participants: 2), here: 3" in decided["decision"]
    assert decided["next"] == f"exactsink recover {job.file} --sink lake --yes"
    assert "none of this journal names it: it was begun for epoch 0; epoch 0 was decided last" in undecided["decision"]
    assert undecided["next"].startswith(f"exactsink recover {job.file} --ref ")
    assert f"has no claim of generation 1, token {FOREIGN.token}" in other["whose"]
    assert f"--sweep-token {FOREIGN.token}" in other["next"]
    job.heartbeat(time.time())
    assert explain(command, job, votes[0])["next"].startswith("wait for the driver")


def test_each_next_command_does_what_explain_promises(job: Job, command: Command, votes: list[Committable]) -> None:
    foreign = job.vote(FOREIGN, 0, 3)
    for vote in (foreign, votes[2], votes[0]):
        words = explain(command, job, vote)["next"].replace("'...'", "seen").split()
        ended = command(*words[1:], *(["--take-over", "--yes"] if vote is foreign else []))
        assert ended.code == 0, ended.err
    assert job.rows() == 6
    said = [action.outcome.partition(": only ")[2] for action in actions(job)]
    assert said == [f"lake {foreign.ref}, and swept the tokens {FOREIGN.token}", f"lake {votes[2].ref}", "lake"]
    assert command("recover", job.file).code == 0
    assert (state_of(command, job), job.rows()) == ({}, 6)


@pytest.mark.parametrize("one", [False, True], ids=["sink", "ref"])
def test_a_part_is_only_shown_without_yes_and_refused_while_a_driver_lives(
    job: Job, command: Command, votes: list[Committable], one: bool
) -> None:
    words = ("recover", job.file, *(("--ref", votes[2].ref) if one else ("--sink", "lake")))
    before = job.journal.read()
    shown = command(*words)
    assert (shown.code, "repeat with --yes to do it" in shown.out) == (0, True)
    counts = {"sink": "lake", "committed": 0 if one else 2, "stood": 0, "lost": 0, "swept": 1, "left": ""}
    assert command(*words, "--json").body["sinks"] == [counts]
    job.heartbeat(time.time())
    assert [command(*words, *yes).code for yes in ((), ("--yes",))] == [4, 4]
    assert (job.journal.read(), job.rows()) == (before, 0)
    done = command(*words, "--yes", "--take-over", "--reason", "it hangs", "--json")
    assert (done.code, done.body["sinks"]) == (0, [counts])
    assert (job.rows(), actions(job)[-1].reason) == (0 if one else 6, "it hangs")
    assert set(state_of(command, job)) == ({votes[0].ref, votes[1].ref} if one else set())
    assert actions_of(job, Clean) == [], "a part leaves nothing clean"


def test_a_decided_participant_means_its_sink_and_foreign_work_goes_by_its_token(
    job: Job, command: Command, votes: list[Committable]
) -> None:
    foreign = job.vote(FOREIGN, 0, 3)
    before = job.journal.read()
    token = ("--ref", foreign.ref, "--sweep-token", FOREIGN.token)
    for yes in ((), ("--yes",)):
        unnamed = command("recover", job.file, "--ref", foreign.ref, *yes)
        assert (unnamed.code, f"--sweep-token {FOREIGN.token} --reason" in unnamed.err) == (5, True)
        unsaid = command("recover", job.file, *token, "--take-over", *yes)
        assert (unsaid.code, "--sweep-token needs a reason" in unsaid.err) == (2, True)
        young = command("recover", job.file, *token, "--reason", "x", *yes)
        assert (young.code, "its driver may be running" in young.err) == (4, True)
        assert command("recover", job.file, "--sink", "mill", *yes).code == 2
    assert job.journal.read() == before
    beside = command("recover", job.file, "--ref", votes[2].ref, "--yes")
    assert (beside.code, "begun under a claim that is not an older one" in beside.err) == (5, True), (
        "it may have gone back"
    )
    assert len(state_of(command, job)) == 4
    assert command("recover", job.file, "--ref", votes[0].ref, "--yes").code == 0
    assert (job.rows(), set(state_of(command, job).values())) == (6, {"undecided", "foreign"})


def test_resolve_takes_a_word_for_what_is_in_doubt_and_for_nothing_else(
    job: Job, command: Command, votes: list[Committable]
) -> None:
    def resolve(outcome: str, *words: str, epoch: int = 0) -> Ended:
        what = ("--epoch", str(epoch), "--sink", "lake", "--as", outcome, "--reason", "seen in the log")
        return command("indoubt", "resolve", job.file, *what, *words)

    damage(job, votes[0])
    assert command("recover", job.file).code == 3
    other = resolve("lost", epoch=1)
    assert (other.code, "the last decided one is 0" in other.err) == (2, True)
    before = job.journal.read()
    shown = resolve("committed")
    assert (shown.code, f"lake: {votes[0].ref} (3 rows)" in shown.out) == (0, True)
    assert job.journal.read() == before
    assert [resolve("given-up", *yes).code for yes in ((), ("--yes",))] == [2, 2], "nothing is proven lost"
    assert resolve("committed", "--yes", "--ref", votes[1].ref[:-1]).code == 2
    assert resolve("committed", "--yes").code == 0
    [word] = [kept for kept in job.journal.read().anchors if isinstance(kept, Resolve)]
    assert (word.epoch, word.sink, word.outcome) == (0, "lake", "committed")
    assert (word.participants, word.rows) == ((votes[0].ref,), 3)
    assert word.reason.startswith("seen in the log (1 participants, 3 rows; ")
    assert command("recover", job.file).code == 0
    assert job.rows() == 3
    again = resolve("committed", "--yes")
    assert (again.code, "nothing of epoch 0 in sink lake is neither" in again.err) == (2, True)


def test_what_a_person_takes_for_lost_can_be_given_up_and_the_rest_stands(
    job: Job, command: Command, votes: list[Committable]
) -> None:
    damage(job, votes[0])
    words = ("indoubt", "resolve", job.file, "--epoch", "0", "--sink", "lake", "--reason", "no copy", "--yes", "--as")
    assert [command(*words, outcome).code for outcome in ("given-up", "lost", "given-up")] == [2, 0, 0]
    assert command("recover", job.file).code == 0
    assert (job.rows(), state_of(command, job)) == (3, {})
    assert [(w.outcome, w.participants, w.rows) for w in job.journal.read().anchors if isinstance(w, Resolve)] == [
        ("lost", (votes[0].ref,), 3),
        ("given-up", (votes[0].ref,), 3),
    ]


def test_printed_commands_judge_each_of_several_participants_alone(
    job: Job, command: Command, votes: list[Committable]
) -> None:
    """One was committed and the other was not: one word for both would lose rows, or double them."""
    for vote in votes[:2]:
        damage(job, vote)
    assert f"--ref {listed(command, job)[votes[1].ref]['reference']} " in explain(command, job, votes[1])["or"]
    for vote, others, word in ((votes[0], True, "committed"), (votes[1], False, "lost")):
        ended = command("recover", job.file)
        printed = [words for words in commands(ended.err) if "resolve" in words]
        assert printed == [words for words in commands(command("status", job.file).err) if "resolve" in words]
        [words] = printed
        assert (vote.ref in words, "then 1 more, each by itself" in ended.err) == (True, others)
        assert command(*[word if one == "committed" else one for one in words[1:]], "--yes").code == 0
        kept = actions_of(job, Resolve)[-1]
        assert (kept.outcome, kept.participants) == (word, (vote.ref,))
    assert "1 decided participants of lake are lost" in command("recover", job.file).err


def test_a_batch_runs_participants_are_listed_by_its_name(job: Job, command: Command, votes: list[Committable]) -> None:
    run = JobHistory.of(load_config(job.file)[0], "monday")
    claim = run.journal(lambda _: None).claim("run monday", "host:17", Identity(run.job, "monday"))
    session = Session(job.sink.backend, JobContext(run.job, "lake", "", 1, claim.lineage), claim.token)
    [vote] = session.prepare(0, [pa.table({"n": [1]})])
    found = listed(command, job, "--run", "monday")
    assert {ref: (line["run"], line["state"]) for ref, line in found.items()} == {vote.ref: ("monday", "undecided")}
    assert listed(command, job).keys() == {vote.ref for vote in votes}
    assert command("recover", job.file, "--ref", vote.ref, "--run", "monday", "--yes").code == 0
    assert listed(command, job, "--run", "monday") == {}
    assert command("recover", job.file, "--run", "monday").code == 0
    assert isinstance(run.journal(lambda _: None).read().anchors[-1], Clean), "nothing is decided: its sinks may change"


# a job whose folder is gone


def test_work_without_a_journal_is_listed_and_ended_with_every_token_named(
    job: Job, command: Command, votes: list[Committable]
) -> None:
    other = job.vote(Claim(4, "dddddddddddd", "host:9", "query-1", "dddddddddddd"), 2, 0)
    token = votes[0].txn.token
    words = ("recover", job.file, "--ref", votes[0].ref, "--reason", "the folder was deleted", "--yes")
    shutil.rmtree(job.history)
    assert set(state_of(command, job).values()) == {"foreign"}
    assert command(*words).code == 5, "an empty journal is a wrong path more often than a dead job"
    assert command(*words, "--sweep-token", token).code == 4, "the participants are young"
    assert not job.history.exists()
    unnamed = command(*words, "--sweep-token", token, "--take-over")
    assert (unnamed.code, other.ref in unnamed.err) == (5, True)
    assert len(state_of(command, job)) == 4
    assert command(*words, "--sweep-token", token, "--sweep-token", other.txn.token, "--take-over").code == 0
    assert (set(state_of(command, job)), actions_of(job, Clean)) == ({v.ref for v in (*votes[1:], other)}, [])

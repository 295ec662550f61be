"""The kit itself: what makes a scenario fail or be skipped, and the command that plays it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from exactsink.cli import conformance as command
from exactsink.contract import Backend, BackendSpec, ConfigError, Fatal, Traits, hookimpl
from exactsink.testing import SCENARIOS, ConformanceTarget, Fault, Runner, Script
from exactsink.testing.capabilities import CAPABILITIES
from exactsink.testing.context import Broken, Context
from exactsink.testing.interrupt import Interruption
from exactsink.testing.processes import ask_fresh_process, ended
from exactsink.testing.target import HOOKS
from exactsink.testing.wrapped import WrappedBackend
from tests.conformance import defects_of_standings as standings
from tests.conformance.defects_of_work import LeavesOrphans
from tests.conformance.reference_store import Defect, ReferenceTarget


@dataclass(frozen=True)
class _InAProcess:
    """Pieces of scenarios, for an interpreter without threads; gives what broke each."""

    folder: Path

    def __call__(self) -> list[str]:
        return [self.broken(number, play) for number, play in enumerate(PIECES)]

    def broken(self, number: int, play: Callable[[Context, Script], None]) -> str:
        context = Context(ReferenceTarget(), self.folder / str(number))
        try:
            play(context, context.script([2], [2]))
        except Broken as broken:
            return str(broken)
        return "it passed"


def kill(context: Context, script: Script) -> None:
    context.killed(script, Fault("decide", "before", "kill", 99))


def stop(context: Context, script: Script) -> None:
    context.stopped(script, Fault("decide", "before", "stall", 99))


def stop_at_the_second_of_two(context: Context, script: Script) -> None:
    context.stopped(script, Fault("pre_commit", "after", "kill", 99), Fault("decide", "before", "stall", 1))


def play(context: Context, script: Script) -> None:
    context.play(script, Fault("decide", "before", "kill", 99))


def kill_after_the_end_of_a_call(context: Context, script: Script) -> None:
    late = Interruption("commit", "kill", script.folder, {0: 1_000_000})
    code = ended(context.interrupted(script, late))
    raise Broken(
        f"ended {code}, and has {len(context.decided(script))} committable decided, {context.read().total()} rows"
    )


PIECES = (kill, stop, stop_at_the_second_of_two, play, kill_after_the_end_of_a_call)


def test_a_fault_that_never_fires_breaks_its_scenario_or_fires_at_the_end_of_the_call(tmp_path: Path) -> None:
    assert ask_fresh_process(_InAProcess(tmp_path)) == [
        "kill-before-decide-e99 ended 0; it was to end -9",
        "stall-before-decide-e99 never fired: the driver run ended 0",
        "kill-after-pre_commit-e99 never fired",
        "driver run 0 ended 0, its fault explains (-9,); kill-before-decide-e99 never fired",
        "ended -9, and has 1 committable decided, 2 rows",
    ]


class _Weak(WrappedBackend):
    @property
    def traits(self) -> Traits:
        return Traits(visible_early=True, needs_epoch_order=True)


@dataclass(frozen=True)
class BareTarget(ConformanceTarget):
    """The two methods that a target must have, and, unless it is strong, no trait but the weak ones."""

    strong: bool = False

    def backend(self, folder: Path) -> Backend:
        real = ReferenceTarget().backend(folder)
        return real if self.strong else _Weak(real)

    def applied(self, folder: Path) -> Counter[int]:
        return ReferenceTarget().applied(folder)


def test_a_skip_names_the_capability_and_lost_votes_need_a_hook(runner: Runner, tmp_path: Path) -> None:
    assert all(ReferenceTarget().gives(hook) for hook in HOOKS)
    assert not any(BareTarget().gives(hook) for hook in HOOKS)
    needing = {need: name for name, scenario in SCENARIOS.items() for need in scenario.needs}
    assert needing.keys() == CAPABILITIES.keys()
    for need, name in needing.items():
        result = runner.play(name, BareTarget(strong=need in HOOKS), tmp_path / need)
        assert (result.outcome, result.why) == ("skipped", f"needs {need}: {CAPABILITIES[need]}")  # type: ignore[index]
    result = runner.play("empty-epoch", BareTarget(strong=True), tmp_path / "votes")
    assert result.outcome == "failed"
    assert "must give lose_votes()" in result.why


class HangingTarget(ReferenceTarget):
    def backend(self, folder: Path) -> Backend:
        folder.joinpath("pid").write_text(Path("/proc/self").resolve().name)
        signal.pause()
        raise AssertionError("it is never woken")


@pytest.mark.parametrize(
    ("committer", "marks", "scenario", "outcome"),
    [
        *((standings.Inherits, True, f"assessed{more}", "passed") for more in ("", "-lost", "-beside-commit")),
        (standings.Inherits, False, "assessed", "failed"),
        (standings.SeesAllPrepared, True, "assessed", "failed"),
        (standings.NeverKnows, True, "assessed-lost", "failed"),
        (standings.LocksToLook, True, "assessed-beside-commit", "failed"),
    ],
)
def test_an_inherited_assess_is_right_where_a_mark_proves_and_an_own_one_must_know_and_not_lock(
    committer: Defect, marks: bool, scenario: str, outcome: str, runner: Runner, tmp_path: Path
) -> None:
    assert runner.play(scenario, ReferenceTarget(committer, marks), tmp_path).outcome == outcome


def test_a_scenario_that_hangs_fails_and_leaves_no_process(tmp_path: Path) -> None:
    with closing(Runner(limit_seconds=10)) as runner:
        result = runner.play("many-rows", HangingTarget(), tmp_path)
        assert (result.outcome, result.why.partition(":")[0]) == ("failed", "it hangs")
        assert not Path("/proc", (tmp_path / "target" / "pid").read_text()).exists()
        assert runner.play("order-kept", ReferenceTarget(), tmp_path / "next").outcome == "passed"


def targets() -> Mapping[str, ConformanceTarget]:
    return {"good": ReferenceTarget(), "bare": BareTarget(), "bad": ReferenceTarget(LeavesOrphans)}


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    here = f"{__name__}:targets"
    return [
        BackendSpec("reference", "x:X", "pip install reference", conformance=here),
        BackendSpec("shy", "x:X", "pip install shy"),
        BackendSpec("lost", "x:X", "pip install lost", conformance="nowhere.at.all:targets"),
    ]


class _EntryPoint:
    name, dist = "reference", None

    def load(self) -> object:
        return type("plugin", (), {"exactsink_backends": staticmethod(exactsink_backends)})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "installed_plugins", lambda: [_EntryPoint()])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("jobs", [1, 3])
def test_the_command_names_what_fired_and_keeps_what_a_failed_scenario_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(Fatal, match="1 of 3 scenarios failed on backend reference: bad: loser-swept") as failed:
        command.conformance("reference", ["loser-swept"], as_json=False, jobs=jobs)
    [kept] = tmp_path.glob("exactsink-conformance-*")
    assert failed.value.exit_code == 1
    assert failed.value.next == (
        f"look into {kept}/bad/loser-swept, then exactsink conformance reference --target bad --scenario loser-swept"
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    played = {line[1]: line for line in lines if line[2:3] == ["loser-swept"]}
    assert [line[0] for line in lines if line[2:3] == ["loser-swept"]] == ["1/3", "2/3", "3/3"]
    assert played["good"][3:4] + played["good"][6:] == ["passed", "2", "faults"]
    assert played["bare"][3:4] + played["bare"][6:8] == ["skipped", "needs", "hidden_until_decided:"]
    assert played["bad"][3] == "failed"
    assert ["evidence:", f"{kept}/bad/loser-swept"] in lines
    assert lines[-3:] == [["bad", "0", "1", "0"], ["bare", "0", "0", "1"], ["good", "1", "0", "0"]]
    assert [path.name for path in kept.iterdir()] == ["bad"]
    assert {"log", "result", "target", "jobs"} <= {path.name for path in (kept / "bad" / "loser-swept").iterdir()}


@pytest.mark.usefixtures("installed")
def test_the_command_gives_json(capsys: pytest.CaptureFixture[str]) -> None:
    command.conformance("reference", ["killed-after-decide"], as_json=True, only=["bare", "good"])
    reported = json.loads(capsys.readouterr().out)
    assert [(each["target"], each["outcome"], each["faults"], each["evidence"]) for each in reported] == [
        (target, "passed", ["kill-after-decide-e1"], None) for target in ("bare", "good")
    ]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "scenarios", "said"),
    [
        ("refrence", [], "no backend refrence is installed"),
        ("shy", [], r"backend shy ships no targets (.|\n)*next: `exactsink init FOLDER --plugin shy`"),
        ("lost", [], "the targets of backend lost can't be made: ModuleNotFoundError"),
        ("reference", ["many-row"], "there is no scenario many-row; did you mean many-rows?"),
    ],
)
def test_the_command_refuses_what_is_not_there(name: str, scenarios: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        command.conformance(name, scenarios, as_json=False)


def test_the_kit_needs_neither_pytest_nor_spark() -> None:
    look = "import sys, exactsink.cli.conformance; print(sorted({'pytest', 'pyspark', 'py4j'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout == "[]\n"

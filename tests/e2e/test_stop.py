"""A driver is asked to end, by a signal or a command: in a batch, between two, in a commit that hangs, at its start."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.cli.main import main
from tests.e2e import slow_tasks
from tests.e2e.drivers import Driver, Drivers
from tests.e2e.jobs import SPARK, ids, in_lake, in_table, write_job, write_source
from tests.e2e.processes import QUICK_JAVA
from tests.e2e.warm_jvm import WarmJvm

EVERY_SECOND = 'trigger = "1 second"\n'
_LOST = "the connection to Spark's JVM is lost"


def ended(folder: Path, complete_epoch: int) -> bool:
    """Return whether the driver said that it has ended, after this epoch."""
    state = json.loads((folder / "checkpoint.exactsink/state.json").read_text())
    return (state["heartbeat"], state["complete_epoch"]) == (0.0, complete_epoch)


def is_clean(folder: Path) -> bool:
    """Return whether the journal's last record says that nothing is in doubt."""
    last = max((folder / "checkpoint.exactsink/journal").glob("*.json"))
    return bool(json.loads(last.read_text())["kind"] == "clean")


def test_sigterm_in_a_batch_ends_the_driver_after_its_epoch(tmp_path: Path, drivers: Drivers, jvm: WarmJvm) -> None:
    write_source(tmp_path, 3)
    job = write_job(tmp_path, job=slow_tasks.TRANSFORM, spark=SPARK + slow_tasks.CONF % ("hold", "0"))
    driver, printed = drivers.start(job, jvm=jvm), len(jvm.reported)
    driver.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    driver.send(signal.SIGTERM)
    driver.until(lambda: "query_ending job=e2e" in driver.reported, "hearing the signal")
    assert "stop_asked job=e2e by=SIGTERM seconds=60" in driver.reported
    (tmp_path / "go").touch()
    assert driver.exit_code() == 0, driver.reported
    assert " ERROR " not in driver.reported + jvm.reported[printed:]  # the batch after it was no failure, but a stop
    assert "exactsink.epoch run_ended job=e2e epochs=2 last_epoch=1 seconds=" in driver.reported
    assert " restarts=0 stopped_by=SIGTERM rows: lake=1,000 table=1,000 " in driver.reported
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)
    assert ended(tmp_path, 1)
    assert is_clean(tmp_path)
    driver.end()
    drivers.whole(job, jvm=jvm)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(3)


def as_timeout_does(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    os.killpg(driver.pid, signal.SIGTERM)


def as_a_closed_terminal_does(driver: Driver) -> None:
    os.killpg(driver.pid, signal.SIGHUP)


@pytest.mark.parametrize("ask", [as_timeout_does, pytest.param(as_a_closed_terminal_does, marks=pytest.mark.proof)])
def test_a_signal_to_its_whole_group_ends_the_driver_after_its_epoch(
    ask: Callable[[Driver], None], tmp_path: Path, drivers: Drivers
) -> None:
    """In a folder that the driver's locale can't spell: Java would not find it."""
    folder = tmp_path / "aufträge"
    folder.mkdir()
    write_source(folder, 3)
    job = write_job(folder, job=slow_tasks.TRANSFORM, spark=SPARK + slow_tasks.CONF % ("hold", "0"))
    driver = drivers.start(job, environment={"LC_ALL": "C"})
    driver.until(slow_tasks.mark(folder, 0).exists, "a task in the middle of its write")
    assert len(driver.members()) > 2  # the JVM, and a worker of its own
    ask(driver)
    driver.until(lambda: "query_ending job=e2e" in driver.reported, "hearing the signal")
    (folder / "go").touch()
    assert driver.exit_code() == 0, driver.reported
    assert driver.left_behind() == []
    assert in_lake(folder) == in_table(folder) == ids(2)
    assert is_clean(folder)


def test_exactsink_stop_ends_a_driver_between_two_epochs(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, capsys: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 1)
    job = write_job(tmp_path, job=EVERY_SECOND)
    driver = drivers.start(job, jvm=jvm)
    driver.until(lambda: "exactsink.epoch epoch job=e2e epoch=0" in driver.reported, "its epoch")
    assert main(["stop", str(job)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("has ended; epoch 0 is complete")
    assert driver.exit_code() == 0, driver.reported
    assert "stop_asked job=e2e by=exactsink stop by " in driver.reported
    assert is_clean(tmp_path)
    assert main(["stop", str(job)]) == 0
    assert "nothing to stop: driver " in capsys.readouterr().out


Ask = Callable[[Driver], None]


def once(driver: Driver) -> None:
    driver.send(signal.SIGTERM)


def twice(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    driver.until(lambda: "stop_asked" in driver.reported, "hearing the first signal")
    while driver.ended_within(1) is None:  # the one that comes at once is the same request
        driver.send(signal.SIGTERM)


def interrupted(driver: Driver) -> None:
    driver.send(signal.SIGINT)


@pytest.mark.parametrize(
    ("within", "ask", "code", "attached"),
    [
        ("1 second", once, 75, True),
        pytest.param("1 hour", twice, 128 + signal.SIGTERM, True, marks=pytest.mark.proof),
        pytest.param("1 hour", interrupted, 128 + signal.SIGINT, False, marks=pytest.mark.proof),
    ],
)
def test_a_commit_that_hangs_is_cut_off_and_finished_by_the_next_start(
    within: str, ask: Ask, code: int, attached: bool, tmp_path: Path, drivers: Drivers, jvm: WarmJvm
) -> None:
    write_source(tmp_path, 2)
    job = write_job(tmp_path, job=f'stop_within = "{within}"\n')
    driver = drivers.start(job, jvm=jvm if attached else None, hang=("commit:table", "before", 1))
    driver.until(lambda: in_lake(tmp_path) == ids(2), "a commit beside the one that hangs")
    ask(driver)
    assert driver.exit_code() == code, driver.reported
    assert driver.left_behind() == []
    assert "ended as in a crash; nothing decided is lost, and the next start continues" in driver.reported
    assert ended(tmp_path, 0)
    assert not is_clean(tmp_path)
    assert in_table(tmp_path) == ids(1)
    driver.end()
    drivers.whole(job, jvm=jvm)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.proof)])
def test_a_signal_before_the_jvm_is_up_ends_the_driver_and_no_process_stays(
    number: signal.Signals, tmp_path: Path, drivers: Drivers
) -> None:
    write_source(tmp_path, 1)
    driver = drivers.start(write_job(tmp_path))
    driver.until(lambda: len(driver.members()) > 1, "starting a JVM")
    driver.send(number)
    assert driver.exit_code() == (0 if number == signal.SIGTERM else 130), driver.reported
    assert driver.left_behind() == []
    assert driver.reported.count("run_ended job=e2e epochs=0 ") == 1
    assert not (tmp_path / "checkpoint.exactsink/journal").exists()


def test_a_jvm_of_spark_submit_that_is_lost_ends_the_run_with_75_at_once(tmp_path: Path, drivers: Drivers) -> None:
    """Its Spark context stops, as when a cluster's master ends the application; then the JVM is killed."""
    job = write_job(tmp_path, job=EVERY_SECOND)
    with closing(WarmJvm(tmp_path / "jvm")) as jvm:
        for epoch, (lose, said) in enumerate(((jvm.stop_context, "Spark's context was stopped"), (jvm.kill, _LOST))):
            write_source(tmp_path, epoch + 1)
            driver = drivers.start(job, jvm=jvm)
            driver.until(lambda: f"epoch epoch job=e2e epoch={epoch}" in driver.reported, "its epoch")  # noqa: B023
            lose()
            assert driver.exit_code() == 75, driver.reported
            assert re.search(rf"exactsink: {said}: .*\n  next: run the job again\n", driver.reported), driver.reported
            assert "query_restarted" not in driver.reported
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)


_LOADED = ["launcher.Main", "deploy.SparkSubmit", "api.python.PythonGatewayServer", "py4j.ClientServerConnection"]
_LOADED += ["SparkContext", "SparkEnv", "storage.BlockManager", "executor.Executor", "sql.SparkSession"]
_LOADED += ["MicroBatchExecution"]
"""The last class that a JVM has loaded as it is killed: Spark's launcher, what it starts, and so on to the query."""


@pytest.mark.proof
@pytest.mark.parametrize("name", ["", *_LOADED])
def test_a_jvm_that_is_killed_as_it_starts_is_no_bug(name: str, tmp_path: Path, drivers: Drivers) -> None:
    write_source(tmp_path, 1)
    options = f"{QUICK_JAVA} -Xlog:class+load:file={tmp_path}/%p.loaded"
    driver = drivers.start(write_job(tmp_path), environment={"JAVA_TOOL_OPTIONS": options})

    def reached() -> bool:
        logs = (path.read_text(errors="replace") for path in tmp_path.glob("*.loaded"))
        return any(f"{name} source:" in log for log in logs) if name else len(driver.members()) > 1

    driver.until(reached, f"a JVM that comes to {name}")
    for pid in driver.members():
        if pid != driver.pid:
            os.kill(pid, signal.SIGKILL)
    assert driver.exit_code() == 75, driver.reported
    assert re.search(f"Spark's JVM did not start: |{_LOST}: ", driver.reported)
    assert "Traceback" not in driver.reported

"""What a job needs is asked before anything is started: who is down is named, with the place, in bounded time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from tests.unit.conftest import Ended

from exactsink.cli import check as check_module
from exactsink.cli import run as run_module
from exactsink.cli.opened import Opened
from exactsink.contract import ConfigError, Retryable
from exactsink.operate import asking
from exactsink.operate.reachable import late_sink, reachable

DB = """
[sinks.db]
backend = "postgres"
conninfo = "host=127.0.0.1 port={port} user=x password=hidden dbname=shop connect_timeout=60"
table = "t"
create = true
"""
LAKE = """
[sinks.lake]
backend = "files"
path = "lake"
"""
OTHERS = """
[spark]
master = "spark://127.0.0.1:{port},nowhere.invalid:7077"
[source]
format = "kafka"
options = { "kafka.bootstrap.servers" = "PLAINTEXT://127.0.0.1:{port}", subscribe = "in" }
"""
SINKS = (
    OTHERS
    + DB
    + LAKE
    + """
[sinks.events]
backend = "kafka"
bootstrap_servers = "127.0.0.1:{port}"
topic = "t"
[sinks.bucket]
backend = "files"
path = "s3://bucket/x"
endpoint_url = "http://127.0.0.1:{port}"
"""
)
JOURNAL = 'journal = "postgresql+psycopg://u:hidden@127.0.0.1:{port}/log"\n'


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that refuses: it is bound, and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}.items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, port: int, *, journal: bool = True, sinks: str = SINKS) -> str:
    head = '[job]\nname = "orders"\ncheckpoint = "chk"\n' + (JOURNAL if journal else "")
    (folder / "job.toml").write_text((head + sinks).replace("{port}", str(port)))
    return str(folder / "job.toml")


@pytest.mark.parametrize("command_name", ["run", "check"])
def test_who_refuses_is_named_with_its_place_before_a_jvm_starts(
    tmp_path: Path, closed: int, command_name: str, command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a JVM would start")

    for module in (run_module, check_module):
        monkeypatch.setattr(module, "make_session", never)
        monkeypatch.setattr(module, "reachable", partial(reachable, seconds=60))  # who refuses is not waited for
    ended = command(command_name, write(tmp_path, closed))
    assert ended.code == 75
    said = ended.err[ended.err.index("6 servers don't answer") :]
    for name in ("sink events", "sink db", "sink bucket", "the journal", "Spark's master", "the source"):
        [line] = [line for line in said.splitlines() if line.startswith(f"  {name}")]
        assert f"127.0.0.1:{closed}" in line
        assert "refused" in line
    assert "lake" not in said
    assert "hidden" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml"]


def test_a_look_at_the_job_does_not_wait_for_who_refuses(
    tmp_path: Path, closed: int, command: Callable[..., Ended]
) -> None:
    ended = command("status", "--within", "60", write(tmp_path, closed, journal=False))
    assert ended.code == 3, ended.err
    for name in ("db", "events", "bucket"):
        [line] = [line for line in ended.out.splitlines() if line.startswith(f"  {name}: not asked: ")]
        assert f"127.0.0.1:{closed}" in line
        assert "efused" in line
    assert f"  events: not asked: sink events: no connection: 127.0.0.1:{closed}: " in ended.out


def test_who_takes_connections_and_says_nothing_is_named_in_time(
    tmp_path: Path, mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_busy_seconds", float)
    opened = Opened.of(write(tmp_path, mute))
    with pytest.raises(Retryable) as raised:
        reachable(opened.config, opened.sinks, seconds=0.5)
    lines = raised.value.what.splitlines()
    assert lines[0] == "4 servers don't answer:"
    assert all("has not answered within 0.5 s" in line and f"127.0.0.1:{mute}" in line for line in lines[1:])


def test_one_that_is_down_is_the_message_and_none_is_no_error(tmp_path: Path, closed: int) -> None:
    opened = Opened.of(write(tmp_path, closed, journal=False, sinks=DB + LAKE))
    with pytest.raises(Retryable, match=f"^sink db: connect to postgres://127.0.0.1:{closed}/shop: .*refused"):
        reachable(opened.config, opened.sinks)
    opened = Opened.of(write(tmp_path, closed, journal=False, sinks=LAKE))
    reachable(opened.config, opened.sinks)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(("busy", "bound", "answer"), [(True, 10**6, True), (True, 1, "too busy"), (False, 1, None)])
def test_only_what_this_process_waits_counts(
    busy: bool, bound: int, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, answers = count(), Event()

    def spent() -> float:
        if busy and bound > 1 and next(looks) == 20:
            answers.set()
        return time.monotonic() if busy else 0.0

    monkeypatch.setattr(asking, "_busy_seconds", spent, raising=False)
    monkeypatch.setattr(asking, "_BUSY", bound, raising=False)
    found = asking.ask_all({"the store": partial(answers.wait, 60)}, 0.05).get("the store")
    assert found is answer or str(answer) in found.what
    answers.set()


def test_a_process_that_wakes_up_late_counts_only_what_it_meant_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, looks, answers = count(), count(), Event()

    def look() -> float:
        if next(looks) == 7:
            answers.set()
        return 0.0

    monkeypatch.setattr(asking, "_busy_seconds", look)
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: next(ticks) * 0.2))
    assert asking.ask_all({"the store": partial(answers.wait, 60)}, 1.0) == {"the store": True}


def test_a_busy_process_is_seen_and_one_that_waits_is_not() -> None:
    before, until = asking._busy_seconds(), time.thread_time() + 0.1
    while time.thread_time() < until:
        """Work."""
    assert asking._busy_seconds() - before > 0.05


def test_a_folder_is_never_called_down_and_a_slow_machine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    opened = Opened.of(write(tmp_path, 1, journal=False, sinks=DB + LAKE))
    said = late_sink(opened.sinks["lake"], 4)
    longer = "if it is only slow: `exactsink check JOB.toml --within 16` waits longer"
    assert said.why == f"the disk or the mount of {tmp_path}/lake is slow, or hangs"
    assert said.next == f"check that `ls '{tmp_path}/lake'` returns, then run the command again; {longer}"
    assert late_sink(opened.sinks["db"], 4).why.endswith("1/shop#t is down, hangs, or can't be reached from here")
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0))
    for sink in opened.sinks.values():
        assert "; or it is this machine that is too slow: its load is 999, and it has" in late_sink(sink, 4).why


def test_what_preflight_knows_to_fix_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened.of(write(tmp_path, 1, journal=False, sinks=LAKE))

    def refused(self: object) -> None:
        raise ConfigError("the mark is another job's", next="look")

    monkeypatch.setattr("exactsink_files.committer.FilesCommitter.mark", refused)
    reachable(opened.config, opened.sinks)

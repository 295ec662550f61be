"""What all tests share: servers and Spark as fixtures, what runs together and first, and what is added up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from exactsink.contract import ExactsinkError
from tests.commands import commands_in, problem_of
from tests.times import sums

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.fixtures"]

_FIRST = (
    *("e2e", "docs", "matrix", "simulation", "differential", "integration", "plugins", "contract", "unit"),
    *("conformance", "soak"),
)
"""Folders by their longest tests: those that come last fill what gaps are left."""
_ALONE = ("simulation", "conformance")
"""Folders whose tests are handed out one by one; elsewhere a file's tests, which share servers, stay together."""
_SESSIONS = (
    {"adopt", "batch_runs", "gone_back", "kafka_session", "one_session", "routes", "postgres_shapes"},
    {"arrow_settings", "by_hand", "one_pass", "sql_transform", "text_files", "a_route_gives_no_frame_to_a_quarantine"},
)
"""Tests of `e2e` with a Spark session in the test process, by file or name: two workers have one."""
_NO_SHARED_JVM = {"cluster", "connect", "kafka_source", "object_store"}
"""Files of `e2e` that start JVMs of their own; all others attach to a warm one."""


class _Scheduler(LoadScopeScheduling):
    """For `--dist loadgroup`, by path: two groups have a session, two a warm JVM: the pages' and the rest's."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # the order is the collection's
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        if path.parts[1] == "e2e":
            names = {name.removeprefix("test_") for name in (path.stem, *nodeid.split("::"))}
            sessions = [f"session {number}" for number, group in enumerate(_SESSIONS) if names & group]
            return sessions[0] if sessions else str(path) if names & _NO_SHARED_JVM else "jvm"
        if path.parts[1] == "docs":
            return "docs"
        return nodeid if path.parts[1] in _ALONE else str(path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduler | None:
    return _Scheduler(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _FIRST.index(PurePath(item.nodeid).parts[1]))


class _Sums:
    """Adds up tests' seconds, and the `schedules` that simulation recorded, in this process or in workers."""

    def __init__(self) -> None:
        self.schedules = 0
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.when == "call":
            self.schedules += sum(int(value) for name, value in report.user_properties if name == "schedules")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if self.schedules:
            terminalreporter.write_line(f"simulation: {self.schedules:,} schedules run")
        if config.option.xmlpath:
            tests = ((nodeid.partition("::")[0], took) for nodeid, took in self.seconds.items())
            terminalreporter.write_line("\n".join(sums(tests)))


@pytest.fixture(autouse=True)
def _no_clients_of_another_environment() -> Iterator[None]:
    """Let no test get a client of a store that fsspec keeps from one with other credentials."""
    yield
    if (s3fs := sys.modules.get("s3fs")) is not None:
        for kind in (s3fs.S3FileSystem, *s3fs.S3FileSystem.__subclasses__()):
            kind.clear_instance_cache()
    if (clouds := sys.modules.get("exactsink.toolkit.storage.cloud_files")) is not None:
        for kind in clouds.CloudFiles.__subclasses__():
            kind.clear_instance_cache()


@pytest.fixture(autouse=True)
def _every_error_names_commands_that_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    advice: set[str] = set()
    made = ExactsinkError.__init__

    def noted(error: ExactsinkError, what: str, *, why: str = "", next: str = "") -> None:
        advice.add(next)
        made(error, what, why=why, next=next)

    monkeypatch.setattr(ExactsinkError, "__init__", noted)
    yield
    assert [found for text in sorted(advice) for one in commands_in(text) if (found := problem_of(one))] == []


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Sums())

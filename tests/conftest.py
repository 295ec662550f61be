"""What all tests share: servers and Spark as fixtures, who runs together and what runs first, and simulation's count."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.fixtures"]

_FIRST = ("e2e", "docs", "simulation", "integration", "contract", "unit", "conformance")
"""Folders by their longest tests: those that come last fill what gaps are left."""
_ALONE = ("simulation", "conformance")
"""Folders whose tests are handed out one by one; elsewhere a file's tests, which share servers, stay together."""


class _ScheduleCount:
    """Adds up the `schedules` that simulation tests recorded, in this process or in workers."""

    def __init__(self) -> None:
        self.total = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.total += sum(int(value) for name, value in report.user_properties if name == "schedules")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.total:
            terminalreporter.write_line(f"simulation: {self.total:,} schedules run")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_ScheduleCount())


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `--dist loadgroup --no-loadscope-reorder`: one worker has the warm JVM, one has the session; long first."""
    for item in items:
        folder, fixtures = _folder(item), getattr(item, "fixturenames", ())
        if "jvm" in fixtures or "drivers" in fixtures or folder == "docs":
            item.add_marker(pytest.mark.xdist_group("jvm"))
        elif "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif folder not in _ALONE:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: _FIRST.index(_folder(item)))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath / "tests").parts[0]

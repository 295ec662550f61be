"""What all tests share: the report of how many schedules the simulation ran."""

from __future__ import annotations

import pytest


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

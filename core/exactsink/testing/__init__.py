"""Test a backend under faults, without Spark: real processes, real kill -9, the real coordinator.

The conformance kit plays every scenario on a plugin's own target. A `ConformanceTarget` says how to reach the target.
Then a test class that inherits from `ConformanceSuite` (it needs pytest), or `exactsink conformance NAME`, runs the
kit.

`run_scenario` is the layer below. It plays driver runs over a script of batches, each with a fault or without, and
reports the result of each run.
"""

from typing import TYPE_CHECKING, Any

from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.recording import record, recorded
from exactsink.testing.runner import SCENARIOS, Result, Runner
from exactsink.testing.scenario import ScenarioReport, run_scenario
from exactsink.testing.session import Session
from exactsink.testing.target import ROWS, ConformanceTarget

if TYPE_CHECKING:
    from exactsink.testing.suite import ConformanceSuite

__all__ = [
    "ROWS",
    "SCENARIOS",
    "ConformanceSuite",
    "ConformanceTarget",
    "Fault",
    "Runner",
    "ScenarioReport",
    "Result",
    "Script",
    "Session",
    "record",
    "recorded",
    "run_scenario",
]


def __getattr__(name: str) -> Any:
    """Import the pytest class only when a caller uses it, because nothing else here needs pytest."""
    if name == "ConformanceSuite":
        from exactsink.testing.suite import ConformanceSuite

        return ConformanceSuite
    raise AttributeError(name)

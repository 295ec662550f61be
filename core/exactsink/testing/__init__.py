"""Test a backend under faults, without Spark: real processes, real kill -9, the real coordinator.

`run_scenario` plays driver lives over a script of batches, each life with a fault or without, and hands back a report
of what each life came to. The targets are read back, and held against the script, by the caller.
"""

from exactsink.testing.faults import Fault
from exactsink.testing.lives import Script
from exactsink.testing.scenario import Report, run_scenario

__all__ = ["Fault", "Report", "Script", "run_scenario"]

"""The processes of a run, and the CPU microseconds per row of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.plan import Bound, Metrics, Work
from exactsink.bench.clocks import cpu_reading, cpu_spent

__all__ = ["FLINK", "SPARK", "TOOL", "Sides", "bounded"]

SPARK = frozenset({"driver", "jvm", "workers", "server"})
FLINK = frozenset({"driver", "flink", "server"})
TOOL = frozenset({"driver", "server"})  # its time is in the driver's, because the driver runs it


@dataclass(frozen=True, slots=True)
class Sides:
    """The rows that every variant writes, and processes by id: `flink`, and the target's `server`."""

    rows: int
    named: Mapping[int, str]

    def timed(self, taking_part: frozenset[str], work: Callable[[], Metrics | None]) -> Work:
        """Add each side's CPU time to a work's figures. `cpu_s` omits processes that only stay warm for others."""

        def run() -> Metrics:
            before = cpu_reading()
            own = work() or {}
            spent = cpu_spent(before, cpu_reading(), self.named)
            took = {side: seconds for side, seconds in spent.items() if side in taking_part}
            micros = {f"{side}_us_a_row": seconds / self.rows * 1e6 for side, seconds in took.items()}
            total = sum(took.values())
            return {"rows": self.rows, "cpu_s": total, "us_a_row": total / self.rows * 1e6, **micros, **own}

        return run


def bounded(of: str, over: str, at_least: float | None = None) -> list[Bound]:
    """Return the same bound for rows per second of wall time and of CPU time."""
    return [Bound(metric, of, over, at_least=at_least) for metric in ("rows_per_s", "rows_per_cpu_s")]

"""What the tests of each example plugin take from the conformance kit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from exactsink.testing import ConformanceTarget, Runner
from exactsink.testing.target import ROWS


def played(runner: Runner, target: ConformanceTarget, scenario: str, folder: Path) -> str:
    """Play a scenario; return whether it passed or was skipped."""
    result = runner.play(scenario, target, folder)
    assert result.outcome != "failed", result.why
    return result.outcome


def rows(*ids: int) -> pa.Table:
    """Make rows as the kit's are."""
    return pa.table({"id": ids, "kind": ["k" for _ in ids], "amount": [1.0 for _ in ids]}, schema=ROWS)

"""The options of `[job]` as keyword arguments, for editors and type checkers. `JobSection` checks their values."""

from __future__ import annotations

from typing import Literal, TypedDict

from exactsink.contract import FileMode

__all__ = ["JobOptions"]


class JobOptions(TypedDict, total=False):
    """The keys of `JobSection`, which describes each, except name and checkpoint."""

    staging: str
    transform: str
    route: str
    modules: list[str]
    trigger: str
    output_mode: Literal["append", "update", "complete"]
    file_mode: FileMode
    restarts: int
    journal: str
    require: Literal["exactly_once"]
    allow_early_rows: bool
    fan_out: Literal["persist", "recompute"]
    deterministic: bool
    longest_pause: str
    epoch_budget: str
    stop_within: str

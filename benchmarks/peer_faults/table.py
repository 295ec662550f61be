"""The table of all plays, as JSON and Markdown, with all facts that another person needs to repeat it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer_faults.plays import Line

__all__ = ["save"]

_NAME = "peer_faults"
_COLUMNS = ("tool", "fault", "target", "rows", "lost", "doubled", "differ", "reported")


def save(lines: Sequence[Line], failed: Sequence[str], notes: Mapping[str, Any], folder: Path) -> None:
    """Write `peer_faults.json` and `peer_faults.md` into a folder. It makes the folder. `failed` have no result."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {"lines": [asdict(line) for line in lines], "failed": list(failed), **notes}
    (folder / f"{_NAME}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{_NAME}.md").write_text(_markdown(lines, failed, notes))


def _markdown(lines: Sequence[Line], failed: Sequence[str], notes: Mapping[str, Any]) -> str:
    rows = [[_cell(value) for value in asdict(line).values()] for line in lines]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [_COLUMNS, ["---"] * len(_COLUMNS), *rows])
    about = "Rows lost and doubled for readers of the target, by id, when the tool was started again and has ended."
    circumstances = "\n".join(f"- {name}: {_cell(value)}" for name, value in notes.items())
    broken = "".join(f"- NOT PLAYED: {_cell(what)}\n" for what in failed)
    return f"# Faults in the same place\n\n{about}\n\n{table}\n\n{broken}{circumstances}\n"


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")

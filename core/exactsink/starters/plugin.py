"""`exactsink init --plugin`: an installable package with a backend that passes the kit, to put a store's calls into."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from exactsink.contract import ConfigError
from exactsink.starters.job import write_new

__all__ = ["ROADS", "backend_text", "write_plugin"]

ROADS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "staged": ('path = "/data/store.db"', "rows wait in staged files until the decision, then one transaction"),
        "idempotent": (
            'path = "/data/store.db"\nkeys = ["id"]',
            "rows wait in staged files until the decision, then each is put by its key",
        ),
        "two-phase": ('path = "/data/store.db"', "tasks prepare rows in the store, the driver commits them"),
    }
)
"""Each road to a backend: the options of its example, and its strategy in a line."""


def write_plugin(folder: str, name: str, road: str) -> None:
    """Write a plugin's project into a folder. Raises ConfigError if a file exists there, or for a wrong name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} can't be a backend's name",
            why="it becomes part of a Python module's: lower-case letters, digits and _, a letter first",
            next=f"exactsink init {folder} --plugin my_store --from {road}",
        )
    place = Path(folder).absolute()
    package = place / f"exactsink_{name}"
    texts = {
        place / "pyproject.toml": _text("every/pyproject.toml", name, road),
        place / "README.md": _text("every/README.md", name, road),
        package / "__init__.py": f'"""{name} as a sink of exactsink."""\n',
        package / "backend.py": backend_text(name, road),
        package / "plugin.py": _text("every/plugin.py", name, road),
        package / "targets.py": _text(f"{_folder(road)}/targets.py", name, road),
        package / "py.typed": "",
        place / "tests" / f"test_{name}.py": _text("every/test.py", name, road),
    }
    write_new(texts, f"exactsink init ANOTHER_FOLDER --plugin {name} --from {road}")
    print(f"  next: cd {place}; pip install --editable . --group dev; exactsink backends; pytest -n auto")


def backend_text(name: str, road: str) -> str:
    """Return the backend of a road, under this name."""
    return _text(f"{_folder(road)}/backend.py", name, road)


def _folder(road: str) -> str:
    return road.replace("-", "_")


def _text(file: str, name: str, road: str) -> str:
    options, summary = ROADS[road]
    text = files("exactsink.starters").joinpath(f"templates/{file}.txt").read_text(encoding="utf-8")
    classes = "".join(part.capitalize() for part in name.split("_"))
    named = text.replace("exactsink-example", f"exactsink-{name.replace('_', '-')}")
    named = named.replace("Example", classes).replace("example", name)
    return named.replace("STRATEGY", _folder(road)).replace("SUMMARY", summary).replace("OPTIONS", options)

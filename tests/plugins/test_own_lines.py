"""A plugin is its store's calls, and little beside them: what is its own is counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactsink.starters.plugin import ROADS, write_plugin
from tests.code_lines import code_lines

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"
PLUGINS = {
    **dict.fromkeys(ROADS, (r"\b(sqlite3|store)\b", 100)),
    "exactsink-redis": (r"\b(redis|_redis|step)\b", 100),
    "exactsink-mysql-xa": (r"\b(pymysql|session|_session)\b", 480),  # on the third road, for what servers do with XA
}
"""Examples, and what `exactsink init --plugin` writes: how the code names its store's client, and its budget."""


def own_lines(project: Path, client: str) -> Iterator[str]:
    """Yield a plugin's own lines: all code but imports, docstrings, options, and lines that name its store's client.

    What the kit needs of it, its targets and tests, is not counted.
    """
    for path in sorted(project.glob("exactsink_*.py")) + sorted(project.glob("exactsink_*/**/*.py")):
        if not path.stem.endswith("targets"):
            source, lines = path.read_text(), path.read_text().splitlines()
            own = code_lines(source, ast.Import, ast.ImportFrom)
            for options in ast.parse(source).body:
                if isinstance(options, ast.ClassDef) and options.name.endswith("Options"):
                    own.difference_update(range(options.lineno, (options.end_lineno or 0) + 1))
            yield from (lines[number - 1] for number in sorted(own) if not re.search(client, lines[number - 1]))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_has_few_lines_beside_its_stores_calls(plugin: str, tmp_path: Path) -> None:
    project = EXAMPLES / plugin
    if plugin in ROADS:
        project = tmp_path
        write_plugin(str(project), "ledger", plugin)
    client, most = PLUGINS[plugin]
    own = list(own_lines(project, client))
    assert 20 < len(own) <= most, "\n".join(own)


def test_every_example_is_counted() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} <= set(PLUGINS)

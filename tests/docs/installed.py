"""Stand in for `pip install .`, which needs the package index: put a project where the page's commands find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE = "EXACTSINK_DOCS_SITE"
"""The variable that names the folder of what a page has installed."""


def main(project: Path, site: Path) -> None:
    """Link the project's packages and modules into `site`, and announce its entry points there."""
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    metadata = site / f"{described['name'].replace('-', '_')}.egg-info"
    metadata.mkdir(parents=True)
    (metadata / "PKG-INFO").write_text(f"Name: {described['name']}\nVersion: {described['version']}\n")
    lines = []
    for group, points in described["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for code in project.iterdir():
        if code.suffix == ".py" or (code / "__init__.py").exists():
            (site / code.name).symlink_to(code.absolute())


if __name__ == "__main__":
    main(Path.cwd(), Path(os.environ[SITE]))

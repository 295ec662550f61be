"""`exactsink backends`: list the installed backends."""

from __future__ import annotations

import sys

from exactsink.cli.options import as_json, command
from exactsink.cli.plain import print_json
from exactsink.cli.table import print_table
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["backends"]


@command()
@as_json
def backends(as_json: bool) -> None:
    """List the installed backends, and the problem of each broken one."""
    listings = Registry(installed_plugins()).listings()
    if as_json:
        print_json(listings)
        return
    rows = [
        (b.name, ", ".join(b.strategies), b.package, b.contract, f"broken: {b.problem}" if b.problem else "ok")
        for b in listings
    ]
    print_table(("backend", "strategies", "package", "contract", "state"), rows, sys.stdout)

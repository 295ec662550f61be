"""`exactsink backends`: what is installed."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from exactsink.cli.table import print_table
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["backends"]


def backends(as_json: bool) -> None:
    """Print every installed backend; a broken one with its problem, which stops only the jobs that use it."""
    listings = Registry(installed_plugins()).listings()
    if as_json:
        print(json.dumps([asdict(listing) for listing in listings], indent=1))
        return
    rows = [
        (b.name, ", ".join(b.strategies), b.package, b.contract, f"broken: {b.problem}" if b.problem else "ok")
        for b in listings
    ]
    print_table(("backend", "strategies", "package", "contract", "state"), rows, sys.stdout)

"""Play upserts against a dictionary for as long as one likes: `python -m tests.differential --plays 2000 sqlite`.

Each play is a seed and a database; one whose table differs from the dictionary is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tests.differential.places import Place, duckdb_place, mariadb_place, postgres_place, sqlite_place
from tests.differential.plays import PlayError, drawn, play
from tests.servers.mariadb import own_mariadb
from tests.servers.postgres import own_postgres

DATABASES = ("sqlite", "postgres", "mariadb", "duckdb")
_A_PLACE = 100  # plays in one database: no table is dropped, and DuckDB's file of 400 has 240 MB


def main() -> int:
    """Play seeds from `--seed` on; end with 1 when a table differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first play")
    parser.add_argument("--plays", type=int, default=2000, help="how many on each database")
    parser.add_argument("--refusals", action="store_true", help="print why rows were refused")
    parser.add_argument("databases", nargs="*", metavar="DATABASE", help=f"of {', '.join(DATABASES)}: all by default")
    given = parser.parse_args()
    wrong, end = 0, given.seed + given.plays
    for database in given.databases or DATABASES:
        ended = Counter[str]()
        for first in range(given.seed, end, _A_PLACE):
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                place = _opened(stack, database, folder)
                ended += _played(place, folder, range(first, min(end, first + _A_PLACE)), given.refusals)
        print(f"{database}: " + ", ".join(f"{count:,} {end}" for end, count in ended.most_common()), flush=True)
        wrong += ended["wrong"]
    return int(wrong > 0)


def _opened(stack: ExitStack, database: str, folder: Path) -> Place:
    if database == "postgres":
        return stack.enter_context(postgres_place(stack.enter_context(own_postgres())))
    if database == "mariadb":
        return stack.enter_context(mariadb_place(stack.enter_context(own_mariadb())))
    return stack.enter_context({"sqlite": sqlite_place, "duckdb": duckdb_place}[database](folder))


def _played(place: Place, folder: Path, seeds: Iterable[int], refusals: bool) -> Counter[str]:
    ended = Counter[str]()
    for seed in seeds:
        try:
            end, why = play(drawn(seed, place.database), place, folder)
            ended[end] += 1
            if refusals and why:
                print(f"seed {seed} on {place.database}, {end}: {why}", flush=True)
        except PlayError as error:
            ended["wrong"] += 1
            print(f"{error}\n", flush=True)
    return ended


if __name__ == "__main__":
    sys.exit(main())

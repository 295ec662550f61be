"""Play upserts against a dictionary for as long as one likes: `python -m tests.differential --plays 2000 sqlite`.

Each play is a seed and a database; one whose table differs from the dictionary is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.differential.places import Place, duckdb_place, mariadb_place, postgres_place, sqlite_place
from tests.differential.plays import PlayError, drawn, play
from tests.servers.mariadb import own_mariadb
from tests.servers.postgres import own_postgres

DATABASES = ("sqlite", "postgres", "mariadb", "duckdb")


def main() -> int:
    """Play seeds from `--seed` on; end with 1 when a table differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first play")
    parser.add_argument("--plays", type=int, default=2000, help="how many on each database")
    parser.add_argument("--refusals", action="store_true", help="print why rows were refused")
    parser.add_argument("databases", nargs="*", metavar="DATABASE", help=f"of {', '.join(DATABASES)}: all by default")
    given = parser.parse_args()
    wrong = 0
    for database in given.databases or DATABASES:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            wrong += _played(_opened(stack, database, folder), folder, given)
    return int(wrong > 0)


def _opened(stack: ExitStack, database: str, folder: Path) -> Place:
    if database == "postgres":
        return stack.enter_context(postgres_place(stack.enter_context(own_postgres())))
    if database == "mariadb":
        return stack.enter_context(mariadb_place(stack.enter_context(own_mariadb())))
    return stack.enter_context({"sqlite": sqlite_place, "duckdb": duckdb_place}[database](folder))


def _played(place: Place, folder: Path, given: argparse.Namespace) -> int:
    ended = Counter[str]()
    for seed in range(given.seed, given.seed + given.plays):
        try:
            end, why = play(drawn(seed, place.database), place, folder)
            ended[end] += 1
            if given.refusals and why:
                print(f"seed {seed} on {place.database}, {end}: {why}", flush=True)
        except PlayError as error:
            ended["wrong"] += 1
            print(f"{error}\n", flush=True)
    print(f"{place.database}: " + ", ".join(f"{count:,} {end}" for end, count in ended.most_common()), flush=True)
    return ended["wrong"]


if __name__ == "__main__":
    sys.exit(main())

"""Play random plays for as long as one likes: `python -m tests.simulation --seed 0 --plays 100000`.

Each play is a seed; one in which a row is lost or doubled that nobody was warned of is printed, with what differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

from exactsink.protocol.journal import journal
from tests.simulation.plays import counted, play
from tests.simulation.schedules import Lab
from tests.simulation.world import Violation, decode

_REPORTED = 1000


def main() -> int:
    """Play seeds from `--seed` on; end with 1 when one broke the promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first play")
    parser.add_argument("--plays", type=int, default=10_000, help="how many")
    given = parser.parse_args()
    logging.getLogger("exactsink").setLevel(logging.CRITICAL)
    journal.decode = decode  # which remembers what it has read
    done, broken = Counter[str](), 0
    for seed in range(given.seed, given.seed + given.plays):
        try:
            done.update(counted(play(Lab(), seed)))
        except Violation as violation:
            broken += 1
            print(f"seed {seed}: {violation}", flush=True)
        if (seed + 1 - given.seed) % _REPORTED == 0:
            print(f"{seed + 1 - given.seed:,} plays, {broken} broke the promise", file=sys.stderr, flush=True)
    print(", ".join(f"{count:,} {what}" for what, count in done.items()) + f"; {broken} broke the promise")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())

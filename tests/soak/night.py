"""The night: bad states of a job, each left by doing literally what is printed; then every row is counted.

`python -m tests.soak.night` plays all states, or those whose name has one of the words given, and prints the table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.postgres import PostgresServer, own_postgres
from tests.soak.night_job import NightJob, NotReachedError
from tests.soak.night_person import Verdict, left_as_printed
from tests.soak.night_states import State, states

ENDS = ("ended right", "warned truly", "wrong", "not reached")


@dataclass(frozen=True)
class Played:
    """A state, how it ended, and all that was said."""

    state: str
    verdict: Verdict
    transcript: str


def play(state: State, folder: Path, server: PostgresServer) -> Played:
    """Bring a job into a state, follow what is printed, and judge."""
    job = NightJob(folder, server, state.sinks, state.uid)
    try:
        state.reach(job)
        job.said.append("---- the state is reached\n")
        judge = left_as_printed(job, state.heals)
    except NotReachedError as error:
        return Played(state.name, Verdict("not reached", str(error)), "".join(job.said))
    finally:
        with suppress(FileNotFoundError):
            state.undo(job)
    return Played(state.name, judge(), "".join(job.said))


def play_all(chosen: Iterable[State], folder: Path, say: bool = False) -> Sequence[Played]:
    """Play these on a server of their own."""
    played = []
    with own_postgres() as server:
        NightJob(folder / "warm" / "job", server).warm()
        for number, state in enumerate(chosen):
            played.append(play(state, folder / str(number) / "job", server))
            if say:
                last = played[-1]
                print(f"{last.verdict.word:<12}{last.state}: {last.verdict.why}", flush=True)
    return played


def table(played: Sequence[Played]) -> str:
    """Return how many states ended how, and what is wrong."""
    words = Counter(one.verdict.word for one in played)
    shown = {"states": len(played), **{word: words[word] for word in ENDS}}
    lines = ["  ".join(shown), "  ".join(f"{count:<{len(name)}}" for name, count in shown.items())]
    return "\n".join([*lines, *(f"{p.verdict.word}: {p.state}: {p.verdict.why}" for p in failed(played))])


def failed(played: Sequence[Played]) -> Sequence[Played]:
    """Return the states that ended wrong, or were not reached."""
    return [one for one in played if one.verdict.word in ENDS[2:]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.night", description=__doc__)
    parser.add_argument("words", nargs="*", help="play only states whose name has one of these")
    parser.add_argument("--transcript", action="store_true", help="print all that was said where it ended wrong")
    given = parser.parse_args()
    chosen = [s for s in states() if not given.words or any(word in s.name for word in given.words)]
    with tempfile.TemporaryDirectory(prefix="exactsink-night-") as folder:
        os.chmod(folder, 0o711)
        played = play_all(chosen, Path(folder), say=True)
    print(table(played))
    for one in failed(played) if given.transcript else ():
        print(f"\n======== {one.state}: {one.verdict.why}\n{one.transcript}")
    return int(len(failed(played)) > 0)


if __name__ == "__main__":
    sys.exit(main())

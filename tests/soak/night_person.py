"""A person at night: does literally what is printed, until the job is well or nothing is left; then rows are counted.

Who is asked to bring a server back, or to wait for a heartbeat to grow old, does so: a state says by which words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.printed import Answer, Person, differences
from tests.soak.night_job import CUT, HANGS, NightJob

KEYED = ("table",)
"""Sinks in which a row that comes twice replaces itself."""

Heals = Mapping[str, Callable[[NightJob], object]]
Word = Literal["ended right", "warned truly", "wrong", "not reached"]


@dataclass(frozen=True)
class Verdict:
    """How a state ended, and why that is wrong."""

    word: Word
    why: str = ""


@dataclass
class _Hands:
    """What a person does outside of exactsink, where it is printed; each once, but waiting."""

    job: NightJob
    heals: Heals
    hanging: list[str] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)

    def give(self, words: Sequence[str]) -> Answer:
        answer = self.job.do(*words)
        if answer.code == HANGS:
            self.hanging.append(f"{' '.join(words)} hangs")
        return answer

    def do(self, text: str) -> bool:
        """Do what a text asks for; return whether that was anything."""
        if "wait until the heartbeat" in text:
            self.job.minute_passes()
            return True
        if "move the journal away" in text and self._first("journal"):
            there = self.job.history
            return self.job.do("mv", str(there / "journal"), str(there / "moved")).code == 0
        for words, heal in self.heals.items():
            if re.search(words, text) and self._first(words):
                heal(self.job)
                self.job.said.append(f"[the person has done so: {words}]\n")
                return True
        return False

    def shows(self, sink: str, epoch: int) -> bool:
        """Look into a target whether all rows of an epoch are there."""
        return set(self.job.ledger().get(epoch, ())) <= self.job.held()[sink].keys()

    def _first(self, what: str) -> bool:
        is_first = what not in self._done
        self._done.add(what)
        return is_first


def left_as_printed(job: NightJob, heals: Heals) -> Callable[[], Verdict]:
    """Leave the state by what is printed; return what counts the rows then."""
    hands, start = _Hands(job, heals), ("exactsink", "run", str(job.file))
    person = Person(job.sinks, job.ledger, hands.give, hands.do, start, hands.shows)
    problem = person.follow(hands.give(("exactsink", "status", str(job.file))))
    if not problem:
        job.rows += CUT
        began = hands.give(start)
        problem = (began.code and person.follow(began)) or ""
    last = job.do("exactsink", "status", str(job.file))
    if not problem and last.code:
        problem = f"the job runs, and status ends {last.code}"
    return lambda: _judged(job, [*filter(None, [problem]), *hands.hanging, *person.failed], person)


def _judged(job: NightJob, problems: Sequence[str], person: Person) -> Verdict:
    """Count every row of every sink, and hold that against what was said before it was done."""
    wrong, costly = differences(job.held(), range(job.rows), person.costs, KEYED)
    if problems or wrong:
        return Verdict("wrong", "; ".join([*problems, *wrong]))
    return Verdict("warned truly" if costly else "ended right")

"""Read what exactsink prints as a person reads it: the commands that come next, and which rows a command will cost.

This is the only place of the night and of the random plays that knows the words of `rebase`: adapt it here.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import click

from exactsink.cli.main import cli

JOB = "JOB.toml"
_COMMAND = re.compile(r"\bexactsink (?=[a-z])")
_SHELL = re.compile(r"(?:\bsudo )?\b(?:chmod|chown|mv|mkdir) [^;`\n]*?(?=;|,? or |, then |`|\n|$)")
_TOKEN = re.compile(r"(?:'[^']*'|[^\s'`])+")
_NEXT = re.compile(r"(?:next:|fix:|to go on from [^:]*:)\s*(.*)")
_EPOCHS = re.compile(
    r"epochs? (?P<first>\d+)(?: (?:to|and) (?P<last>\d+))?(?P<verb>,? (?:are|is|come|comes|may|will|would|in)\b[^;]*)"
)
_EVERYWHERE = re.compile(r"epochs? (?P<first>\d+)(?: to (?P<last>\d+))? (?:is|are) then missing in every sink")
_Kind = Literal["doubled", "missing", "perhaps", "unknown"]
_KINDS: Mapping[_Kind, Sequence[str]] = {
    "perhaps": ("may ",),
    "doubled": ("come again", "comes again", "doubled", "twice"),
    "missing": ("missing", "not read again"),
}


@dataclass(frozen=True)
class Announced:
    """What was said of one sink: these epochs are `doubled` or `missing` there, `perhaps` either, or nobody knows."""

    sink: str
    kind: _Kind
    first: int = 0
    last: int = -1


Cost = tuple[Announced, frozenset[Any]]
"""What was said of a sink, and which rows the epochs named had then."""


def costs_of(text: str, rows: Mapping[int, Collection[Hashable]], sinks: Collection[str]) -> Sequence[Cost]:
    """Return what a text says that a command will cost, epoch by epoch; `rows` are those of each that was written."""
    found: list[Cost] = []
    for said in announced(text, sinks):
        epochs = range(said.first, said.last + 1) if said.kind != "unknown" else [0]
        found += [(replace(said, first=epoch, last=epoch), frozenset(rows.get(epoch, ()))) for epoch in epochs]
    return found


def differences(
    held: Mapping[str, Counter[Any]], source: Collection[Any], costs: Sequence[Cost], keyed: Collection[str] = ()
) -> tuple[list[str], bool]:
    """Hold every row of every sink against the source, and against what was said before it was done.

    Return what was not said, or did not happen; and whether anything but all rows once was found. Of an epoch that is
    said to be missing or doubled it may be a part: nobody counts participants in every target. In a `keyed` sink a row
    that comes twice replaces itself.
    """
    wrong, costly = [], False
    for sink, rows in held.items():
        found = {
            "missing": Counter(row for row in source if not rows[row]),
            "doubled": Counter({row: count - 1 for row, count in rows.items() if count > 1}),
        }
        if foreign := [row for row in rows if row not in source]:
            wrong.append(f"{sink} holds rows of no source: {foreign}")
        costly |= any(found.values())
        of_sink = [(said, of) for said, of in costs if said.sink == sink]
        if any(said.kind == "unknown" for said, _ in of_sink):
            continue
        for kind in ("missing",) if sink in keyed else ("missing", "doubled"):
            said = [(one, of) for one, of in of_sink if one.kind == kind]
            silent = found[kind] - Counter(row for one, of in of_sink if one.kind in (kind, "perhaps") for row in of)
            other = {row for one, of in of_sink if one.kind != kind for row in of}  # doubled, then missing: it is once
            idle = [one.first for one, of in said if of - other and not of & found[kind].keys()]
            if silent:
                wrong.append(f"{sink}: {_named(silent)} {kind}, and nobody was warned")
            if idle:
                wrong.append(f"{sink}: epochs {idle} were announced as {kind}, and are not")
    return wrong, costly


def _named(rows: Counter[Any]) -> str:
    names = sorted(rows.elements())
    return f"{len(names)} rows ({names[0]} to {names[-1]})" if names else "none"


def announced(text: str, sinks: Collection[str]) -> Iterator[Announced]:
    """Read which rows a command costs out of what is printed before it is done: the table of `rebase`, and errors."""
    for line in text.splitlines():
        if "gives again are doubled in every sink" in line:
            yield from (Announced(sink, "unknown") for sink in sinks)
        name, *cells = re.split(r"\s{2,}", line.strip())
        for found in _EVERYWHERE.finditer(line):
            first, last = int(found["first"]), int(found["last"] or found["first"])
            yield from (Announced(sink, "missing", first, last) for sink in sinks)
        if name not in sinks:
            continue
        for cell in cells:
            if "can't be known" in cell:
                yield Announced(name, "unknown")
            for found in _EPOCHS.finditer(cell):
                first, last = int(found["first"]), int(found["last"] or found["first"])
                for kind, words in _KINDS.items():
                    if any(word in found["verb"] for word in words):
                        yield Announced(name, kind, first, last)
                        break


def _given_up(words: Sequence[str], text: str) -> str:
    """Return what a word of `given-up` that is only shown costs, as `announced` reads it."""
    if "given-up" not in words or "missing from then on" not in text:
        return ""
    said = dict(itertools.pairwise(words))
    return f"{said['--sink']}  epoch {said['--epoch']} is missing"


def commands(text: str) -> Sequence[Sequence[str]]:
    """Return the commands that a text names as next ones, in its order; each as words that a shell would give."""
    found = []
    for line in (match[1] for match in _NEXT.finditer(text)):
        starts = [(match.start(), _words(line[match.end() :])) for match in _COMMAND.finditer(line)]
        starts += [(match.start(), shlex.split(match[0])) for match in _SHELL.finditer(line)]
        found += [words for _, words in sorted(starts) if words]
    return list(dict.fromkeys(map(tuple, found)))


def _words(text: str) -> Sequence[str]:
    """Take a command's words from the beginning of a text: as far as the command line knows them."""
    command: click.Command = cli
    words, taken = ["exactsink"], False
    tokens = iter(_TOKEN.findall(text.partition("`")[0]))
    for token in tokens:
        word = token.rstrip(",;:.") if not token.endswith("'...'") else token
        if isinstance(command, click.Group):
            name = command.get_command(click.Context(command), word)
            if name is None:
                return ()
            command = name
        elif word.startswith("--"):
            option = next((o for o in command.params if word.partition("=")[0] in o.opts), None)
            if option is not None and not getattr(option, "is_flag", False) and "=" not in word:
                words.append(word)
                token = next(tokens, "")
                word = token.rstrip(",;:.") if "'" not in token else token
        elif not taken and word.strip("'").endswith(".toml"):
            taken = True
        elif not (taken and _is_reference(command, word)):
            break
        words.append(shlex.split(word)[0] if word else word)
        if token != word and not token.endswith("'"):
            break
    return words


def _is_reference(command: click.Command, word: str) -> bool:
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    return len(arguments) > 1 and re.fullmatch(r"[0-9a-f]{8}|REF", word) is not None


@dataclass(frozen=True)
class Answer:
    """What came of a command: its exit code, and what it printed."""

    words: Sequence[str]
    code: int
    out: str = ""
    err: str = ""


@dataclass
class Person:
    """Does literally what is printed. `give` runs a command, `by_hand` does what a text asks for outside of exactsink.

    `rows` are those of each epoch that was written so far, `costs` what was said before a command that did it.
    """

    sinks: Sequence[str]
    rows: Callable[[], Mapping[int, Collection[Hashable]]]
    give: Callable[[Sequence[str]], Answer]
    by_hand: Callable[[str], bool]
    start: Sequence[str]
    shows: Callable[[str, int], bool] = lambda sink, epoch: True
    """Looks into a sink's target whether all rows of an epoch are there."""

    costs: list[Cost] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Commands that can't be right as they were printed: 2 is a wrong use, 70 a bug, 126 and 127 are the shell's."""

    steps: int = 0

    def follow(self, answer: Answer, most: int = 16) -> str:
        """Go on from an answer until the job is started and runs well; return why it can't be, or nothing."""
        waiting: list[Sequence[str]] = []
        tried: set[Sequence[str]] = {tuple(answer.words)}
        shown: Sequence[Cost] = ()
        for _ in range(most):
            shown = self._taken(answer, shown)
            waiting = self._next(answer, waiting, tried)
            if not waiting:
                return f"no command is left after exit {answer.code}"
            words = waiting.pop(0)
            tried.add(words)
            answer = self.give(words)
            self.steps += 1
            if tuple(words) == tuple(self.start) and answer.code == 0:
                return ""
        return f"no end after {most} commands"

    def _taken(self, answer: Answer, shown: Sequence[Cost]) -> Sequence[Cost]:
        """Keep what a command that has acted was said to cost; return what is known of the next one."""
        if _has_acted(answer):
            self.costs += shown
            return ()
        said = _given_up(answer.words, answer.out) or answer.out + answer.err
        return costs_of(said, self.rows(), self.sinks) or shown

    def _next(self, answer: Answer, waiting: list[Sequence[str]], tried: set[Sequence[str]]) -> list[Sequence[str]]:
        """Choose what comes next: what is printed and was not tried since anything changed, then what else was."""
        named = commands(answer.err) or commands(answer.out)
        guessed = any("NAME" in words for words in named)
        printed = [one for words in named for one in self._typed(words)]
        text = answer.out + answer.err
        if re.search(r"(repeat with|say) --yes", text) and "--yes" not in answer.words:
            printed.insert(0, (*answer.words, "--yes"))
        if "would do this without --dry-run:" in text:
            printed.insert(0, tuple(word for word in answer.words if word != "--dry-run"))
        if "stop that driver" in text:  # none runs
            printed.insert(0, (*answer.words, "--take-over"))
        if "the same command again" in text:
            printed.insert(0, tuple(answer.words))
        if answer.code in (2, 70, 126, 127) and not (waiting and not guessed and answer.code == 2):
            self.failed.append(f"{' '.join(answer.words)} ends {answer.code}")
        if self.by_hand(text):
            tried.clear()
            return [*printed, tuple(answer.words)]
        if _has_acted(answer):
            tried.clear()
            tried.add(tuple(answer.words))
            waiting = []
        if answer.code in (0, 75) and not printed:
            printed = [tuple(self.start)]
            tried.discard(tuple(self.start))
        found = [*waiting, *printed] if answer.code == 2 else [*printed, *waiting]
        return [words for words in dict.fromkeys(found) if words not in tried]

    def _typed(self, words: Sequence[str]) -> Sequence[Sequence[str]]:
        """Return a command as a person can type it: once for each sink, where a NAME is left to them."""
        if words[0] != "exactsink":
            return [tuple(words)]
        job = next(word for word in self.start if word.endswith(".toml"))
        named = [job if word == JOB else word for word in words]
        if not any(word.endswith(".toml") for word in named):
            named.insert(next((n for n, word in enumerate(named) if word.startswith("-")), len(named)), job)
        if "REF" in named or any("=EPOCH" in word for word in named):
            return []
        each = [tuple(sink if word == "NAME" else word for word in named) for sink in self.sinks]
        return list(dict.fromkeys(self._looked(words) for words in each))

    def _looked(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Choose the word on what nobody can prove, `committed` or lost, by a look into the target."""
        said = dict(itertools.pairwise(words))
        if said.get("--as") != "committed" or self.shows(said["--sink"], int(said["--epoch"])):
            return words
        return tuple("lost" if word == "committed" else word for word in words)


def _has_acted(answer: Answer) -> bool:
    """Return whether a command has changed anything."""
    words = answer.words
    acts = "--yes" in words or words[1] == "adopt" or (words[1] == "recover" and "--dry-run" not in words)
    return answer.code == 0 and (words[0] != "exactsink" or acts)

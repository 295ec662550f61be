"""Read the pages' snippets: what stands in a fenced block, and how its mark says that it is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SERVERS = ("spark", "postgres", "kafka")
"""What a block may need: a running JVM for a driver, a database, a broker."""

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)(?: +(?P<mark>.*\S))?\s*")
_STAND_IN = re.compile(r"<!-- run: (?P<command>.*) -->\s*")
_MARK = re.compile(
    r"file=(?P<file>[\w./-]+)|no-run: (?P<reason>\S.*)|"
    rf"run(?P<needs>(?: (?:{'|'.join(SERVERS)}))*)(?: exit=(?P<codes>\d+(?:,\d+)*))?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a reader of a page does: writes a file, runs commands, or (with a reason) neither.

    `codes` are the exit codes that the last command may end with. `needs` are the SERVERS that its commands use.
    """

    place: str
    language: str
    text: str
    file: str = ""
    runs: bool = False
    needs: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, and the lines that the page shows below it."""

    text: str
    shown: tuple[str, ...]


def pages() -> list[Path]:
    """List the pages whose snippets are run: all but the decisions, which are records."""
    found = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if "decisions" not in page.parts]


def steps(page: Path) -> list[Step]:
    """Read a page's blocks in order. Raises ValueError for a block that does not say how it is run."""
    name = page.relative_to(page.parents[1]) if page.parent != ROOT else page.name
    return steps_in(page.read_text(encoding="utf-8"), str(name))


def steps_in(text: str, name: str = "") -> list[Step]:
    """Read the blocks of a page's text, whose places have this name."""
    found: list[Step] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        place = f"{name}:{number + 1}"
        stand_in = _STAND_IN.fullmatch(lines[number])
        fence = _FENCE.fullmatch(lines[number])
        number += 1
        if stand_in:
            found.append(Step(place, "console", f"$ {stand_in['command']}\n...", runs=True))
        elif fence:
            body = []
            while number < len(lines) and lines[number].strip() != "```":
                body.append(lines[number].removeprefix(fence["indent"]))
                number += 1
            if number == len(lines):
                raise ValueError(f"{place}: the block has no end")
            number += 1
            found.append(_step(place, fence["language"], fence["mark"] or "", "\n".join(body) + "\n"))
    return found


def commands(step: Step) -> list[Command]:
    """Cut a console block into its commands: `$ ` begins one, `> ` goes on with it, all else is shown output."""
    found: list[tuple[list[str], list[str]]] = []
    for line in step.text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif not found:
            raise ValueError(f"{step.place}: a console block begins with a command, `$ ...`")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line.rstrip())
    return [Command("\n".join(command), tuple(output)) for command, output in found]


def shown(command: Command) -> re.Pattern[str]:
    """Make the pattern of an output: `...` alone stands for any lines, within a line for any text."""
    parts = [
        r"(?:.*\n)*?" if line.strip() == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"[ \t]*\n"
        for line in command.shown
    ]
    return re.compile("".join(parts))


def _step(place: str, language: str, mark: str, text: str) -> Step:
    known = _MARK.fullmatch(mark)
    if known is None:
        raise ValueError(
            f"{place}: mark the block with file=NAME, run [spark] [postgres] [kafka] [exit=N], or no-run: REASON"
        )
    if known["file"]:
        return Step(place, language, text, file=known["file"])
    if known["reason"]:
        return Step(place, language, text)
    if language != "console":
        raise ValueError(f"{place}: only console blocks are run; give this one file=NAME and a command that uses it")
    codes = frozenset(map(int, (known["codes"] or "0").split(",")))
    return Step(place, language, text, runs=True, needs=tuple((known["needs"] or "").split()), codes=codes)

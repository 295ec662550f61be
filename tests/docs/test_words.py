"""Words that made readers stop: each habit is counted in pages and in the code's texts, and held at its number."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

HABITS = {
    "what, as a noun": r"\bwhat\b",
    "stand, for exist": r"\b(?:stand|stands|stood|standing)\b(?! for\b)",
    "ask, for query, check or call": r"\b(?:ask|asks|asked|asking)\b",
    "hear, for poll": r"\b(?:hear|hears|heard|hearing)\b",
    "one that, those that": r"\b(?:one|those) that\b",
    "of which, of whom, whose": r"\b(?:of (?:which|whom)|whose)\b",
    "let go of, for close": r"\b(?:let|lets|letting) go of\b",
    "a trailing say": r"\bsay(?=[.,;:)]|$)",
    "a trailing too": r"\btoo(?=[.,;:)]|$)",
    "anew, for again": r"\banew\b",
    "for good": r"\bfor good\b",
    "is no, for is not a": r"\b(?:is|are) no\b",
    "came of, comes to": r"\b(?:comes?|came|coming) (?:of|to)\b",
}
"""What is counted, by name. A quotation, a command and a link's address are not prose."""

HELD = dict.fromkeys(HABITS, 0) | {"what, as a noun": 6, "ask, for query, check or call": 2}
HELD["of which, of whom, whose"] = 4  # of all these, CONTRIBUTING has 4, 1 and 3
"""The most that all pages together may have of each habit."""

TERMS = (
    r"\b(?:epochs?|journals?|participants?|committables?|(?:un)?decided|marks?|sweeps?|in doubt|staged rows|lineage)\b"
)
"""Words of the glossary that no reader knows in our meaning."""

HELD_IN_CODE = dict.fromkeys(HABITS, 0) | {"what, as a noun": 26, "stand, for exist": 8}
HELD_IN_CODE |= {"ask, for query, check or call": 20, "one that, those that": 19, "of which, of whom, whose": 63}
HELD_IN_CODE["is no, for is not a"] = 30  # "there is no ..." among them
"""The same for messages and docstrings of core and backends."""

READ_AGAIN = [f"core/exactsink/{name}" for name in ("job", "spark", "cli", "operate", "watch", "starters", "protocol")]
HELD_THERE = dict.fromkeys(HABITS, 0) | {
    "what, as a noun": 5,  # the name of an error's field, and of a column
    "ask, for query, check or call": 12,  # the state `not asked`
    "of which, of whom, whose": 1,
    "is no, for is not a": 5,
}
"""The same for the packages of core that were read like a page."""


def prose(text: str) -> str:
    """Return a page without its blocks, its code, its comments, its examples and the addresses of its links."""
    text = re.sub(r"^\| before \| after \|\n(?:\|.*\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def pages() -> list[Path]:
    """List all pages but the decisions, which are records."""
    folders = [(ROOT / name).rglob("*.md") for name in ("benchmarks", "docs", "examples")]
    return [page for page in sorted(chain(ROOT.glob("*.md"), *folders)) if "decisions" not in page.parts]


def is_unlinked(text: str) -> bool:
    """Return whether a page uses a term in a section before the one that links the glossary."""
    text = re.sub(r"\]\([^)]*glossary\.md[^)]*\)", "] GLOSSARY", re.sub(r"!\[[^]]*\]", "", text))
    parts = re.split(r"^#.*$", prose(text), flags=re.MULTILINE)
    return "GLOSSARY" not in next((part for part in parts if re.search(f"GLOSSARY|{TERMS}", part)), "GLOSSARY")


def counted(texts: list[str]) -> dict[str, int]:
    """Count each habit in the prose of pages."""
    whole = "\n".join(map(prose, texts))
    return {name: len(re.findall(habit, whole, re.IGNORECASE | re.MULTILINE)) for name, habit in HABITS.items()}


@cache
def texts_of_code(*folders: str) -> list[str]:
    """List the strings and docstrings of these folders, without the code that f-strings hold."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_grows_in_no_message_and_no_docstring(habit: str) -> None:
    assert counted(texts_of_code("core", "backends"))[habit] <= HELD_IN_CODE[habit]
    assert counted(texts_of_code(*READ_AGAIN))[habit] <= HELD_THERE[habit]


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_grows_in_no_page(habit: str) -> None:
    """Whoever rewrites a page lowers the number. It is a limit, because branches rewrite pages at the same time."""
    assert counted([page.read_text(encoding="utf-8") for page in pages()])[habit] <= HELD[habit]


def test_each_page_links_the_glossary_where_it_first_uses_a_term() -> None:
    assert is_unlinked("# One\n\nAn epoch.\n\n## Two\n\nAn [epoch](glossary.md).\n")
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages()}
    assert [name for name, text in texts.items() if is_unlinked(text) and not name.endswith("glossary.md")] == []


def test_each_habit_is_seen_in_prose_and_nowhere_else() -> None:
    said = """\
What it asks is one that stands there, of which nobody hears, say.
It lets go of it for good, anew, too: there is no end, and it comes to nothing.
"""
    assert set(counted([said]).values()) == {1}
    assert set(counted([f"```console run\n{said}```\n<!-- {said} -->\n[link](what/asks)\n"]).values()) == {0}

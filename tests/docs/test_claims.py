"""What pages claim in tables: each row names a test that there is, each message and exit code stands in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from exactsink.contract import ExactsinkError, errors
from tests.docs.pages import ROOT

CHANGES, FAILURES = ROOT / "docs/how-to/change-a-job.md", ROOT / "docs/explanation/what-happens-when.md"
TROUBLES, CODES = ROOT / "docs/how-to/troubleshoot.md", ROOT / "docs/reference/exit-codes.md"
_PROOF = re.compile(r"<!-- proven by: (?P<tests>[^>]*) -->")
_ROW = re.compile(r"^\| (?!---)(?P<cells>.*) \|$", re.MULTILINE)
_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ExactsinkError)
}


def rows(text: str) -> list[str]:
    """Return the rows of a page's tables, without their heads."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        found += [row["cells"] for row in list(_ROW.finditer(table))[1:]]
    return found


def missing(text: str) -> list[str]:
    """Name the tests that a page takes for proofs, and that don't exist."""
    named = [name for proof in _PROOF.finditer(text) for name in proof["tests"].split()]
    return [name for name in named if name.partition("::")[2] not in _tests(name.partition("::")[0])]


@cache
def _tests(path: str) -> set[str]:
    whole = ROOT / "tests" / path
    if not whole.exists():
        return set()
    return {node.name for node in ast.walk(ast.parse(whole.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", [CHANGES, FAILURES], ids=lambda page: page.name)
def test_each_row_is_proven_by_a_test(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [row for row in rows(text) if not _PROOF.search(row)] == []
    assert len(rows(text)) > 20
    assert [name for page in (ROOT / "docs").rglob("*.md") for name in missing(page.read_text(encoding="utf-8"))] == []


def test_a_proof_that_is_not_there_is_found() -> None:
    assert missing("<!-- proven by: unit/test_marks.py::test_nothing unit/none.py::test_it -->") == [
        "unit/test_marks.py::test_nothing",
        "unit/none.py::test_it",
    ]
    assert rows("| a | b |\n| --- | --- |\n| 1 | 2 |\n") == ["1 | 2"]


@cache
def messages() -> dict[str, set[int]]:
    """Return the texts of the code, `...` for what is filled in, with the exit codes of the errors made of them."""
    found: dict[str, set[int]] = {}
    for place in ("core", "backends"):
        for path in (ROOT / place).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant | ast.JoinedStr) and (text := _shown(node)):
                    found.setdefault(text, set())
            for text, code in _raised(tree):
                found[text].add(code)
    return found


def _raised(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KINDS:
            for part in (*node.args, *(keyword.value for keyword in node.keywords)):
                if text := _shown(part):
                    yield text, _KINDS[node.func.id].exit_code


def _shown(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return re.sub(
            r"(\.\.\.\s*)+", lambda dots: "... " if dots[0].endswith(" ") else "...", "".join(map(_part, node.values))
        )
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "..."


def listed(text: str) -> list[tuple[int, str]]:
    """Return the messages of a page by the exit code in whose section they stand."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        code = re.match(r"Exit code (\d+)", section)
        found += [(int(code[1]), message) for message in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE) if code]
    return found


def unknown(text: str) -> list[str]:
    """Name what a page lists and no error of the code says, or says with another exit code."""
    wrong = []
    for code, message in listed(text):
        made = [codes for said, codes in messages().items() if message.removesuffix(" ...") in said]
        exits = set().union(*made)
        if not made or (exits and code not in exits):
            wrong.append(f"{code}: {message}")
    return wrong


def test_each_message_is_one_of_the_code_and_each_exit_code_has_its_section() -> None:
    text = TROUBLES.read_text(encoding="utf-8")
    assert unknown(text) == []
    known = set(re.findall(r"^\| (\d+) \|", CODES.read_text(encoding="utf-8"), re.MULTILINE)) - {"0"}
    assert set(re.findall(r"^## Exit code (\d+)", text, re.MULTILINE)) == known
    assert len(listed(text)) > 40


def test_a_message_that_no_error_has_or_under_another_exit_code_is_found() -> None:
    lines = ("generation ... is fenced", "this driver has no claim", "nobody ever said so")
    page = "## Exit code 4\n\n" + "".join(f"| `{line}` | means |\n" for line in lines)
    assert unknown(page) == ["4: this driver has no claim", "4: nobody ever said so"]

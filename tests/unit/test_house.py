"""The house: budgets of files and lines, rules of import that name every package, and words that are out of use."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from tests.code_lines import code_lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/exactsink"
NAMES = ("files", "idempotent_upsert", "kafka", "postgres")
BACKENDS = {name: ROOT / f"backends/{name}/exactsink_{name}" for name in NAMES}
PLACES = ("core", "backends", "docs", "tests", "benchmarks", "examples")
MOST_FILES = {"files": 24, "idempotent_upsert": 46, "kafka": 24, "postgres": 24}
MOST_LINES = {"files": 2330, "idempotent_upsert": 3410, "kafka": 2780, "postgres": 2500}
# postgres: 1,500 was the goal before marks (360), poolers and the text format (250), staging tables that stay (150)
# idempotent_upsert: a folder for each database; 1,500 for SQLite, 1,500 for MariaDB, PostgreSQL and any other
# kafka: 2,200, and 320 for marks: their own transaction for birth and renewal, and what is asked side by side;
# assess and audit: 180 there, 150 in each of the others
# files: 760 for links and what they share, 480 for uploads to S3, 470 for manifests and exact reads,
# 300 for SFTP, 90 for votes that name only their own files
# idempotent_upsert: 3,000 with preflight is the goal. Nine questions, answered by each of four databases, take 1,010;
# what is alike in SQLite, MariaDB and portable SQL (markers, owners, votes) is not written once yet
# rows that are judged for a quarantine: 40 or 50 in each, and a file; 25 more of preflight in postgres
MOST_PREFLIGHT_LINES = {"files": 400, "idempotent_upsert": 1010, "kafka": 400, "postgres": 450}
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_TESTS = (
    48_550  # 18,000 was the goal before marks, disks, copies, failovers (5,700), object stores (2,300),
    # databases for upserts (2,500), signals, metrics and security (1,200),
    # what an operator sees and does: status, indoubt, recover (beside sinks that are away), verify, the soak (3,200)
    # a first day: its mistakes, paths, starts (1,050), bad rows (900), versions and sources of Spark (840),
    # pages (300), plugins (1,880: XA on its server 450, beside others and installed 230; Delta tables with races 500),
    # schema, check and SQL (500)
    # what the rows of the claim tables say, a source topic that goes between two batches, a JVM's start (130)
    # a signal to the whole group, a log that can't be written, another Spark's home (120)
    # a broker that is put back, small tables read through, keys in order, a job started in another one's folder,
    # a source that takes a sink's files (215)
    # the night and the random plays (1,700), cut answers (500), a rolling upgrade, folding and root (700),
    # planted defects that nothing had caught (400), printed commands and alerts (450), the rest of the second list
    # questions of SQLite and MariaDB by cases on real servers (550), 30 more planted defects (350)
)
PREFLIGHT = ("preflight", "connect", "questions")
OLD_WORDS = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"(?<!\.)(?<!def )\b(tell|tells|told|telling)\b": "report, return, raise",
    r'"""(Give|Say|Tell)\b': "Return",
    r"\b(?!exactsink_)strangers?\b": "foreign",
    r"\bspoilt\b": "incomplete",
    r"\bdisowned\b": "tokens to sweep",
    r"\b(player|doors)\b": "runner; TLS probe",
    r"\b(driver|a|each|one|this|last|whole) (life|lives)\b": "driver run",
}


@cache
def count(path: Path) -> int:
    return len(code_lines(path.read_text()))


def total(paths: Iterable[Path]) -> int:
    return sum(map(count, paths))


def is_preflight(path: Path) -> bool:
    return any(part.startswith(PREFLIGHT) for part in path.relative_to(ROOT).parts)


@pytest.mark.parametrize(
    ("package", "most"),
    {"contract": 650, "protocol": 2970, "bench": 1110, "cli": 1980, "operate": 1900, "observe": 940}.items(),
)
def test_a_package_of_core_stays_within_its_budget(package: str, most: int) -> None:
    """The interface alone is the contract: roads and storage are the toolkit's.

    Goals that are not reached yet: protocol with its journal 2,900, bench 1,100, cli and operate 2,900.
    """
    assert total((CORE / package).rglob("*.py")) <= most


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_stays_within_its_budget(name: str) -> None:
    """Its targets for the kit and for `exactsink bench` count as files, not as lines."""
    paths = list(BACKENDS[name].rglob("*.py"))
    assert len(paths) <= MOST_FILES[name]
    assert (
        total(p for p in paths if not is_preflight(p) and p.name not in ("bench.py", "conformance.py"))
        <= MOST_LINES[name]
    )
    assert total(p for p in paths if is_preflight(p)) <= MOST_PREFLIGHT_LINES[name]


def test_no_file_is_too_long_and_tests_have_a_budget_too() -> None:
    product = [path for folder in (CORE, *BACKENDS.values()) for path in folder.rglob("*.py")]
    assert [str(path) for path in product if len(path.read_text().splitlines()) > MOST_LINES_OF_A_FILE] == []
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")) <= MOST_LINES_OF_TESTS


def test_the_rules_of_import_name_every_package() -> None:
    """The layers contract is exhaustive by itself; what a backend may not see is a list."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [backends] = [contract for contract in contracts if contract["name"].startswith("A backend sees")]
    packages = {f"exactsink.{path.parent.name}" for path in CORE.glob("*/__init__.py")}
    assert set(backends["forbidden_modules"]) == packages - {"exactsink.contract", "exactsink.toolkit"}
    assert set(backends["source_modules"]) == {path.name for path in BACKENDS.values()}
    assert [path.name for path in CORE.glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize("word", OLD_WORDS)
def test_old_words_stay_out(word: str) -> None:
    """The glossary (docs/explanation/glossary.md) has the words to use."""
    found = []
    for path in (path for place in PLACES for path in sorted((ROOT / place).rglob("*"))):
        if path.suffix in (".py", ".md") and path != Path(__file__):
            lines = enumerate(path.read_text().splitlines(), start=1)
            found += [f"{path.relative_to(ROOT)}:{number}: {line}" for number, line in lines if re.search(word, line)]
    assert found == [], f"use instead: {OLD_WORDS[word]}"

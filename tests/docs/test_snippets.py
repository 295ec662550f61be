"""Every snippet of the pages is run, in the page's order, in one folder, and its shown output compared."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.docs.pages import ROOT, Command, Step, pages, shown, steps, steps_in
from tests.docs.reader import Reader
from tests.servers.postgres import Postgres

_PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
_LONG = {"docs/how-to/back-up-and-restore.md"}
"""Two minutes of runs and restores, each of which is a test of its own, too."""
_ALWAYS = {"README.md", "docs/tutorial.md"}


def touched(root: Path) -> set[str]:
    """Return the pages that a change concerns: those with other blocks than where the branch left `origin/main`, or
    `main`; what stands around a block is not run.

    On that commit itself, as in a fresh clone: those that changed in the six hours up to it, as work lands in many
    commits. `EXACTSINK_TESTS_SINCE` names another commit, as the workflow does with the one before a push. All of them
    where git can't say.
    """

    def read(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    def git(*arguments: str) -> list[str]:
        return read(*arguments).split()

    def differs(page: str, base: str) -> bool:
        try:
            return _blocks((root / page).read_text()) != _blocks(read("show", f"{base}:{page}"))
        except (FileNotFoundError, ValueError, subprocess.CalledProcessError):  # of a page that is new, or is no more
            return True

    try:
        [head] = git("rev-parse", "HEAD")
        bases = [os.environ.get("EXACTSINK_TESTS_SINCE", "")]
        for main in ("origin/main", "main"):
            with suppress(subprocess.CalledProcessError):
                bases += [base for base in git("merge-base", "HEAD", main) if base != head]
                break
        [seconds] = git("log", "-1", "--format=%ct")
        bases += git("rev-list", "-1", f"--before={int(seconds) - 6 * 3600}", "HEAD")
        base = next(filter(None, bases))
        changed = [page for page in git("diff", "--name-only", base, "--") if page.endswith(".md")]
        new = git("ls-files", "--others", "--exclude-standard")
        return {*(page for page in changed if differs(page, base)), *new}
    except (OSError, StopIteration, subprocess.CalledProcessError):
        return set(_PAGES)


def _blocks(text: str) -> list[Step]:
    return [replace(step, place="") for step in steps_in(text)]


def _pages() -> Iterator[ParameterSet]:
    quick = (touched(ROOT) | _ALWAYS) - _LONG
    return (pytest.param(name, marks=() if name in quick else pytest.mark.proof) for name in _PAGES)


@pytest.mark.parametrize("name", list(_pages()))
def test_a_page_can_be_followed_from_its_first_to_its_last_snippet(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A server is started for the first page that needs it; a page has a database of its own."""

    def spark() -> Mapping[str, str]:
        address: Mapping[str, str] = request.getfixturevalue("jvm").address
        return address

    def postgres() -> Mapping[str, str]:
        server: Postgres = request.getfixturevalue("postgres")
        server.create_database(f"docs {name}")
        return {"PGHOST": str(server.folder), "PGUSER": "postgres", "PGDATABASE": f"docs {name}"}

    def kafka() -> Mapping[str, str]:
        return {"KAFKA": request.getfixturevalue("kafka").bootstrap}

    reader = Reader(tmp_path, spark=spark, postgres=postgres, kafka=kafka)
    for step in steps(_PAGES[name]):
        try:
            reader.do(step)
        finally:
            if "spark" in step.needs:
                request.getfixturevalue("jvm").settle()


def test_a_block_that_does_not_say_how_it_is_run_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```toml\n[job]\n```\n")
    with pytest.raises(ValueError, match="mark the block"):
        steps(page)


@pytest.mark.parametrize("printed", ["rows: 3\nrows: 4\n", "rows: 3\n", "a line more\nrows: 4\n", ""])
def test_output_that_differs_from_the_page_is_seen(printed: str) -> None:
    assert not shown(Command("count", ("rows: 4",))).fullmatch(printed)
    assert shown(Command("count", ("rows: 4",))).fullmatch("rows: 4\n")


def test_dots_stand_for_what_differs_from_run_to_run() -> None:
    pattern = shown(Command("run", ("...", "took ... s", "done")))
    assert pattern.fullmatch("WARN a\nWARN b\ntook 3.1 s\ndone\n")
    assert not pattern.fullmatch("WARN a\ntook 3.1 s\n")


def test_a_page_that_lies_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console run\n$ echo one\ntwo\n```\n")
    reader = Reader(tmp_path)
    with pytest.raises(AssertionError, match="`echo one` printed:\none"):
        reader.do(steps(page)[0])
    page.write_text("```console run\n$ false\n```\n")
    with pytest.raises(AssertionError, match="`false` ended with 1"):
        reader.do(steps(page)[0])


def test_a_page_gets_its_servers_when_a_step_asks_for_them_and_one_database_for_all_its_steps(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console run\n$ echo ${PGDATABASE:-none} ${JVM:-none}\nnone none\n```\n"
        "```console run postgres\n$ echo $PGDATABASE ${JVM:-none}\ndocs1 none\n```\n"
        "```console run spark postgres exit=1\n$ echo $PGDATABASE $JVM; false\ndocs1 warm\n```\n"
    )
    made: list[str] = []

    def database() -> dict[str, str]:
        made.append(f"docs{len(made) + 1}")
        return {"PGDATABASE": made[-1]}

    reader = Reader(tmp_path, spark=lambda: {"JVM": "warm"}, postgres=database)
    for step, known in zip(steps(page), ([], ["docs1"], ["docs1"]), strict=True):
        reader.do(step)
        assert made == known


def test_the_pages_that_a_change_concerns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a test")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "test@example.org")

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    def committed(*pages: str, day: int) -> None:
        for page in pages:
            (tmp_path / page).write_text(f"```console run\n$ echo {page} {pages}\n```\n")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"2026-01-{day:02}T12:00:00Z")
        git("add", *pages)
        git("commit", "-m", "pages")

    monkeypatch.delenv("EXACTSINK_TESTS_SINCE", raising=False)
    assert touched(tmp_path) == set(_PAGES), "no repository"
    git("init", "-b", "main")
    committed("first.md", day=1)
    assert touched(tmp_path) == set(_PAGES), "nothing is six hours older, as in a shallow clone"
    committed("second.md", day=5)
    committed("third.md", day=5)
    (tmp_path / "new.md").write_text("not added yet\n")
    assert touched(tmp_path) == {"second.md", "third.md", "new.md"}, "a day's commits"
    git("switch", "-c", "branch")
    committed("fourth.md", day=6)
    committed("fifth.md", day=7)
    assert touched(tmp_path) == {"fourth.md", "fifth.md", "new.md"}, "all of a branch"
    git("update-ref", "refs/remotes/origin/main", "HEAD^")
    (tmp_path / "first.md").write_text("edited\n")
    (tmp_path / "third.md").write_text(f"Prose.\n\n{(tmp_path / 'third.md').read_text()}")
    assert touched(tmp_path) == {"first.md", "fifth.md", "new.md"}, "what is not pushed"
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert touched(tmp_path) == {"first.md", "fifth.md", "new.md"}, "a fresh clone"
    monkeypatch.setenv("EXACTSINK_TESTS_SINCE", "HEAD~2")
    assert touched(tmp_path) == {*(f"{name}.md" for name in ("first", "fourth", "fifth", "new"))}
    monkeypatch.setenv("EXACTSINK_TESTS_SINCE", "0" * 40)
    assert touched(tmp_path) == set(_PAGES), "the push that makes a branch"

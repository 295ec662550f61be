"""Every snippet of the pages is run, in the page's order, in one folder, and its shown output compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, pages, shown, steps
from tests.docs.reader import Reader
from tests.servers.postgres import Postgres

_PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
_LONG = {"docs/how-to/back-up-and-restore.md"}
"""Two minutes of runs and restores, each of which is a test of its own, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.proof if name in _LONG else ()) for name in _PAGES]
)
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

"""Root works in a job that is another user's: all that it makes is that user's, who goes on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit import two_sinks
from tests.unit.two_sinks import Shop

from exactsink.cli.main import main
from exactsink.job.stop import StopFile, StopRequest
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.testing.processes import ended, start

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can work in place of another user")

USER = 65534  # nobody
JOURNALS = ["", 'file_mode = "group"', 'journal = "sqlite:///{folder}/journal/j.db"']


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of that user's, which others than root can reach."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(place, USER, USER)
    yield place
    shutil.rmtree(place)


def as_user(act: Callable[[], object]) -> int:
    def acting() -> int:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        act()
        return 0

    return ended(start(acting))


def of_others(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if (p.lstat().st_uid, p.lstat().st_gid) != (USER, USER)]


@pytest.mark.parametrize("journal", JOURNALS)
def test_after_root_has_recovered_the_jobs_own_user_goes_on(
    folder: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_sinks, "ROWS", pa.table({"id": [1, 2, 3], "day": [1, 2, 2]}))
    monkeypatch.setattr(LocalStore.__init__, "__kwdefaults__", {"block_entries": 2, "file_mode": "private"})
    shop = Shop(folder, journal.format(folder=folder))
    shop.edit('after = "table"', 'after = "table"\npartition_by = ["day"]')
    os.chown(shop.file, USER, USER)
    shop.epochs(0)  # root is the first to start it
    for path in (folder / "chk", *(folder / "chk").rglob("*")):  # Spark's
        os.chown(path, USER, USER)
    assert of_others(folder) == []
    assert as_user(lambda: shop.epochs(1)) == 0
    shop.close_table()
    assert as_user(lambda: shop.epochs(2)) == 0  # decided, and in no sink
    shop.sql("DROP TRIGGER closed")
    shutil.rmtree(folder / "lake" / "day=2")  # a reader may clear up: the commit makes it again
    assert main(["recover", shop.file]) == 0
    StopFile(folder / "chk.exactsink").write(StopRequest("host:1", 1.0, "root"))
    assert of_others(folder) == []
    assert as_user(lambda: shop.epochs(3)) == 0
    done = sorted(path.name.split(".")[0] for path in (folder / "lake/_exactsink/shop.lake").glob("*.done"))
    assert done == ["e0", "e1", "e2", "e3"]


@pytest.mark.parametrize("stands", [False, True])
def test_root_makes_no_file_of_duckdb_that_another_user_needs(
    folder: Path, stands: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB makes its file and its log by itself, so that nobody hands them over."""
    shop = Shop(folder)
    shop.edit("sqlite:///", "duckdb:///")
    os.chown(shop.file, USER, USER)
    assert as_user(lambda: shop.epochs(0)) == 0
    if not stands:
        shop.database.unlink()
    for command, code in ((["check", "--no-spark"], 5), (["status"], 3), (["recover"], 1)):
        assert main([*command, shop.file]) == code
        said = "".join(capsys.readouterr())
        assert f"{shop.database} is user nobody's" in said
        assert "sudo -u nobody" in said
    assert (shop.database.exists(), of_others(folder)) == (stands, [])
    assert as_user(lambda: shop.epochs(1)) == 0
    assert [*(folder / "lake/_exactsink/shop.lake").glob("e1.*done")] or not stands


def test_root_starts_no_query_of_another_user(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop, checkpoint = Shop(folder), folder / "chk"
    assert main(["check", "--no-spark", shop.file]) == 0
    assert "only root can continue the job" in capsys.readouterr().out
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query-1"}')
    assert main(["check", "--no-spark", shop.file]) == 0
    for user, code in ((USER, 5), (0, 0), (54321, 5)):
        for place in (checkpoint / "metadata", folder):
            os.chown(place, user, user)
        assert main(["check", "--no-spark", shop.file]) == code
        shown = {USER: "sudo -u nobody", 54321: "sudo -u '#54321'", 0: ""}[user]
        assert shown in capsys.readouterr().err
    assert main(["recover", shop.file]) == 0

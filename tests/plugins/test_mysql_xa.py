"""The XA plugin of the examples, on a real MariaDB: the kit, crashes and restores of the server, and preflight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import JobContext
from exactsink.testing import SCENARIOS, Runner, Session
from tests.servers.mariadb import MariaDB

PLUGIN = Path(__file__).parents[2] / "examples/plugins/exactsink-mysql-xa"
QUICK = ("killed-after-decide", "killed-inside-commit", "commits-at-once", "others-untouched", "loser-swept")
"""What `make test` plays; `make proof` plays all."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN)
        yield


@pytest.fixture
def runner(installed: None) -> Iterator[Runner]:
    with closing(Runner()) as made:
        yield made


def url(server: MariaDB, database: str, user: str = "root") -> str:
    return f"mysql://{user}@localhost/{database}?unix_socket={server.socket}"


def play(server: MariaDB, runner: Runner, scenario: str, folder: Path) -> str:
    from exactsink_mysql_xa_targets import XaTarget

    result = runner.play(scenario, XaTarget(url(server, "mysql")), folder)
    assert result.outcome != "failed", result.why
    return result.outcome


def test_the_kit(mariadb: MariaDB, runner: Runner, tmp_path: Path) -> None:
    assert [play(mariadb, runner, scenario, tmp_path / scenario) for scenario in QUICK] == ["passed"] * len(QUICK)


@pytest.mark.proof
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in QUICK])
def test_all_of_the_kit(mariadb: MariaDB, runner: Runner, scenario: str, tmp_path: Path) -> None:
    if play(mariadb, runner, scenario, tmp_path / "played") == "skipped":
        pytest.skip("its traits or its target don't give what the scenario needs")

"""The kit on each example plugin: three scenarios for every change, all others for `make proof`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, ConformanceSuite, ConformanceTarget, Runner
from tests.servers.mariadb import MariaDB
from tests.servers.redis import own_redis

EXAMPLES = Path(__file__).parents[2] / "examples/plugins"
QUICK = {
    "redis": ("killed-inside-commit", "applied-late", "second-journal"),
    "mysql-xa": ("killed-inside-commit", "commits-at-once", "loser-swept"),
}
"""The rest of their tests is for `make proof`, but for wheels in a clean environment (test_installed.py)."""


@pytest.fixture(scope="module")
def plugin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let a plugin be found, as if it were installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / f"exactsink-{request.param}")
        yield request.param


@pytest.fixture(scope="module")
def of_plugin(plugin: str, request: pytest.FixtureRequest) -> Iterator[ConformanceTarget]:
    if plugin == "redis":
        from exactsink_redis_targets import RedisTarget

        with own_redis() as server:
            yield RedisTarget(server.url)
    else:
        from exactsink_mysql_xa_targets import XaTarget

        server: MariaDB = request.getfixturevalue("mariadb")
        yield XaTarget(f"mysql://root@localhost/mysql?unix_socket={server.socket}")


@pytest.fixture(scope="module")
def runner(plugin: str) -> Iterator[Runner]:
    with closing(Runner()) as made:
        yield made


@pytest.mark.parametrize(
    ("plugin", "scenario"),
    [
        pytest.param(plugin, scenario, marks=() if scenario in quick else pytest.mark.proof)
        for plugin, quick in QUICK.items()
        for scenario in SCENARIOS
    ],
    indirect=["plugin"],
)
def test_the_kit(of_plugin: ConformanceTarget, scenario: str, runner: Runner, tmp_path: Path) -> None:
    ConformanceSuite().test_conformance(scenario, of_plugin, tmp_path, runner)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exactsink.testing import SCENARIOS, Runner

PLUGIN = Path('/tmp/dkit/plugin')


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN)
        yield


@pytest.fixture(scope="module")
def runner(installed: None) -> Iterator[Runner]:
    with closing(Runner()) as made:
        yield made


def play(runner: Runner, target: str, scenario: str, folder: Path) -> str:
    from exactsink_delta_targets import targets

    result = runner.play(scenario, targets()[target], folder)
    assert result.outcome != "failed", result.why
    print(result)
    return result.outcome


@pytest.mark.proof
@pytest.mark.parametrize("target", ["table", "partitioned"])
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_all_of_the_kit(runner: Runner, target: str, scenario: str, tmp_path: Path) -> None:
    if play(runner, target, scenario, tmp_path / "played") == "skipped":
        pytest.skip("its traits or its target don't give what the scenario needs")

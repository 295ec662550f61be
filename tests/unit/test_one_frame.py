"""Sinks that share one frame: one distribution, and each its own columns."""

from __future__ import annotations

import pytest
from tests.unit.fakes import IdleBackend

from exactsink.contract import BackendOptions, ConfigError
from exactsink.protocol.sinks import Sink, check_one_frame
from exactsink.spark.one_pass import expanded


def _sinks(*distributions: str | int) -> dict[str, Sink]:
    backend = IdleBackend(BackendOptions())
    return {f"s{n}": Sink(f"s{n}", "idle", backend, "", distribution=d) for n, d in enumerate(distributions)}


@pytest.mark.parametrize(("first", "second"), [("hash(a)", "hash(b)"), (4, 5), (4, "hash(a)")])
def test_two_distributions_of_the_one_frame_are_refused(first: str | int, second: str | int) -> None:
    with pytest.raises(ConfigError, match="sinks s0, s2 ask for several distributions") as error:
        check_one_frame(_sinks(first, "none", second))
    assert "route" in error.value.next


@pytest.mark.parametrize("agreed", [("none", "none"), ("hash(a)", "none", "hash(a)"), (4, 4)])
def test_one_distribution_is_for_all(agreed: tuple[str | int, ...]) -> None:
    check_one_frame(_sinks(*agreed))


MEANT = {
    "to_json(struct(*)) AS value": "to_json(struct(`a`, `b`)) AS value",
    "f(x, *)": "f(x,`a`, `b`)",
    "f(`odd(*)`)": "f(`odd(*)`)",
    "f('a text(*)', *)": "f('a text(*)',`a`, `b`)",
    "count(*) > 1": "count(`a`, `b`) > 1",
    "a * b": "a * b",
}


def test_a_star_that_is_an_argument_stands_for_the_sinks_columns() -> None:
    assert {expression: expanded(expression, ["`a`", "`b`"]) for expression in MEANT} == MEANT

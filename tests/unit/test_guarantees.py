"""What a job's sinks guarantee together, and the frame that they share: refused where it is less than was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest
from tests.unit.fakes import IdleBackend

from exactsink.contract import BackendOptions, ConfigError, PreflightError, Traits
from exactsink.job.guarantees import check_batch_guarantee, check_guarantee, check_order, guarantee_of, job_guarantee
from exactsink.protocol.sinks import Sink, check_one_frame
from exactsink.spark.one_pass import expanded

EXACT, EARLY = Traits(atomic_visibility=True), Traits(visible_early=True, needs_epoch_order=True)


def _sinks(**traits: Traits) -> Mapping[str, Sink]:
    given = {name: type("Given", (IdleBackend,), {"traits": promised}) for name, promised in traits.items()}
    return {name: Sink(name, "idle", backend(BackendOptions()), "") for name, backend in given.items()}


@pytest.mark.parametrize("allow", [False, True])
def test_exact_sinks_are_never_refused_and_early_ones_always_where_exactly_once_is_required(allow: bool) -> None:
    exact = _sinks(lake=EXACT, table=Traits())
    for require in (None, "exactly_once"):
        check_guarantee(exact, require=require, allow_early_rows=allow)
    assert job_guarantee(exact.values()) == "exactly once"
    with pytest.raises(PreflightError, match=r"sink table .*\[job\] require") as refused:
        check_guarantee(_sinks(lake=EXACT, table=EARLY), require="exactly_once", allow_early_rows=allow)
    assert "effectively once" in refused.value.why
    assert refused.value.next


def test_a_mix_of_classes_must_be_allowed() -> None:
    sinks = _sinks(lake=EXACT, table=EARLY, other=EARLY)
    with pytest.raises(PreflightError, match="sinks table, other would show rows") as refused:
        check_guarantee(sinks, require=None, allow_early_rows=False)
    assert "allow_early_rows = true" in refused.value.next
    check_guarantee(sinks, require=None, allow_early_rows=True)
    assert job_guarantee(sinks.values()) == "effectively once"
    check_guarantee(_sinks(table=EARLY), require=None, allow_early_rows=False)  # alone it mixes nothing


def test_batch_runs_and_streams_are_refused_by_a_sink_that_takes_the_other_alone() -> None:
    check_batch_guarantee(days := _sinks(lake=EXACT, days=Traits(batch_only=True)))
    with pytest.raises(PreflightError, match=r"sink days .* takes no stream"):
        check_guarantee(days, require=None, allow_early_rows=False, stream=True)
    with pytest.raises(PreflightError, match=r"sink table .* takes no batch runs"):
        check_batch_guarantee(_sinks(lake=EXACT, table=EARLY))


def test_rows_that_show_early_come_after_nothing() -> None:
    for traits, refused in ((EXACT, False), (EARLY, True)):
        sinks = {
            n: replace(s, after=("lake",) if n == "table" else ()) for n, s in _sinks(lake=EARLY, table=traits).items()
        }
        with pytest.raises(PreflightError, match=r"sink table .* can't come after lake") if refused else nullcontext():
            check_order(sinks)


@pytest.mark.parametrize(
    ("traits", "visible", "needs", "in_doubt"),
    [
        (Traits(marks=True), "at commit, in parts", "nothing beside the target", "exactsink recover"),
        (Traits(), "at commit, in parts", "without marks", "exactsink recover"),
        (Traits(marks=True, marks_in_staging=True), "in parts", "without the staging folder", "exactsink recover"),
        (Traits(atomic_visibility=True, needs_shared_staging=True), "all at once", "staging folder", "recover"),
        (Traits(can_lose_votes=True), "at commit, in parts", "same rows again", "written again from the source"),
        (EARLY, "before the decision", "no other job writes the same keys", "committed again"),
    ],
)
def test_a_sinks_guarantee_in_words(traits: Traits, visible: str, needs: str, in_doubt: str) -> None:
    sink = _sinks(s=traits)["s"]
    given = guarantee_of(sink, {sink.backend.strategy: "this one", "other": "another way"})
    assert visible in given.visible
    assert needs in given.needs
    assert in_doubt in given.in_doubt
    assert given.guarantee == traits.guarantee
    assert list(given.alternatives) == ["other: another way"]


def _sharing(*distributions: str | int) -> dict[str, Sink]:
    backend = IdleBackend(BackendOptions())
    return {f"s{n}": Sink(f"s{n}", "idle", backend, "", distribution=d) for n, d in enumerate(distributions)}


@pytest.mark.parametrize(("first", "second"), [("hash(a)", "hash(b)"), (4, 5), (4, "hash(a)")])
def test_two_distributions_of_the_one_frame_are_refused(first: str | int, second: str | int) -> None:
    with pytest.raises(ConfigError, match="sinks s0, s2 set different distributions") as error:
        check_one_frame(_sharing(first, "none", second))
    assert "route" in error.value.next


@pytest.mark.parametrize("agreed", [("none", "none"), ("hash(a)", "none", "hash(a)"), (4, 4)])
def test_one_distribution_is_for_all(agreed: tuple[str | int, ...]) -> None:
    check_one_frame(_sharing(*agreed))


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

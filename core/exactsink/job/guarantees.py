"""Derive a job's guarantee from its sinks, and refuse sinks that can't give the guarantee that the job requires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import PreflightError, Traits
from exactsink.protocol.sinks import Sink

__all__ = [
    "Guarantee",
    "check_batch_guarantee",
    "check_guarantee",
    "check_order",
    "check_stream_guarantee",
    "guarantee_of",
    "job_guarantee",
]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One sink's guarantee in words, one line for each field."""

    sink: str
    backend: str
    strategy: str
    guarantee: str
    target: str
    visible: str
    needs: str
    in_doubt: str
    alternatives: Sequence[str]


def guarantee_of(sink: Sink, strategies: Mapping[str, str]) -> Guarantee:
    """Return a sink's guarantee. `strategies` are all strategies of its backend, with a line for each."""
    traits, chosen = sink.backend.traits, sink.backend.strategy
    return Guarantee(
        sink=sink.name,
        backend=sink.kind,
        strategy=chosen,
        guarantee=traits.guarantee,
        target=sink.backend.target,
        visible=_visible(traits),
        needs="; ".join(_needs(traits)) or "nothing beside the target",
        in_doubt=_in_doubt(traits),
        alternatives=[f"{name}: {line}" for name, line in strategies.items() if name != chosen],
    )


def job_guarantee(sinks: Iterable[Sink]) -> str:
    """Return a job's guarantee, which is that of its weakest sink."""
    weakest = max(sinks, key=lambda sink: sink.backend.traits.visible_early)
    return weakest.backend.traits.guarantee


def check_guarantee(
    sinks: Mapping[str, Sink], *, require: str | None, allow_early_rows: bool, stream: bool = False
) -> None:
    """Refuse sinks that guarantee less than the job requires, or that mix guarantees without `allow_early_rows`.

    Raises PreflightError.
    """
    if stream:
        check_stream_guarantee(sinks)
    early = [name for name, sink in sinks.items() if sink.backend.traits.visible_early]
    if not early:
        return
    which = f"{'sink' if len(early) == 1 else 'sinks'} {', '.join(early)}"
    why = "rows there are visible before the decision, and an abort does not remove them: effectively once"
    if require == "exactly_once":
        fix = "give the sink a strategy that waits for the decision (`exactsink backends`), or remove `require`"
        raise PreflightError(f"{which} can't give the guarantee that [job] require names", why=why, next=fix)
    if len(early) < len(sinks) and not allow_early_rows:
        fix = "set [job] allow_early_rows = true if readers accept that, or choose another strategy"
        raise PreflightError(f"{which} would show rows before the other sinks have them", why=why, next=fix)


def check_order(sinks: Mapping[str, Sink]) -> None:
    """Refuse `after` on a sink that shows rows before its commit. Raises PreflightError."""
    for name, sink in sinks.items():
        if sink.after and sink.backend.traits.visible_early:
            raise PreflightError(
                f"sink {name} ({sink.backend.strategy}) can't come after {', '.join(sink.after)}",
                why="its tasks make rows visible before the decision, so before any other sink is committed",
                next="choose a strategy that waits for the decision (`exactsink backends`), or remove `after`",
            )


def check_batch_guarantee(sinks: Mapping[str, Sink]) -> None:
    """Refuse batch runs into sinks that compare rows by their epoch's number, because runs have no order.

    Raises PreflightError.
    """
    ordered = [name for name, sink in sinks.items() if sink.backend.traits.needs_epoch_order]
    if ordered:
        raise PreflightError(
            f"sink {ordered[0]} ({sinks[ordered[0]].backend.strategy}) takes no batch runs",
            why="it compares rows by the number of their epoch, and runs are written in any order",
            next="choose a strategy with a marker, such as staged (`exactsink backends`), or stream into this sink",
        )


def check_stream_guarantee(sinks: Mapping[str, Sink]) -> None:
    """Refuse a stream into sinks that replace rows, because each epoch would replace the stream's earlier rows.

    Raises PreflightError.
    """
    for name, sink in sinks.items():
        if sink.backend.traits.batch_only:
            raise PreflightError(
                f"sink {name} ({sink.backend.strategy}) takes no stream",
                why="each epoch would replace rows that earlier epochs have written",
                next="choose a strategy that appends (`exactsink backends`), or write batch runs: Job.write(df, run)",
            )


def _visible(traits: Traits) -> str:
    if traits.visible_early:
        return "as tasks write, before the decision"
    return "at commit, all at once" if traits.atomic_visibility else "at commit, in parts (a file, or one task's rows)"


def _needs(traits: Traits) -> Iterable[str]:
    if traits.needs_shared_staging:
        yield "a staging folder that the driver and every executor share"
    if traits.prepared_seconds is not None:
        yield f"every epoch committed within {traits.prepared_seconds:g} s of its first row"
    if traits.can_lose_votes:
        yield "a source and a plan that give the same rows again, in case the store loses rows before their commit"
    if traits.needs_epoch_order:
        yield "that no other job writes the same keys"
    if not traits.marks:
        yield "no restore of the target or the journal alone: without marks, exactsink can't detect it"
    elif traits.marks_in_staging:
        yield "no restore of the target without the staging folder, which has the marks: exactsink can't detect it"


def _in_doubt(traits: Traits) -> str:
    if traits.can_lose_votes:
        return "committed again at the next start; rows that the store dropped are written again from the source"
    return "committed again at the next start, or by `exactsink recover JOB.toml`"

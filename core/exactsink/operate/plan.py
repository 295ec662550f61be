"""The result of a start, predicted from the state of the sinks by the rules of `Coordinator.start`. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exactsink.contract import Committed, Outcome, Prepared
from exactsink.operate.views import SinkView
from exactsink.protocol.commit import all_before, give_up, in_doubt
from exactsink.protocol.journal.log import Log, other_journal
from exactsink.protocol.lineage import nobody_has_its_rows
from exactsink.protocol.reach import Part, Reach, Start
from exactsink.protocol.sinks import Sink, check_kept_sinks

__all__ = ["planned", "planned_sweep"]


def planned(
    views: Sequence[SinkView],
    sinks: Mapping[str, Sink],
    log: Log,
    sweep_tokens: frozenset[str],
    part: Part | None = None,
    *,
    source_done: bool,
) -> Start:
    """Return the result of a start that sets sinks aside, or of a `part` of it. Raises the errors of that start."""
    check_kept_sinks(sinks, log, source_done=source_done)
    mine = {view.name: view for view in views if view.in_config}
    for name in sorted(mine):
        if mine[name].asked and (problem := mine[name].problem) is not None:
            raise problem
    epoch = log.decision.epoch if log.decision is not None else -1
    aside: dict[str, Exception] = {name: view.problem for name, view in mine.items() if view.problem is not None}
    reach = Reach(sets_aside=True, part=part)
    committed = {name: view for name, view in mine.items() if reach.commits(name)}
    for name, view in committed.items():
        if (doubt := in_doubt(epoch, name, view.committables, view.standings)) is not None:
            aside[name] = doubt
    lost = {name: view.count("lost") for name, view in committed.items() if name not in aside and view.count("lost")}
    undone = {name for name in (*aside, *lost) if mine[name].committables}
    before = all_before({name: sink.after for name, sink in sinks.items()})
    held_back = frozenset(name for name in committed if name not in aside and before[name] & undone)
    lost = {name: count for name, count in lost.items() if name not in held_back}
    if lost and source_done and part is None:
        raise nobody_has_its_rows(epoch, give_up(log.decision, {name: mine[name].standings for name in lost}))
    outcomes = {name: _outcomes(view) for name, view in committed.items() if name not in held_back}
    swept = {} if aside else _swept(mine, log, sweep_tokens, reach)
    return Start(lost, outcomes, swept, held_back, aside)


def planned_sweep(views: Sequence[SinkView], log: Log, sweep_tokens: frozenset[str], part: Part | None = None) -> Start:
    """Return the result of a sweep for a journal without claims, whatever the marks are.

    Raises the errors of that sweep.
    """
    aside: dict[str, Exception] = {v.name: v.problem for v in views if not v.asked and v.problem is not None}
    swept = _swept({view.name: view for view in views}, log, sweep_tokens, Reach(part=part))
    return Start({}, {}, {} if aside else swept, frozenset(), aside)


def _outcomes(view: SinkView) -> Sequence[Outcome]:
    """Return the outcomes that a commit would return."""
    return [Committed() if isinstance(standing, Prepared) else standing for standing in view.standings]


def _swept(views: Mapping[str, SinkView], log: Log, sweep_tokens: frozenset[str], reach: Reach) -> Mapping[str, int]:
    """Count the participants that would be swept.

    Raises LineageError for another journal's work with an unnamed token.
    """
    swept: dict[str, int] = {}
    for name, view in views.items() if reach.part is None or reach.part.refs else ():
        gone = [h.participant for h in view.held if h.whose != "decided" and reach.sweeps(name, h.participant.ref)]
        foreign = [holding.participant for holding in view.held if holding.whose == "foreign"]
        for participant in foreign:
            if participant.token not in sweep_tokens:
                raise other_journal(name, participant, log.last_generation + 1, sweep_tokens)
        if gone:
            swept[name] = len(gone)
    return swept

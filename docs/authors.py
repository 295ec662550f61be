"""The reference pages for authors of plugins, from the docstrings of the contract and of the conformance kit."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from tables import markdown_table

from exactsink import contract
from exactsink.job.config.described import attribute_docstrings, prose
from exactsink.testing.capabilities import CAPABILITIES
from exactsink.testing.runner import SCENARIOS
from exactsink.testing.scenarios import bad_rows, commits, marks, matrix, others, rows, standings, votes
from exactsink.testing.target import ConformanceTarget
from exactsink.toolkit import roads

__all__ = ["class_section", "contract_page", "kit_page"]

_CONTRACT = """\
# The contract

The interface that a plugin implements: `from exactsink.contract import ...`. The two easier roads are in
`exactsink.toolkit.roads`, durable files and objects in `exactsink.toolkit.storage`. How the parts go together:
[write a plugin](../how-to/write-a-plugin.md). A method without "abstract" has a default. Errors: [errors](errors.md).
Words: [glossary](../explanation/glossary.md).
"""
_KIT = """\
# The conformance kit

`exactsink.testing` runs these scenarios on a backend ([how](../how-to/write-a-plugin.md#prove-it)). Start them with
`exactsink conformance BACKEND` ([options](cli.md#exactsink-conformance)), or with a pytest class that inherits from
`ConformanceSuite`. There are {count} scenarios; together they take minutes. Each runs the real coordinator. Drivers and
participants are processes. The [glossary](../explanation/glossary.md) explains the words.
"""
_GROUPS = {
    matrix: "Kills and stalls\n\nThe kit kills a process just before or just after a protocol point, or suspends it "
    "there until its successor is done. Every row must be applied once. At the end, nothing may be in doubt: the store "
    "may hold no participant that is not settled.",
    rows: "Rows, and when readers see them",
    bad_rows: "Bad rows\n\nOnly for backends that can send rows to a quarantine.",
    commits: "Commits that are repeated or interrupted",
    votes: "Lost rows, unknown outcomes, unused attempts\n\nRows are *lost* if the store proves that it dropped them "
    "after the decision. An outcome is *unknown* if the store proves neither the commit nor the loss.",
    others: "Work of others\n\nOther jobs, other sinks and other programs use the same store.",
    marks: "Marks\n\nA mark names the journal that feeds the target, and the newest epoch with rows there.",
    standings: "`assess`\n\n`Committer.assess` reports the outcome that a commit would have, and commits nothing. "
    "`exactsink status`, `recover` and other commands call it.",
}
_CAPABILITIES = """\
## Capabilities

The kit skips a scenario only if it needs a capability that your backend or your `ConformanceTarget` does not have. The
traits are those of your backend.
"""
_POSSESSED = {
    "atomic_visibility": "traits: `atomic_visibility` is set: an epoch appears to readers at one moment",
    "can_lose_votes": "traits: `can_lose_votes` is set; or your `ConformanceTarget` has `lose_votes`",
    "hidden_until_decided": "traits: `visible_early` is not set: readers see no row before the decision",
    "several_jobs": "traits: `needs_epoch_order` is not set: several jobs can write to one target",
    "marks": "traits: `marks` is set: the target keeps marks",
    "applier": "your backend is a `StagedBackend`, and its traits set `needs_shared_staging`",
    "validates_rows": "traits: `validates_rows` is set: your backend can judge rows without writing them",
}
_PARTS: Mapping[str, Sequence[str]] = {
    "Classes that you write": ["Backend", "BackendOptions", "Writer", "Committer"],
    "Two easier roads": ["StagedBackend", "Applier", "Marker", "IdempotentBackend", "Version", "StagingBackend"],
    "Values that you get": ["JobContext", "Txn", "Undecided", "JobSinks"],
    "Values that you return": [
        *("Committable", "Committed", "AlreadyCommitted", "Lost", "Unknown", "Prepared"),
        *("InDoubt", "Mark", "Audit", "Finding", "Traits"),
    ],
    "Bad rows": ["Validator", "BatchValidator"],
    "The announcement": ["BackendSpec", "HookSpecs", "Event"],
}


def contract_page() -> str:
    """Return every class that an author uses, its calls with their signatures, and the promise of each."""
    parts = [_CONTRACT]
    for title, names in _PARTS.items():
        parts.append(f"## {title}\n")
        parts += [class_section(getattr(roads if name in roads.__all__ else contract, name)) for name in names]
    return "\n".join(parts)


def kit_page() -> str:
    """Return the scenarios with the failure that each plays, the capabilities, and a target's calls."""
    points = {re.sub("^(killed|stalled)-(before|after)-", "", s.name): None for s in matrix.SCENARIOS}
    capabilities = [
        (f"`{name}`", _POSSESSED.get(name) or f"your `ConformanceTarget` has `{name}`") for name in CAPABILITIES
    ]
    parts = [_KIT.format(count=len(SCENARIOS)), "## Scenarios\n"]
    for family, text in _GROUPS.items():
        parts += [f"### {text}\n", markdown_table(*_scenarios(family))]
        if family is matrix:
            parts.append(
                f"POINT is each of {', '.join(map('`{}`'.format, points))}. (Here, `commit` is `commit:<sink>`.)\n"
            )
    return "\n".join(
        [
            *parts,
            _CAPABILITIES,
            markdown_table(("capability", "you have it if"), capabilities),
            "## How the kit reaches your store\n",
            class_section(ConformanceTarget),
        ]
    )


def _scenarios(family: ModuleType) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the head and the rows of a family's table. In that of kills, POINT replaces the points."""
    if family is matrix:
        whys = {s.name.split("-")[0]: s.failure for s in matrix.SCENARIOS}
        named = [(f"`{how}-before-POINT`, `{how}-after-POINT`", why) for how, why in whys.items()]
        return ("scenario", "the event in real life"), named
    plays = [
        (f"`{s.name}`", s.promise, s.failure, ", ".join(f"`{n}`" for n in s.needs) or "-") for s in family.SCENARIOS
    ]
    return ("scenario", "promise", "the event in real life", "needs (see below)"), plays


def class_section(kind: type) -> str:
    """Return a class with its calls, their signatures, and the promise of each."""
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ in (*contract.__all__, *roads.__all__)]
    over = f" ({', '.join(bases)})" if bases else ""
    parts = [f"### `{kind.__name__}`{over}\n\n{prose(inspect.getdoc(kind) or '')}\n"]
    members = list(_members(kind))
    return "\n".join([*parts, markdown_table(("member", "meaning"), members)] if members else parts)


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield a class's own public fields and calls, each with its text."""
    texts = attribute_docstrings(kind)
    for name, hint in getattr(kind, "__annotations__", {}).items():
        if not name.startswith("_"):
            yield f"`{name}: {_spelled(hint)}`", texts.get(name, "")
    for name, member in vars(kind).items():
        found = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(found):
            continue
        abstract = "abstract. " if getattr(member, "__isabstractmethod__", False) else ""
        shown = f"`{name}`" if isinstance(member, property) else f"`{name}{_signature(found)}`"
        yield shown, abstract + prose(inspect.getdoc(found) or "")


def _signature(function: typing.Any) -> str:
    signature = inspect.signature(function)
    kept = [
        p.replace(annotation=_Text(p.annotation))
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    return str(signature.replace(parameters=kept, return_annotation=_Text(signature.return_annotation)))


class _Text:
    """An annotation that is shown as it was written."""

    def __init__(self, annotation: object) -> None:
        self._text = _spelled(annotation)

    def __repr__(self) -> str:
        return self._text


def _spelled(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))

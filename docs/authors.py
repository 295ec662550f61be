"""The reference pages for authors of plugins, from the docstrings of the contract and of the conformance kit."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence

from tables import markdown_table

from exactsink import contract
from exactsink.job.config.described import attribute_docstrings, prose
from exactsink.testing.capabilities import CAPABILITIES
from exactsink.testing.runner import SCENARIOS
from exactsink.testing.target import ConformanceTarget
from exactsink.toolkit import roads

__all__ = ["class_section", "contract_page", "kit_page"]

_CONTRACT = """\
# The contract

The interface that a plugin implements: `from exactsink.contract import ...`. The two easier roads are in
`exactsink.toolkit.roads`, durable files and objects in `exactsink.toolkit.storage`. How the parts go together:
[write a plugin](../how-to/write-a-plugin.md). A method without "abstract" has a default. Errors: [errors](errors.md).
"""
_KIT = """\
# The conformance kit

`exactsink.testing` plays these scenarios on a backend ([how](../how-to/write-a-plugin.md#prove-it)). Start them with
`exactsink conformance BACKEND` ([options](cli.md#exactsink-conformance)), or with a pytest class that inherits from
`ConformanceSuite`. Each scenario runs the real coordinator. Drivers and participants are processes. The
[glossary](../explanation/glossary.md) explains the words. `Committer.assess` reports the outcome of a commit, and
commits nothing.
"""
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
    matrix = [s for s in SCENARIOS.values() if re.match("(killed|stalled)-(before|after)-", s.name)]
    others = [s for s in SCENARIOS.values() if s not in matrix]
    points = {re.sub("^(killed|stalled)-(before|after)-", "", s.name): None for s in matrix}
    rows = [(f"`{s.name}`", s.promise, s.failure, ", ".join(f"`{n}`" for n in s.needs) or "-") for s in others]
    rows += [
        (f"`{how}-before-POINT`, `{how}-after-POINT`", "every row is applied once, nothing stays in doubt", why, "-")
        for how, why in {s.name.split("-")[0]: s.failure for s in matrix}.items()
    ]
    capabilities = [(f"`{name}`", text) for name, text in CAPABILITIES.items()]
    return "\n".join(
        [
            _KIT,
            "## Scenarios\n",
            markdown_table(("scenario", "promise", "the event in real life", "needs (see below)"), rows),
            f"POINT is each of {', '.join(f'`{point}`' for point in points)}. (`commit` means `commit:<sink>`.)\n",
            "## Capabilities\n\nThe kit skips a scenario only if a capability that the scenario needs is missing.\n",
            markdown_table(("capability", "missing if"), capabilities),
            "## How the kit reaches your store\n",
            class_section(ConformanceTarget),
        ]
    )


def class_section(kind: type) -> str:
    """Return a class with its calls, their signatures, and the promise of each."""
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ in (*contract.__all__, *roads.__all__)]
    over = f" ({', '.join(bases)})" if bases else ""
    parts = [f"### `{kind.__name__}`{over}\n\n{prose(inspect.getdoc(kind) or '')}\n"]
    rows = list(_members(kind))
    return "\n".join([*parts, markdown_table(("", ""), rows)] if rows else parts)


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

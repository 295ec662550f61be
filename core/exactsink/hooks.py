"""Where plugins hook in: which backends they bring, and who hears the events. Never imported on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from exactsink.events import Event

__all__ = ["ENTRY_POINT_GROUP", "BackendSpec", "HookSpecs", "hookimpl"]

ENTRY_POINT_GROUP = "exactsink"
_hookspec = pluggy.HookspecMarker("exactsink")
hookimpl = pluggy.HookimplMarker("exactsink")


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Announce a backend without importing it.

    `name` is what a job's config calls it; `load` is "module:Class", imported when a job first uses it; `install` is
    the command that brings what it needs; `contract` is the version of the contract it was written for; `strategies`
    says each strategy in a line. `conformance` is "module:function" that gives the targets on which the conformance kit
    can try the backend (see `exactsink.testing`); empty when it ships none.
    """

    name: str
    load: str
    install: str
    contract: int = 1
    strategies: Mapping[str, str] = field(default_factory=dict)
    conformance: str = ""


class HookSpecs:
    """The hooks, called by pluggy on modules that the entry-point group `exactsink` names."""

    @_hookspec
    def exactsink_backends(self) -> Sequence[BackendSpec]:
        """Give the backends that this plugin brings. Keep the module light: it is imported to list them."""
        raise NotImplementedError

    @_hookspec
    def exactsink_event(self, event: Event) -> None:
        """Hear a protocol event, in the driver, as it happens. An exception here is logged and changes nothing."""

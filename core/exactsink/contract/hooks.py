"""Where plugins hook in: which backends they bring, and who hears the events. Never imported on executors."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from exactsink.contract.model import BackendSpec, Event

__all__ = ["ENTRY_POINT_GROUP", "HookSpecs", "hookimpl"]

ENTRY_POINT_GROUP = "exactsink"
_hookspec = pluggy.HookspecMarker("exactsink")
hookimpl = pluggy.HookimplMarker("exactsink")


class HookSpecs:
    """The hooks, called by pluggy on modules that the entry-point group `exactsink` names."""

    @_hookspec
    def exactsink_backends(self) -> Sequence[BackendSpec]:
        """Return the backends that this plugin brings. Keep the module light: it is imported to list them."""
        raise NotImplementedError

    @_hookspec
    def exactsink_event(self, event: Event) -> None:
        """Hear a protocol event, in the driver, as it happens. An exception here is logged and changes nothing."""

"""Hooks of plugins: the backends that they bring, and the events that they receive. Never imported on executors."""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from exactsink.contract.model import ENTRY_POINT_GROUP, BackendSpec, Event

__all__ = ["HookSpecs", "hookimpl"]

_hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


class HookSpecs:
    """The hooks. pluggy calls them on the modules that the entry-point group `exactsink` names."""

    @_hookspec
    def exactsink_backends(self) -> Sequence[BackendSpec]:
        """Return the backends that this plugin brings.

        Keep the module light: exactsink imports it to list the backends.
        """
        raise NotImplementedError

    @_hookspec
    def exactsink_event(self, event: Event) -> None:
        """Receive a protocol event, in the driver, as it happens. An exception here is logged, and changes nothing."""

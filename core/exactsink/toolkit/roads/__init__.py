"""Two easier roads to a backend, over rows that are staged durably: `StagedBackend` and `IdempotentBackend`."""

from exactsink.toolkit.roads.idempotent import IdempotentBackend, Version
from exactsink.toolkit.roads.marker import Marker
from exactsink.toolkit.roads.staged import Applier, MarkerCommitter, StagedBackend, StagedCommitter, StagingBackend

__all__ = [
    "Applier",
    "IdempotentBackend",
    "Marker",
    "MarkerCommitter",
    "StagedBackend",
    "StagedCommitter",
    "StagingBackend",
    "Version",
]

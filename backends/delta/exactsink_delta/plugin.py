"""Announce the `delta` backend to exactsink, without importing it."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> Sequence[BackendSpec]:
    """Return the one backend of this package."""
    return [
        BackendSpec(
            "delta",
            load="exactsink_delta.backend:DeltaBackend",
            install="pip install 'exactsink[delta]'",
            drivers=("deltalake",),
            strategies={
                "append": "tasks write Parquet files; the commit adds them to the table by one entry of its log",
                "overwrite": "the same, but the entry also removes the old rows of these partitions (batch runs only)",
            },
            conformance="exactsink_delta.conformance:targets",
        )
    ]

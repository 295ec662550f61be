"""Announce the `iceberg` backend to exactsink, without importing it."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> Sequence[BackendSpec]:
    """Return the one backend of this package."""
    return [
        BackendSpec(
            "iceberg",
            load="exactsink_iceberg.backend:IcebergBackend",
            install="pip install 'exactsink[iceberg]'",
            drivers=("pyiceberg", "sqlalchemy"),
            strategies={
                "append": "tasks write Parquet files; the commit adds them to the table by one snapshot",
                "overwrite": "the same, but the snapshot also removes old rows of these partitions (batch runs only)",
            },
            conformance="exactsink_iceberg.conformance:targets",
        )
    ]

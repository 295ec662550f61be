"""Announce the `files` backend to exactsink without importing it."""

from __future__ import annotations

from collections.abc import Sequence

from exactsink.contract import BackendSpec, hookimpl

__all__ = ["exactsink_backends"]


@hookimpl
def exactsink_backends() -> Sequence[BackendSpec]:
    """Return the one backend of this package."""
    return [
        BackendSpec(
            "files",
            load="exactsink_files.backend:FilesBackend",
            install="pip install exactsink",
            strategies={
                "rename": "tasks write hidden files into the target's file system; the commit gives them their names",
                "multipart": "for object stores: tasks upload parts; the commit makes files of them",
            },
            conformance="exactsink_files.conformance:targets",
            bench="exactsink_files.bench:targets",
            commands="exactsink_files.commands:commands",
        )
    ]

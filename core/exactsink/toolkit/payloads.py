"""Votes that an earlier or a later release wrote."""

from __future__ import annotations

from exactsink.contract import Committable, Fatal

__all__ = ["check_version"]


def check_version(committable: Committable, *readable: int) -> None:
    """Raise Fatal unless the payload is of a version that this release of the backend reads."""
    if committable.version not in readable:
        raise Fatal(
            f"{committable.txn.id}: can't read a vote of version {committable.version}",
            why=f"this release reads version {' and '.join(map(str, readable))}",
            next="start the job with the release of exactsink that wrote the epoch",
        )

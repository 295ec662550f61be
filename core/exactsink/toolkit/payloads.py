"""Check the version of votes, which another release may have written."""

from __future__ import annotations

from exactsink.contract import Committable, Fatal

__all__ = ["check_version"]


def check_version(committable: Committable, readable: int) -> None:
    """Raise Fatal unless this release of the backend can read the payload's version."""
    if committable.version != readable:
        raise Fatal(
            f"{committable.txn.id}: can't read a vote of version {committable.version}",
            why=f"this release reads version {readable}",
            next="start the job with the release of exactsink that wrote the epoch",
        )

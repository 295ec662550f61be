"""The sink's mark: in the table's properties, and in the summary of the snapshot of the same commit.

A rollback keeps the properties, and an expiry removes snapshots: each of the two places reveals a change of the other.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from exactsink.contract import Fatal

__all__ = ["KeptMark", "ancestors", "shown_mark"]


class KeptMark(BaseModel):
    """A mark in the table. Only the properties have `snapshot` and `sequence`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    lineage: str
    epoch: int
    token: str
    snapshot: int = 0
    sequence: int = 0

    def text(self) -> str:
        """Return the mark as text, in the form that the table keeps."""
        return self.model_dump_json(exclude_defaults=True)


def ancestors(table: TableMetadata, branch: str) -> tuple[list[Snapshot], bool]:
    """Return a branch's snapshots, the newest first, and whether an expiry has cut the list.

    pyiceberg's expiry removes the parent's id; other tools leave it. A table's first snapshot has sequence number 1.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots}
    found, at = list[Snapshot](), table.snapshot_by_name(branch)
    while at is not None:
        found.append(at)
        at = by_id.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
    last = found[-1] if found else None
    return found, last is not None and (last.parent_snapshot_id is not None or (last.sequence_number or 0) > 1)


def shown_mark(table: TableMetadata, key: str, branch: str) -> KeptMark | None:
    """Return the mark of the epoch that a branch shows; None if it shows none, or if the mark is not known.

    The mark of the newest ancestor with a mark counts, whatever the properties are: if they differ, the table was
    rolled back. If an expiry has removed all ancestors with a mark, the properties count, unless the oldest remaining
    snapshot is older than the mark's: then the branch does not contain it.
    """
    kept = _read(table.properties.get(key), key)
    line, cut = ancestors(table, branch)
    for snapshot in line:
        said = snapshot.summary.additional_properties.get(key) if snapshot.summary is not None else None
        if said is not None:
            return _read(said, key)
    return kept if kept is not None and cut and (line[-1].sequence_number or 0) > kept.sequence else None


def _read(text: str | None, key: str) -> KeptMark | None:
    if text is None:
        return None
    try:
        return KeptMark.model_validate_json(text)
    except ValidationError:
        what = f"the table's {key} can't be read as a mark"
        fix = "find out who changed it, and put the table back"
        raise Fatal(what, why="it was edited, or a newer release wrote it", next=fix) from None

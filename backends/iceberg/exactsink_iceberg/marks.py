"""The sink's mark: in the table's properties, and in the summary of the snapshot of the same commit.

A rollback keeps the properties, and an expiry removes snapshots: each of the two places reveals a change of the other.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from pydantic import BaseModel, ConfigDict, ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from exactsink.contract import Fatal

__all__ = ["KeptMark", "ancestors", "moved_marks", "shown_mark"]


class KeptMark(BaseModel):
    """A mark in the table. Only the properties have `sequence` and `snapshot`.

    `snapshot` is the mark's own snapshot, or a later snapshot that contains its rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    lineage: str
    epoch: int
    token: str
    snapshot: int = 0
    sequence: int = 0
    branch: str = MAIN_BRANCH

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
    rolled back. If an expiry has removed all ancestors with a mark, the properties count, unless the table shows that
    the branch does not contain their snapshot: another branch got it, the oldest remaining snapshot is older, or it
    still exists and is not an ancestor. (By age, an expiry removes a snapshot before its descendants.)
    """
    kept = _read(table.properties.get(key), key)
    at = _branch_in(table, branch)
    line, cut = ancestors(table, at)
    for snapshot in line:
        said = snapshot.summary.additional_properties.get(key) if snapshot.summary is not None else None
        if said is not None:
            return _read(said, key)
    if kept is None or not cut or (line[-1].sequence_number or 0) <= kept.sequence:
        return None
    reaching = {ref for ref in table.refs if kept.snapshot in _ids(table, ref)}
    missing = not reaching or (at not in reaching and _inherits_nothing(line[-1]))
    exists = table.snapshot_by_id(kept.snapshot) is not None
    return None if (missing and exists) or kept.branch not in (at, MAIN_BRANCH) else kept


def moved_marks(table: TableMetadata, removed: Collection[int]) -> dict[str, str]:
    """Return new properties for the marks of all sinks with a snapshot that is not an ancestor without `removed`.

    They get the oldest remaining ancestor, so that a removal by us is not taken for a replaced table.
    """
    moved = dict[str, str]()
    for key, text in table.properties.items():
        with suppress(ValidationError):  # not a mark
            kept = KeptMark.model_validate_json(text)
            ids = _ids(table, _branch_in(table, kept.branch))
            cut = next((place for place, each in enumerate(ids) if each in removed), len(ids))
            if kept.snapshot in ids[cut:]:
                moved[key] = kept.model_copy(update={"snapshot": ids[cut - 1]}).text()
    return moved


def _branch_in(table: TableMetadata, branch: str) -> str:
    """Return the branch, or `main` if the branch is missing, because it will begin there."""
    return branch if branch in table.refs else MAIN_BRANCH


def _ids(table: TableMetadata, branch: str) -> list[int]:
    return [snapshot.snapshot_id for snapshot in ancestors(table, branch)[0]]


def _inherits_nothing(oldest: Snapshot) -> bool:
    """Return whether the oldest snapshot has only its own files, as the first one of a replaced table."""
    said = oldest.summary.additional_properties if oldest.summary is not None else {}
    own = said.get("added-data-files", "0") == said.get("total-data-files") and "deleted-data-files" not in said
    return own and oldest.parent_snapshot_id is None


def _read(text: str | None, key: str) -> KeptMark | None:
    if text is None:
        return None
    try:
        return KeptMark.model_validate_json(text)
    except ValidationError:
        what = f"the table's {key} can't be read as a mark"
        fix = "find out who changed it, and put the table back"
        raise Fatal(what, why="it was edited, or a newer release wrote it", next=fix) from None

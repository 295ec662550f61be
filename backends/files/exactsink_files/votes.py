"""What a participant's vote says: which hidden files it sealed, and the names that they are to get."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from exactsink.contract import AnyPath, Committable, ObjectPath, Txn
from exactsink.toolkit.payloads import check_version

__all__ = ["PAYLOAD_VERSION", "Vote", "VotedFile", "temp_folder", "temp_root"]

PAYLOAD_VERSION = 1

_Folder = TypeVar("_Folder", Path, ObjectPath, AnyPath)


@dataclass(frozen=True, slots=True)
class VotedFile:
    """One sealed file: `temp` is its name in the participant's folder, `final` its path below the root.

    `rows` is None in votes of earlier releases.
    """

    temp: str
    final: str
    size: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """All that another process needs to commit a participant, or to find that it is committed."""

    root: str
    folder: str
    files: tuple[VotedFile, ...]

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, committable: Committable) -> Vote:
        check_version(committable, PAYLOAD_VERSION)
        voted = json.loads(committable.payload)
        return cls(voted["root"], voted["folder"], tuple(VotedFile(**file) for file in voted["files"]))

    def temp(self, file: VotedFile) -> Path:
        return Path(self.root, self.folder, file.temp)

    def final(self, file: VotedFile) -> Path:
        return Path(self.root, file.final)


def temp_root(root: _Folder) -> _Folder:
    """Name the folder of all participants and marks: in the target's own file system, as links don't cross."""
    return root / "_exactsink"


def temp_folder(root: _Folder, txn: Txn) -> _Folder:
    """Name the folder that holds one participant's temp files, and nothing else."""
    return temp_root(root) / txn.id

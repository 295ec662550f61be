"""What a participant's vote says: which hidden files it sealed, and the names that they are to get."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from exactsink.contract import AnyPath, Committable, JobContext, ObjectPath, Txn
from exactsink.toolkit.payloads import check_version

__all__ = ["PAYLOAD_VERSION", "Part", "Vote", "VotedFile", "final_name", "own_txn", "temp_folder", "temp_root"]

PAYLOAD_VERSION = 2
"""2 has `parts` and `rows`; 1 has neither."""

_Folder = TypeVar("_Folder", Path, ObjectPath, AnyPath)


class Part(NamedTuple):
    """One part of a multipart upload, numbered from 1; its tag is the server's."""

    number: int
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class VotedFile:
    """One sealed file: `temp` is its name in the participant's folder, `final` its path below the root.

    In a store, `temp` is the id of its upload, and `parts` are all of its parts, in their order. `rows` is None in
    votes of earlier releases.
    """

    temp: str
    final: str
    size: int
    sha256: str
    parts: tuple[Part, ...] = ()
    rows: int | None = None

    @classmethod
    def load(cls, body: dict[str, Any]) -> VotedFile:
        return cls(**{**body, "parts": tuple(Part(*part) for part in body.get("parts", ()))})

    def dump(self) -> dict[str, Any]:
        body = {name: getattr(self, name) for name in ("temp", "final", "size", "sha256", "parts", "rows")}
        return {name: value for name, value in body.items() if value not in ((), None)}


@dataclass(frozen=True, slots=True)
class Vote:
    """All that another process needs to commit a participant, or to find that it is committed.

    `folder` holds its temp files; in a store it is the object that lists its uploads. Both are below the root.
    """

    root: str
    folder: str
    files: tuple[VotedFile, ...]

    def dump(self) -> bytes:
        files = [file.dump() for file in self.files]
        return json.dumps({"root": self.root, "folder": self.folder, "files": files}).encode()

    @classmethod
    def load(cls, committable: Committable) -> Vote:
        check_version(committable, 1, PAYLOAD_VERSION)
        voted = json.loads(committable.payload)
        return cls(voted["root"], voted["folder"], tuple(VotedFile.load(file) for file in voted["files"]))


def temp_root(root: _Folder) -> _Folder:
    """Name the folder of all participants and marks: in the target's own file system, as links don't cross."""
    return root / "_exactsink"


def temp_folder(root: _Folder, txn: Txn) -> _Folder:
    """Name the folder that holds one participant's temp files, and nothing else."""
    return temp_root(root) / txn.id


def final_name(txn: Txn, partition: str, number: int, form: str) -> str:
    """Name a file's place below the root: unique for good, as the transaction's id with the folder's count is."""
    name = f"{txn.id}.{number}.{form}" if number else f"{txn.id}.{form}"
    return f"{partition}/{name}" if partition else name


def own_txn(ctx: JobContext, name: str) -> Txn | None:
    """Read the id of one of this job's and sink's participants; None for all other names."""
    txn = Txn.parse(name)
    return txn if txn is not None and (txn.job, txn.sink) == (ctx.job, ctx.sink) else None

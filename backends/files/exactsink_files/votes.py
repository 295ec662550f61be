"""A participant's vote: the hidden files that it sealed, and their final names."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from exactsink.contract import Committable, Fatal, JobContext, Txn
from exactsink.toolkit.payloads import check_version
from exactsink.toolkit.storage import AnyPath, ObjectPath

__all__ = [
    "PAYLOAD_VERSION",
    "Part",
    "VotedFiles",
    "VotedFile",
    "final_name",
    "is_below",
    "own_txn",
    "temp_folder",
    "temp_root",
]

PAYLOAD_VERSION = 2

_Folder = TypeVar("_Folder", Path, ObjectPath, AnyPath)


class Part(NamedTuple):
    """One part of a multipart upload, numbered from 1, with the server's tag."""

    number: int
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class VotedFile:
    """One sealed file: `temp` is its name in the participant's folder, `final` its path below the root.

    In a store, `temp` is the id of its upload, and `parts` are all of its parts, in their order.
    """

    temp: str
    final: str
    size: int
    sha256: str
    rows: int
    parts: tuple[Part, ...] = ()

    @classmethod
    def load(cls, body: dict[str, Any]) -> VotedFile:
        """Read a file's part of a vote. Raises ValueError, TypeError or KeyError."""
        made = cls(**{**body, "parts": tuple(Part(*part) for part in body.get("parts", ()))})
        known = [type(value) for value in (made.temp, made.final, made.size, made.sha256, made.rows)]
        if known != [str, str, int, str, int]:
            raise TypeError(f"{body!r:.200}")
        return made

    def dump(self) -> dict[str, Any]:
        body = {name: getattr(self, name) for name in ("temp", "final", "size", "sha256", "parts", "rows")}
        return {name: value for name, value in body.items() if value != ()}


@dataclass(frozen=True, slots=True)
class VotedFiles:
    """The data by which any process commits a participant, or finds that it is committed.

    `folder`: the folder of its temp files; in a store, the object that lists its uploads. Both are below the root.
    """

    root: str
    folder: str
    files: tuple[VotedFile, ...]

    def dump(self) -> bytes:
        files = [file.dump() for file in self.files]
        return json.dumps({"root": self.root, "folder": self.folder, "files": files}).encode()

    @classmethod
    def load(cls, committable: Committable) -> VotedFiles:
        """Read a vote. Raises Fatal if it can't be read."""
        check_version(committable, PAYLOAD_VERSION)
        try:
            voted = json.loads(committable.payload)
            return cls(voted["root"], voted["folder"], tuple(VotedFile.load(file) for file in voted["files"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _refused(committable.txn, f"it can't be read: {error!r}") from error

    def check_own(self, ctx: JobContext, txn: Txn, root: AnyPath) -> None:
        """Raise Fatal unless the vote names its participant's own files, below the target's root."""
        in_store = isinstance(root, ObjectPath)
        if (txn.job, txn.sink) != (ctx.job, ctx.sink):
            raise _refused(txn, f"this is sink {ctx.sink} of job {ctx.job}")
        if self.root != str(root) and (in_store or os.path.realpath(self.root) != os.path.realpath(str(root))):
            raise _refused(txn, f"its target is {self.root!r}, but the sink's is {root}")
        uploads = isinstance(root, ObjectPath) and not root.renames
        if self.folder != f"_exactsink/{txn.id}" + (".uploads" if uploads else ""):
            raise _refused(txn, f"{self.folder!r} is not its folder below {root}")
        own = rf"{re.escape(txn.id)}\.parts/[^/]+" if uploads and root.scheme == "gs" else ".+"  # type: ignore[union-attr]
        temp = re.compile(own if uploads else r"\d+\.tmp")
        final = re.compile(rf"{re.escape(txn.id)}(\.\d+)?\.(parquet|json|csv)")
        for file in self.files:
            if not (is_below(file.final) and final.fullmatch(file.final.rpartition("/")[2])):
                raise _refused(txn, f"its file must not get the name {file.final!r} below {root}")
            if file.final.startswith("_exactsink/") or not temp.fullmatch(file.temp):
                raise _refused(txn, f"{file.temp!r}, to become {file.final!r}, is not a file of its own")
        if len({file.final for file in self.files} | {file.temp for file in self.files}) != 2 * len(self.files):
            raise _refused(txn, "it names a file twice")


def is_below(path: str) -> bool:
    """Return whether a relative path stays below its folder."""
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def temp_root(root: _Folder) -> _Folder:
    """Return the folder of all participants and marks. It is in the target, because links stay in one file system."""
    return root / "_exactsink"


def temp_folder(root: _Folder, txn: Txn) -> _Folder:
    """Return the folder that holds one participant's temp files, and nothing else."""
    return temp_root(root) / txn.id


def final_name(txn: Txn, partition: str, number: int, form: str) -> str:
    """Return a file's final name below the root. The transaction's id and the file's number make it unique."""
    name = f"{txn.id}.{number}.{form}" if number else f"{txn.id}.{form}"
    return f"{partition}/{name}" if partition else name


def own_txn(ctx: JobContext, name: str) -> Txn | None:
    """Read the id of a participant of this job and sink; return None for all other names."""
    txn = Txn.parse(name)
    return txn if txn is not None and (txn.job, txn.sink) == (ctx.job, ctx.sink) else None


def _refused(txn: Txn, why: str) -> Fatal:
    return Fatal(
        f"sink {txn.sink}: the vote of {txn.id} is refused",
        why=why,
        next="restore the journal from a copy, because it was changed; then start the job again; no file was changed",
    )

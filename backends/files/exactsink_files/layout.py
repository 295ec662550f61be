"""Where things lie below the target's root, and what a vote says of them.

Readers (Spark, pandas, pyarrow) skip names that begin with `_`, and temp names match no `*.parquet`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from exactsink.errors import Fatal, Retryable
from exactsink.model import Committable, Txn

__all__ = ["PAYLOAD_VERSION", "Vote", "VotedFile", "remove_folder", "temp_folder", "temp_root"]

PAYLOAD_VERSION = 1
_TRIES = 100


def temp_root(root: str) -> Path:
    """Name the folder of all participants' temp files: in the target's own file system, as links don't cross."""
    return Path(root, "_exactsink")


def temp_folder(root: str, txn: Txn) -> Path:
    """Name the folder that holds one participant's temp files, and nothing else."""
    return temp_root(root) / txn.id


@dataclass(frozen=True, slots=True)
class VotedFile:
    """One sealed file: `temp` is its name in the participant's folder, `final` its path below the root."""

    temp: str
    final: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Vote:
    """All that another process needs to commit a participant, or to tell that it stands."""

    root: str
    folder: str
    files: tuple[VotedFile, ...]

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, committable: Committable) -> Vote:
        """Read a committable's payload; Fatal when another release wrote it in a format unknown here."""
        if committable.version != PAYLOAD_VERSION:
            raise Fatal(
                f"{committable.txn.id}: can't read a vote of version {committable.version}",
                why=f"this release reads version {PAYLOAD_VERSION}",
                next="start the job with the release of exactsink that wrote the epoch",
            )
        voted = json.loads(committable.payload)
        return cls(voted["root"], voted["folder"], tuple(VotedFile(**file) for file in voted["files"]))

    def temp(self, file: VotedFile) -> Path:
        return Path(self.root, self.folder, file.temp)

    def final(self, file: VotedFile) -> Path:
        return Path(self.root, file.final)


def remove_folder(folder: Path) -> None:
    """Remove a participant's folder with what is in it. Idempotent, also while a late writer still adds files.

    Once the folder is gone its writer can add nothing more, and so can't vote. Raises OSError, or Retryable when the
    writer kept on winning.
    """
    for _ in range(_TRIES):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:  # gone, or another process removes it too and was ahead somewhere inside
            if not os.path.lexists(folder):
                return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
    raise Retryable(
        f"can't remove {folder}",
        why="something keeps adding files to it",
        next="stop the old attempt's process, then start the job again",
    )

"""The target of the `files` backend on an SFTP server, for the conformance kit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.conformance import FilesTarget

__all__ = ["SftpTarget"]


@dataclass(frozen=True)
class SftpTarget(FilesTarget):
    """A folder of its own a scenario, below a URL whose files are found in `files` here, too."""

    url: str = ""
    files: Path = Path()

    def backend(self, folder: Path) -> Backend:
        path = f"{self.url}/{self._here(folder).name}/lake"
        return FilesBackend(FilesOptions.model_validate({"path": path, "partition_by": ["kind"]}))

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        return super().order(self._here(folder))

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        super().lose_votes(self._here(folder), committables)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        super().destroy_evidence(self._here(folder), committables)

    def foreign(self, folder: Path) -> None:
        before = os.umask(0)  # the server's user may be another
        try:
            super().foreign(self._here(folder))
        finally:
            os.umask(before)

    def foreign_stands(self, folder: Path) -> bool:
        return super().foreign_stands(self._here(folder))

    def previous(self, folder: Path) -> Sequence[Committable]:
        return ConformanceTarget.previous(self, folder)

    def _here(self, folder: Path) -> Path:
        return self.files / str(folder).strip("/").replace("/", "-")

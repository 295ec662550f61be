"""How pyiceberg writes a table's own files: each is on disk before anything names it.

pyiceberg leaves them to the system. A catalog that named a file which a power cut took would have lost its table.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import cast

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from exactsink.toolkit.storage import make_folder, sync_folders

__all__ = ["DurableFileIO", "local_path"]


class _SyncedFile(io.FileIO):
    """A file that is synced, with its folder, when it is closed."""

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync_folders([Path(str(self.name)).parent])


class _DurableOutput(PyArrowFile):
    """A file of the table that is created durably."""

    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        make_folder(path.parent)
        return cast(OutputStream, io.BufferedWriter(_SyncedFile(path, "w" if overwrite else "x")))


class DurableFileIO(PyArrowFileIO):
    """Reads as pyiceberg does, and writes durably."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        return _DurableOutput(location=location, path=made._path, fs=made._filesystem)


def local_path(location: str) -> Path:
    """Return the path of a table's file."""
    return Path(location.removeprefix("file://").removeprefix("file:"))

"""pyiceberg's reads and writes of a table's own files: each file is durable before anything names it.

pyiceberg itself does not sync its files. If the catalog named a file that a power cut took, the table would be lost.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from types import TracebackType

from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from exactsink.toolkit.storage import AnyPath, ObjectPath, path_of, sync_folders
from exactsink.toolkit.tabular.table_writer import new_data_file
from exactsink.toolkit.tabular.waiting import size_of

__all__ = ["DurableFileIO", "path_at", "sync_file"]


class _Stream(OutputStream):
    """A new file. File and name are durable once it is closed; a block that raises leaves no file."""

    def __init__(self, path: AnyPath) -> None:
        self._path, self._file = path, new_data_file(path)

    def write(self, b: bytes) -> int:
        return self._file.write(b)

    def tell(self) -> int:
        return self._file.tell()

    @property
    def closed(self) -> bool:
        """Return whether the file is closed. Arrow reads this."""
        return self._file.closed

    def close(self) -> None:
        if not self._file.closed:
            self._file.seal()
            sync_folders([self._path.parent])

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self.close()
        else:
            self._file.close()


class _StoredFile(InputFile, OutputFile):
    """A file of the table, in a folder or in a store."""

    @property
    def _path(self) -> AnyPath:
        return path_at(self.location)

    def __len__(self) -> int:
        return size_of(self._path)

    def exists(self) -> bool:
        return self._path.exists()

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._path.read_bytes())

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        if overwrite:
            self._path.unlink(missing_ok=True)
        return _Stream(self._path)


class DurableFileIO(PyArrowFileIO):
    """Reads rows as pyiceberg does; reads and writes metadata and manifests by exactsink's own storage."""

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        return _StoredFile(location)

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        return _StoredFile(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path_at(location if isinstance(location, str) else location.location).unlink()


def path_at(location: str) -> AnyPath:
    """Return the path of a table's file."""
    return path_of(location.removeprefix("file://").removeprefix("file:"))


def sync_file(location: str) -> None:
    """Sync a local file that another writer made. Ignore a missing file, because its readers report it."""
    path = path_at(location)
    if not isinstance(path, ObjectPath):
        with suppress(FileNotFoundError), open(path, "rb") as file:
            os.fsync(file.fileno())

"""Local files that survive a power cut: what is synced, in which order, and a proof of what was written."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = [
    "NO_HARD_LINKS",
    "DurableFile",
    "create_file",
    "file_sha256",
    "make_folder",
    "replace_file",
    "sync_folders",
]


_WRITE_BACK_BYTES = 8 * 1024 * 1024

NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What `link` answers on a file system that has none."""


class DurableFile(io.RawIOBase):
    """A new file that is written from front to back, hashed on the way, and synced when it is sealed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - lives as long as this object
        self._hash = hashlib.sha256()
        self._size = 0
        self._begun = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        written = 0
        while written < len(view):  # an unbuffered write may take a part only
            written += self._file.write(view[written:]) or 0
        self._hash.update(view)
        self._size += len(view)
        if self._size - self._begun >= _WRITE_BACK_BYTES:
            self._begin_write_back()
        return len(view)

    def _begin_write_back(self) -> None:
        """Let the disk begin while the next bytes are made, so that a seal waits for the last ones only.

        Linux does so for bytes said to be needed no more. It is an advice: the seal's sync is what makes them durable.
        """
        with suppress(OSError):
            os.posix_fadvise(self._file.fileno(), self._begun, self._size - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = self._size

    def tell(self) -> int:
        return self._size

    def seal(self) -> tuple[int, str]:
        """Sync to disk and close; give the size in bytes and the SHA-256. The folder is the caller's to sync."""
        os.fsync(self._file.fileno())
        self.close()
        return self._size, self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def file_sha256(path: Path) -> str:
    """Hash a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sync_folders(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable: files created, linked, renamed or unlinked in them."""
    for folder in dict.fromkeys(folders):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def create_file(path: Path, data: bytes) -> bool:
    """Make a file under a name that nobody has, durably; return whether this call did. One that stands is left alone.

    Nobody ever finds a part of it; but where there are no hard links, a writer that dies may leave one.
    """
    unfinished = _sealed_beside(path, data)
    try:
        os.link(unfinished, path)
        made = True
    except FileExistsError:
        made = False
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        made = _created_in_place(path, data)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folders([path.parent])  # also for one that stands: who made it may have died before it synced
    return made


def replace_file(path: Path, data: bytes) -> None:
    """Make a file, or put it in the place of the one that has its name; whole and durable."""
    _sealed_beside(path, data).replace(path)
    sync_folders([path.parent])


def _sealed_beside(path: Path, data: bytes) -> Path:
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with DurableFile(unfinished) as file:
        file.write(data)
        file.seal()
    return unfinished


def _created_in_place(path: Path, data: bytes) -> bool:
    try:
        with DurableFile(path) as file:
            file.write(data)
            file.seal()
    except FileExistsError:
        return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, each durably named in the one above. Idempotent, also from two processes.

    Folders that stand already are synced too: who made them may have died before it synced them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for parent in folder.absolute().parents:
        try:
            sync_folders([parent])
        except OSError as error:  # somebody else's folder, which stood long before this job
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise
            return

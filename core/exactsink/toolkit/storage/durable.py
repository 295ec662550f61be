"""Files that survive a power cut: which writes are synced, in which order, and the proof of a file's content.

A function that takes an `AnyPath` does the same in an object store. There an answered write is durable without a sync,
but on SFTP it needs one.

A failed sync is never repeated for the same bytes or names: the system forgets the data that it could not write, and
reports success the next time. Instead the file is written again, or the job ends and a person checks the disk.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from exactsink.contract.errors import Fatal, Retryable
from exactsink.contract.model import FileMode
from exactsink.toolkit.storage.objects import AnyPath, ObjectPath

__all__ = [
    "NO_HARD_LINKS",
    "DurableFile",
    "HashedFile",
    "SyncFailed",
    "create_file",
    "file_names",
    "file_sha256",
    "file_times",
    "make_folder",
    "new_file",
    "new_folder",
    "remove_files",
    "replace_file",
    "replace_whole",
    "storage_errors",
    "sync_folders",
]


_WRITE_BACK_BYTES = 8 * 1024 * 1024

NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of `link` on a file system without hard links."""

_DISK_FIX = "check that its disk is mounted, has free space and lets this user write"
_NAMES_FIX = "use a shorter path, or partition columns with shorter values; then start again, nothing is lost"
_RIGHTS_FIX = "run driver and executors as one user: sudo chown -R {} '{}', or of one group: [job] file_mode = 'group'"

_GIVE = "give the process credentials that may read, list, write and delete there (AWS_*, AZURE_*, GOOGLE_*, role)"

_NOT_MINE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS})


class SyncFailed(OSError):
    """A sync failed: names may be gone after a power cut, although they show, and although a later sync succeeds."""


@contextmanager
def storage_errors(place: AnyPath, what: str) -> Iterator[None]:
    """Raise an OSError of the block as Retryable, or as Fatal if access, bucket or name need a person."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise Fatal(what, why=str(error), next=_NAMES_FIX) from error
        disk = Retryable, _RIGHTS_FIX.format(os.getuid(), place) if isinstance(error, PermissionError) else _DISK_FIX
        kind, fix = disk if isinstance(place, Path) else _of_store(error)
        raise kind(what, why=str(error), next=f"{fix}; then start the job again, nothing is lost") from error


def _of_store(error: OSError) -> tuple[type[Retryable | Fatal], str]:
    if isinstance(error, PermissionError):
        return Fatal, _GIVE
    if error.errno == errno.ENODEV:
        return Fatal, "make the bucket, or correct the URL"
    return Retryable, "check that the store answers, and its address (AWS_ENDPOINT_URL, AZURE_STORAGE_*)"


def new_file(path: Path, *, buffering: int = -1, rights: int | None = None) -> BinaryIO:
    """Open a new file. In a folder that is closed to others, the file gets the permissions of the folder.

    With `rights`, it gets exactly those, less the umask: its readers reach it by a name in another folder.
    """
    above = os.stat(path.parent)
    closed = rights is None and not above.st_mode & 0o007
    begun = 0o600 if closed else 0o666
    file = open(path, "xb", buffering, opener=lambda name, flags: os.open(name, flags, begun))  # noqa: SIM115
    try:
        _hand_over(file.fileno(), above)
        wanted = above.st_mode & 0o666 if closed else stat.S_IMODE(os.fstat(file.fileno()).st_mode) | (rights or 0)
        if wanted != begun and (closed or rights):
            os.fchmod(file.fileno(), wanted)
    except OSError:
        file.close()
        _drop(path)
        raise
    return file


def replace_whole(path: AnyPath, text: str) -> None:
    """Replace a file atomically, without a sync. Raises OSError."""
    if isinstance(path, ObjectPath):
        path.replace(text.encode())
        return
    temp = path.with_suffix(f".{secrets.token_hex(16)}.tmp")
    try:
        with new_file(temp) as file:
            file.write(text.encode())
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)


def _hand_over(handle: int, above: os.stat_result) -> None:
    """Hand a file that root made to the owner of its folder, as SQLite does: that user must read and replace it."""
    if os.geteuid() == 0:
        os.fchown(handle, above.st_uid, above.st_gid)


class HashedFile(io.RawIOBase, ABC):
    """A new file that is written from front to back, and hashed while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._hash = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self.put(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def seal(self) -> tuple[int, str]:
        """Make the file durable with `finish`, and close it. Return its size in bytes and its SHA-256."""
        self.finish()
        self.close()
        return self._size, self._hash.hexdigest()

    @abstractmethod
    def put(self, view: memoryview) -> None:
        """Write all bytes of `view`."""

    @abstractmethod
    def finish(self) -> None:
        """Make the bytes durable."""


class DurableFile(HashedFile):
    """A new local file, synced when sealed. The caller syncs the folder; `rights` are those of `new_file`."""

    def __init__(self, path: Path, rights: int | None = None) -> None:
        super().__init__()
        self._file = new_file(path, buffering=0, rights=rights)
        self._begun = 0

    def put(self, view: memoryview) -> None:
        written = 0
        while written < len(view):  # an unbuffered write may write a part only
            written += self._file.write(view[written:]) or 0
        if self._size + written - self._begun >= _WRITE_BACK_BYTES:
            self._begin_write_back(self._size + written)

    def _begin_write_back(self, size: int) -> None:
        """Let the disk begin to write early, so that `seal` waits for the last bytes only.

        Linux writes bytes back once it knows that they are not needed again. That is only advice: `seal` syncs to
        make them durable.
        """
        with suppress(OSError):
            os.posix_fadvise(self._file.fileno(), self._begun, size - self._begun, os.POSIX_FADV_DONTNEED)
        self._begun = size

    def finish(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        super().close()


def file_sha256(path: AnyPath) -> str:
    """Return a file's SHA-256."""
    digest = hashlib.sha256()
    with path.reading() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def file_names(folder: AnyPath) -> list[str]:
    """List the names directly below a folder. Raises FileNotFoundError for a local folder that does not exist."""
    return folder.names() if isinstance(folder, ObjectPath) else os.listdir(folder)


def file_times(folder: AnyPath) -> Iterator[tuple[str, float | None]]:
    """List the names directly below a folder, with the time of their last write (Unix seconds), None if unknown."""
    if isinstance(folder, ObjectPath):
        yield from ((name, info.modified) for name, info in folder.listed().items())
        return
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # removed between the listing and the stat
            yield name, (folder / name).stat().st_mtime


def remove_files(folder: AnyPath, names: Iterable[str]) -> None:
    """Remove files of one folder, in a store with as few requests as possible. Idempotent."""
    if isinstance(folder, ObjectPath):
        folder.unlink_below(names)
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)


def sync_folders(folders: Iterable[AnyPath]) -> None:
    """Make the names in these folders durable: files that were created, linked, renamed or unlinked there.

    Raises SyncFailed. Then make the names again, with new files; a second call proves nothing.
    """
    for folder in dict.fromkeys(folders):
        if isinstance(folder, ObjectPath):
            folder.sync()
            continue
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, str(folder)) from error
        finally:
            os.close(handle)


def create_file(path: AnyPath, data: bytes) -> bool:
    """Create a file under a free name, durably. Return False, and change nothing, if the name is taken.

    Nobody ever sees a part of the file. Only without hard links may a writer that dies leave a part.
    """
    if isinstance(path, ObjectPath):
        return path.create(data)
    with _sealed_beside(path, data) as unfinished:
        try:
            os.link(unfinished, path)
            made = True
        except FileExistsError:
            made = False
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            made = _created_in_place(path, data)
    sync_folders([path.parent])  # also for an existing file, because its writer may have died before the sync
    return made


def replace_file(path: AnyPath, data: bytes) -> None:
    """Create or replace a file, atomically and durably."""
    if isinstance(path, ObjectPath):
        path.replace(data)
        return
    with _sealed_beside(path, data) as unfinished:
        unfinished.replace(path)
    sync_folders([path.parent])


@contextmanager
def _sealed_beside(path: Path, data: bytes) -> Iterator[Path]:
    """Write and sync a temporary file beside `path`. It is removed at the end, unless the block has renamed it."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        with DurableFile(unfinished) as file:
            file.write(data)
            file.seal()
        yield unfinished
    finally:
        if os.path.lexists(unfinished):
            _drop(unfinished)


def _drop(unfinished: Path) -> None:
    with suppress(OSError):
        unfinished.unlink()


def _created_in_place(path: Path, data: bytes) -> bool:
    try:
        with DurableFile(path) as file:
            file.write(data)
            file.seal()
    except FileExistsError:
        return False
    return True


def new_folder(folder: Path, mode: FileMode) -> None:
    """Make one folder, for its owner, for a group, or as the umask says. Raises FileExistsError.

    A folder that root makes gets its name only once it belongs to the owner of its parent, so that this owner never
    meets a folder that he can't enter.
    """
    above = os.stat(folder.parent)
    given = os.geteuid() == 0 and (above.st_uid, above.st_gid) != (0, 0)
    if given and os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    made = folder.with_name(f".{secrets.token_hex(8)}") if given else folder
    os.mkdir(made, 0o777 if mode == "umask" else 0o700)
    if mode == "group":
        os.chmod(made, 0o2770)
    if given:
        _name_folder(made, folder, above)


def _name_folder(made: Path, folder: Path, above: os.stat_result) -> None:
    """Set a folder's owner durably, then its name."""
    handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _hand_over(handle, above)
        os.fsync(handle)
        os.rename(made, folder)  # replaces at most an empty folder, which another process has just made
    except OSError as error:
        os.rmdir(made)
        raise FileExistsError(*error.args) if error.errno == errno.ENOTEMPTY else error from None
    finally:
        os.close(handle)


def make_folder(folder: AnyPath, mode: FileMode = "umask") -> None:
    """Make a folder and its parents, each durably named in its parent. Idempotent, even from two processes.

    `mode` says who may enter the folder, if this call makes it. Its parents follow the umask.

    Existing folders are synced, because their maker may have died before it synced them. If this call can't sync a
    folder that it made, it removes the folder, so that the next call makes it again.
    """
    if isinstance(folder, ObjectPath):
        return
    folder = folder.absolute()
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(made):
        with suppress(FileExistsError):
            new_folder(place, mode if place == folder else "umask")
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    for place in (folder, *folder.parents[:-1]):
        try:
            sync_folders([place.parent])
        except OSError as error:
            if place not in made and error.errno in _NOT_MINE:  # a folder that existed long before this job
                return
            for own in made:
                with suppress(OSError):  # another process uses it meanwhile
                    own.rmdir()
            raise

"""Files that survive a power cut: what is synced, in which order, and a proof of what was written.

What takes an `AnyPath` does the same in an object store, where a write that was answered is durable, and there is
nothing to sync; on SFTP there is.

A sync that failed is never tried again for the same bytes or names: the system forgets what it could not write, and
says next time that all is well. What it was for is made again, or the job ends and a person looks at the disk.
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
"""What `link` answers on a file system that has none."""

_DISK_FIX = "check that its disk is mounted, has free space and lets this user write"
_RIGHTS_FIX = "run driver and executors as one user: sudo chown -R {} '{}', or of one group: [job] file_mode = 'group'"

_NOT_MINE = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS})


class SyncFailed(OSError):
    """Names may be gone after a power cut, though they show, and though a later sync of their folder succeeds."""


@contextmanager
def storage_errors(place: AnyPath, what: str) -> Iterator[None]:
    """Raise an OSError of the block as Retryable; as Fatal when a store refuses whoever asks, or lacks the bucket."""
    try:
        yield
    except OSError as error:
        disk = Retryable, _RIGHTS_FIX.format(os.getuid(), place) if isinstance(error, PermissionError) else _DISK_FIX
        kind, fix = disk if isinstance(place, Path) else _of_store(error)
        raise kind(what, why=str(error), next=f"{fix}; then start the job again, nothing is lost") from error


def _of_store(error: OSError) -> tuple[type[Retryable | Fatal], str]:
    if isinstance(error, PermissionError):
        return (
            Fatal,
            "give the process credentials that may read, list, write and delete there (AWS_*, AZURE_*, GOOGLE_*, role)",
        )
    if error.errno == errno.ENODEV:
        return Fatal, "make the bucket, or correct the URL"
    return (
        Retryable,
        "check that the store answers, and its address (AWS_ENDPOINT_URL, AZURE_STORAGE_*)",
    )


def new_file(path: Path, *, buffering: int = -1, rights: int | None = None) -> BinaryIO:
    """Open a file that is not there yet. In a folder that is closed to others, it gets the rights of the folder.

    With `rights` it gets those, and what the umask leaves, whatever its folder has: readers get at it by another name.
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
    """Replace a file whole, not synced. Raises OSError."""
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
    """Hand root's work to its folder's owner, as SQLite does: the user whose job it is must read and replace it."""
    if os.geteuid() == 0:
        os.fchown(handle, above.st_uid, above.st_gid)


class HashedFile(io.RawIOBase, ABC):
    """A new file that is written from front to back, and hashed on the way."""

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
        """Finish the file as `finish` says, and close it; return its size in bytes and the SHA-256."""
        self.finish()
        self.close()
        return self._size, self._hash.hexdigest()

    @abstractmethod
    def put(self, view: memoryview) -> None:
        """Take all of the next bytes."""

    @abstractmethod
    def finish(self) -> None:
        """Make the bytes durable."""


class DurableFile(HashedFile):
    """A new local file, synced when sealed. The folder is the caller's to sync; `rights` are as for `new_file`."""

    def __init__(self, path: Path, rights: int | None = None) -> None:
        super().__init__()
        self._file = new_file(path, buffering=0, rights=rights)
        self._begun = 0

    def put(self, view: memoryview) -> None:
        written = 0
        while written < len(view):  # an unbuffered write may take a part only
            written += self._file.write(view[written:]) or 0
        if self._size + written - self._begun >= _WRITE_BACK_BYTES:
            self._begin_write_back(self._size + written)

    def _begin_write_back(self, size: int) -> None:
        """Let the disk begin while the next bytes are made, so that a seal waits for the last ones only.

        Linux does so for bytes said to be needed no more. It is an advice: the seal's sync is what makes them durable.
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
    """Hash a file's bytes."""
    digest = hashlib.sha256()
    with path.reading() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def file_names(folder: AnyPath) -> list[str]:
    """List the names right below a folder. Raises FileNotFoundError for a local one that is absent."""
    return folder.names() if isinstance(folder, ObjectPath) else os.listdir(folder)


def file_times(folder: AnyPath) -> Iterator[tuple[str, float | None]]:
    """List the names right below a folder, each with when it was written (Unix seconds), where that is known."""
    if isinstance(folder, ObjectPath):
        yield from ((name, info.modified) for name, info in folder.listed().items())
        return
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # removed between listing and looking
            yield name, (folder / name).stat().st_mtime


def remove_files(folder: AnyPath, names: Iterable[str]) -> None:
    """Remove files of one folder; in a store by as few requests as it takes. Idempotent."""
    if isinstance(folder, ObjectPath):
        folder.unlink_below(names)
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)


def sync_folders(folders: Iterable[AnyPath]) -> None:
    """Make the names in these folders durable: files created, linked, renamed or unlinked in them.

    Raises SyncFailed: then make them again, as new files; to call this again proves nothing.
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
    """Make a file under a name that nobody has, durably; return whether this call did. One that stands is left alone.

    Nobody ever finds a part of it; but where there are no hard links, a writer that dies may leave one.
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
    sync_folders([path.parent])  # also for an existing file: its maker may have died before the sync
    return made


def replace_file(path: AnyPath, data: bytes) -> None:
    """Make a file, or put it in the place of the one that has its name; whole and durable."""
    if isinstance(path, ObjectPath):
        path.replace(data)
        return
    with _sealed_beside(path, data) as unfinished:
        unfinished.replace(path)
    sync_folders([path.parent])


@contextmanager
def _sealed_beside(path: Path, data: bytes) -> Iterator[Path]:
    """Write and sync a file beside; it goes with the block, unless that has given it another name."""
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
    """Make one folder, for its owner alone, for a group too, or as the umask says. Raises FileExistsError.

    Root's gets its name once it belongs to the owner of the folder above, who never finds one that is closed to him.
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
    """Set a folder's owner, durably, and then its name."""
    handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _hand_over(handle, above)
        os.fsync(handle)
        os.rename(made, folder)  # replaces at most an empty one, which another process made since
    except OSError as error:
        os.rmdir(made)
        raise FileExistsError(*error.args) if error.errno == errno.ENOTEMPTY else error from None
    finally:
        os.close(handle)


def make_folder(folder: AnyPath, mode: FileMode = "umask") -> None:
    """Make a folder and its parents, each durably named in the one above. Idempotent, also from two processes.

    `mode` is who may enter the folder itself, if this call makes it; its parents are as the umask says.

    Folders that stand already are synced too: who made them may have died before it synced them. What this call made
    and can't sync goes again, so that the next one makes it again.
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
            if place not in made and error.errno in _NOT_MINE:  # a folder which stood long before this job
                return
            for own in made:
                with suppress(OSError):  # another process uses it by now
                    own.rmdir()
            raise

"""Names in object stores, through fsspec: the part of pathlib's `Path` that a job needs of them, and atomic creates.

Nothing that was read or listed is kept: every call asks the store. What a store or its library raises comes as OSError,
as it would for a local path; FileNotFoundError is raised for a name that is absent only, never for a missing bucket.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactsink.contract.errors import ConfigError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AnyPath", "ObjectInfo", "ObjectPath", "is_object_url", "os_errors", "path_of", "store_code"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/(?P<rest>.*)", re.DOTALL)
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
"""Hadoop's names of stores, and fsspec's."""
_INSTALL = {"s3": "pip install 'exactsink[s3]'", "gs": "pip install gcsfs", "abfs": "pip install adlfs"}
_LIBRARIES = ("botocore", "aiobotocore", "aiohttp", "azure", "gcsfs", "google", "requests", "urllib3", "paramiko")
_STORE_IS_MISSING = frozenset({"NoSuchBucket"})
_TAKEN = frozenset({"PreconditionFailed", "412"})


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object: its bytes, and when it was written (Unix seconds; None where it doesn't say)."""

    size: int
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """One name in a store, `s3://bucket/key`; equal where the names are. Pickles; a task opens its own connections."""

    url: str
    fs: AbstractFileSystem = field(compare=False, repr=False)

    @classmethod
    def of(cls, url: str, **options: Any) -> ObjectPath:
        """Open the store of a URL; Hadoop's scheme names are taken, too. `options` are fsspec's for that store.

        Raises ConfigError for a scheme that fsspec does not know, or whose package is not installed.
        """
        import fsspec

        found = _URL.fullmatch(url)
        if found is None:
            raise ConfigError(f"{url} is not a URL", next="write scheme://bucket/path, or a local path")
        scheme = _SCHEMES.get(found["scheme"].lower(), found["scheme"].lower())
        try:
            fs = fsspec.filesystem(scheme, use_listings_cache=False, **options)
        except (ImportError, ValueError) as error:
            install = _INSTALL.get(scheme, "install the package that brings it to fsspec")
            raise ConfigError(f"no file system for {scheme}:", why=str(error), next=install) from error
        return cls(f"{scheme}:/{found['rest'].rstrip('/')}", fs)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}", self.fs)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.url.rpartition("/")[0], self.fs)

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name

    def exists(self) -> bool:
        """Return whether an object has this name, or a name below it."""
        with os_errors(self.url):
            return bool(self.fs.exists(self.url))

    def info(self) -> ObjectInfo:
        """Look at the object. Raises FileNotFoundError."""
        with os_errors(self.url):
            return _info(self.fs.info(self.url, refresh=True))

    def read_bytes(self) -> bytes:
        """Read the object whole. Raises FileNotFoundError."""
        with os_errors(self.url):
            return bytes(self.fs.cat_file(self.url))

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def names(self) -> list[str]:
        """List the names right below this one; empty when there is none."""
        return list(self.listed())

    def listed(self) -> dict[str, ObjectInfo]:
        """List the names right below this one, each with what the store says of it; a folder has no bytes."""
        with os_errors(self.url):
            try:
                found = self.fs.ls(self.url, detail=True, refresh=True)
            except FileNotFoundError as absent:
                if store_code(absent) in _STORE_IS_MISSING:
                    raise
                return {}
        named = ((str(each["name"]).rstrip("/").rpartition("/")[2], each) for each in found)
        own = self.name
        return {name: _info(each) for name, each in named if name and not (name == own and _is_marker(each))}

    def create(self, data: bytes) -> bool:
        """Write an object under a name that nobody has; return whether this call did. Durable, and never half seen.

        False may also stand for an earlier try of this call whose answer was lost: who must know compares what stands.
        """
        with os_errors(self.url):
            try:
                self.fs.pipe_file(self.url, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if store_code(error) in _TAKEN:  # not every server says which condition failed
                    return False
                raise
        return True

    def replace(self, data: bytes) -> None:
        """Write an object, or put it in the place of the one that has its name; durable, and never half seen."""
        with os_errors(self.url):
            self.fs.pipe_file(self.url, data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object. A store may not say whether it was there."""
        with os_errors(self.url):
            try:
                self.fs.rm_file(self.url)
            except FileNotFoundError as absent:
                if not missing_ok or store_code(absent) in _STORE_IS_MISSING:
                    raise

    def unlink_below(self, names: Iterable[str]) -> None:
        """Remove objects below this one, by as few requests as the store has for it. Idempotent."""
        urls = [f"{self.url}/{name}" for name in names]
        with os_errors(self.url):
            if not urls:
                return
            try:
                self.fs.rm(urls)
            except FileNotFoundError:
                for url in urls:
                    ObjectPath(url, self.fs).unlink(missing_ok=True)


AnyPath = Path | ObjectPath


def is_object_url(text: str) -> bool:
    """Return whether a path that a user wrote names a store: any scheme but `file:`."""
    found = _URL.fullmatch(text)
    return found is not None and found["scheme"].lower() != "file"


def path_of(text: str) -> AnyPath:
    """Return the path that a text names: in a store when it is a URL, else a local one."""
    return ObjectPath.of(text) if is_object_url(text) else Path(text)


@contextmanager
def os_errors(url: str) -> Iterator[None]:
    """Raise what a store's library raises as OSError; a missing bucket must never be taken for an absent name."""
    try:
        yield
    except FileNotFoundError as error:
        if store_code(error) in _STORE_IS_MISSING:
            raise OSError(errno.ENODEV, f"the bucket does not exist: {error}", url) from error
        raise
    except PermissionError as error:
        raise PermissionError(errno.EACCES, str(error), url) from error
    except OSError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error


def store_code(error: BaseException | None) -> str:
    """Return the store's own word for an error, where its library keeps it; empty elsewhere."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return str(response["Error"].get("Code", ""))
        error = error.__cause__
    return ""


def _info(found: dict[str, Any]) -> ObjectInfo:
    modified: Any = found.get("LastModified", found.get("mtime", found.get("last_modified")))
    seconds = modified.timestamp() if hasattr(modified, "timestamp") else modified
    return ObjectInfo(int(found.get("size") or 0), None if seconds is None else float(seconds))


def _is_marker(found: dict[str, Any]) -> bool:
    """Whether this is the empty object by which some writers mark a folder, Hadoop's S3A for one."""
    return not found.get("size")

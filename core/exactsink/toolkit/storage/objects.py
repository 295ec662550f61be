"""Names in object stores, through fsspec: the part of pathlib's `Path` that a job needs, and atomic creates.

Nothing is cached: every call queries the store. Errors of a store or its library are raised as the OSError that a local
path would raise. FileNotFoundError means only that the name does not exist, never that the bucket does not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from exactsink.contract.errors import ConfigError
from exactsink.toolkit.storage.object_calls import ObjectInfo, Upload, abort_upload, delete, entries, info_of, uploads
from exactsink.toolkit.storage.object_errors import is_taken, store_errors

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["AnyPath", "Lack", "ObjectPath", "is_object_url", "object_scheme", "path_of"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/(?P<rest>.*)", re.DOTALL)
_SCHEMES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "ssh": "sftp",
    **dict.fromkeys(("az", "abfss", "wasb", "wasbs"), "abfs"),
}
"""Hadoop's names of stores, with fsspec's."""
_INSTALL = {
    "s3": "pip install 'exactsink[s3]'",
    "abfs": "pip install 'exactsink[azure]'",
    "gs": "pip install 'exactsink[gcs]'",
    "webhdfs": "pip install 'exactsink[hdfs]'",
}
_NO_WORKSPACE = "use the URL of the object store behind it: s3://, abfss:// or gs://"
_LISTINGS = "with listings that show each write at once"
_PROVEN = {
    "s3": "AWS S3, MinIO or versitygw",
    "abfs": "Azure Blob Storage itself, without an emulator or a proxy",
    "gs": "Google Cloud Storage itself, without an emulator or a proxy",
    "webhdfs": "HDFS by WebHDFS of Hadoop 3",
    "sftp": "OpenSSH's server",
}
_READ_AHEAD = 8 * 2**20


class Lack(NamedTuple):
    """Something that a store can't do, and the fix."""

    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """One name in a store, `s3://bucket/key`.

    Paths with one name are equal. Pickles; each process opens its connections.
    """

    url: str
    fs: AbstractFileSystem = field(compare=False, repr=False)

    @classmethod
    def of(cls, url: str, **options: Any) -> ObjectPath:
        """Open the store of a URL; Hadoop's schemes are accepted. `options` are fsspec's options for that store.

        Raises ConfigError for a scheme that fsspec does not know, or whose package is not installed.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise ConfigError(f"{url} is not a URL", next="write scheme://bucket/path, or a local path")
        scheme = object_scheme(url)
        plain = f"{scheme}:/{found['rest'].rstrip('/')}"
        try:
            kind = _kind(scheme)
            if scheme == "s3":
                options = {"max_concurrency": 1, **options}  # otherwise fsspec stats each object before it reads
            fs = kind(**{**kind._get_kwargs_from_urls(plain), "use_listings_cache": False, **options})
        except (ImportError, OSError, TypeError, ValueError) as error:
            install = _INSTALL.get(scheme, "install the package that brings it to fsspec")
            fix = _NO_WORKSPACE if scheme == "dbfs" else install
            raise ConfigError(f"no file system for {scheme}:", why=str(error), next=fix) from error
        return cls(plain, fs)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.url}/{name}", self.fs)

    @property
    def scheme(self) -> str:
        """fsspec's name for this kind of store."""
        return object_scheme(self.url)

    @property
    def renames(self) -> bool:
        """Whether files get their names by a rename here, as in a local folder."""
        return hasattr(self.fs, "give_name")

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
        with suppress(FileNotFoundError):
            self.info()
            return True
        return False

    def info(self) -> ObjectInfo:
        """Return the object's size and time. Raises FileNotFoundError."""
        with store_errors(self.url):
            return info_of(self.fs.info(self.url, refresh=True))

    def read_bytes(self) -> bytes:
        """Read the object whole. Raises FileNotFoundError."""
        with store_errors(self.url):
            return bytes(self.fs.cat_file(self.url))

    def read_text(self) -> str:
        return self.read_bytes().decode()

    @contextmanager
    def reading(self) -> Iterator[IO[bytes]]:
        """Open the object to read it from front to back, some bytes ahead. Raises FileNotFoundError."""
        with store_errors(self.url), self.fs.open(self.url, "rb", block_size=_READ_AHEAD) as file:
            yield file

    def names(self) -> list[str]:
        """List the names directly below this one; empty if there are none."""
        return list(self.listed())

    def listed(self, *, deep: bool = False) -> dict[str, ObjectInfo]:
        """List the names directly below this one, with size and time; a folder has size 0.

        `deep` lists all objects below, with names relative to this one.
        """
        with store_errors(self.url):
            return dict(entries(self.fs, self.url, deep=deep))

    def create(self, data: bytes) -> bool:
        """Create an object under a free name. Return whether this call did. Durable, and never partly visible.

        False may also mean that an earlier try of this call succeeded and its answer was lost. A caller who must know
        compares the object's content.
        """
        with store_errors(self.url):
            try:
                self.fs.pipe_file(self.url, data, mode="create")
            except OSError as error:
                if is_taken(error):
                    return False
                raise
        return True

    def replace(self, data: bytes) -> None:
        """Create or replace the object. Durable, and never partly visible."""
        with store_errors(self.url):
            self.fs.pipe_file(self.url, data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object. A store may not say whether it was there."""
        with suppress(*[FileNotFoundError] if missing_ok else []), store_errors(self.url):
            self.fs.rm_file(self.url)

    def unlink_below(self, names: Iterable[str]) -> None:
        """Remove objects below this one, with as few requests as the store allows. Idempotent."""
        with store_errors(self.url):
            delete(self.fs, [f"{self.url}/{name}" for name in names])

    def sync(self) -> None:
        """Make the names directly below this one durable, if the store does not do so itself. Raises SyncFailed."""
        if hasattr(self.fs, "sync"):
            with store_errors(self.url):
                self.fs.sync(self.url)

    def uploads(self, *, everywhere: bool = True) -> Sequence[Upload]:
        """List the unfinished uploads of objects below this name; none if the store can't list them.

        Some servers can't search by a name. `everywhere` then searches the whole bucket.
        """
        with store_errors(self.url):
            return uploads(self.fs, self.url, everywhere=everywhere)

    def abort_below(self, upload: Upload) -> None:
        """Drop an unfinished upload below this name. Idempotent."""
        with store_errors(self.url):
            abort_upload(self.fs, f"{self.url}/{upload.name}", upload.upload_id)

    def instead(self, wanted: str) -> str:
        """Return the fix for a store that lacks something: a store of its kind that has it."""
        return f"use a store {wanted}, for example {_PROVEN.get(self.scheme, _PROVEN['s3'])}"

    def why_no_creates(self) -> Lack | None:
        """Try the operations that a journal needs below this name. Return an operation that it lacks, if any.

        Leaves no object. Raises OSError.
        """
        conditions = self.instead("with conditional writes" + " (If-None-Match)" * (self.scheme in ("s3", "abfs")))
        name = f"try-{secrets.token_hex(8)}"
        tried = self / name
        try:
            if not tried.create(b"first") and not (tried.exists() and tried.read_bytes() == b"first"):
                return Lack("it refuses to create an object although none has that name", conditions)
            if tried.create(b"second") or tried.read_bytes() != b"first":
                return Lack("it overwrites an object that was to be created only if it is absent", conditions)
            if name not in self.names():
                return Lack("it does not list an object that was just written", self.instead(_LISTINGS))
        finally:
            tried.unlink(missing_ok=True)
        late = Lack("it lists an object that was just removed", self.instead(_LISTINGS))
        return late if name in self.names() else None

    def try_uploads(self) -> None:
        """Try the operations on S3 that large staged files need: uploads are completed, listed and aborted.

        Leaves no object. Raises OSError.
        """
        name = f"try-{secrets.token_hex(8)}"
        with store_errors(self.url):
            for end in ("discard", "commit"):
                with self.fs.open(f"{self.url}/{name}", "wb", autocommit=False) as upload:
                    upload.write(b"tried")
                uploads(self.fs, self.url, everywhere=True)
                getattr(upload, end)()
        (self / name).info()
        self.unlink_below([name])


AnyPath = Path | ObjectPath


def _kind(scheme: str) -> Any:
    """Return the class of a store's file system. Raises ImportError or ValueError if it is missing."""
    if scheme == "s3":
        from exactsink.toolkit.storage.object_answers import CheckedS3

        return CheckedS3
    if scheme == "abfs":
        from exactsink.toolkit.storage.azure_files import AzureFiles

        return AzureFiles
    if scheme == "gs":
        from exactsink.toolkit.storage.gcs_files import GcsFiles

        return GcsFiles
    if scheme == "webhdfs":
        from exactsink.toolkit.storage.hdfs_files import HdfsFiles

        return HdfsFiles
    from fsspec import get_filesystem_class

    return get_filesystem_class(scheme)


def is_object_url(text: str) -> bool:
    """Return whether a path names an object store: it has a scheme other than `file:`."""
    found = _URL.fullmatch(text)
    return found is not None and found["scheme"].lower() != "file"


def object_scheme(url: str) -> str:
    """Return fsspec's name for the store of a URL, for example `s3` for Hadoop's s3a."""
    scheme = url.partition(":")[0].lower()
    return _SCHEMES.get(scheme, scheme)


def path_of(text: str) -> AnyPath:
    """Return the path that a text names: in a store if it is a URL, otherwise local."""
    return ObjectPath.of(text) if is_object_url(text) else Path(text)

"""The `files` backend: its options and its traits."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import pyarrow as pa
from pydantic import ValidationInfo, field_validator, model_validator

from exactsink.contract import Committer, JobContext, Traits, Txn, Writer
from exactsink.toolkit.local_paths import real_path
from exactsink.toolkit.storage import AnyPath, ObjectPath, is_object_url, object_scheme
from exactsink.toolkit.tabular import TabularBackend, TabularOptions
from exactsink_files.committer import FilesCommitter
from exactsink_files.links import Links
from exactsink_files.places import FilePlace, root_of
from exactsink_files.renames import Renames, SentFiles
from exactsink_files.s3 import S3, open_s3
from exactsink_files.stores import Store
from exactsink_files.upload_files import UploadFiles
from exactsink_files.uploads import Uploads
from exactsink_files.votes import is_below
from exactsink_files.writer import FilesWriter, HiddenFiles, TempFolder

__all__ = ["FilesBackend", "FilesOptions", "store_of"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?(?P<path>/.*|)", re.DOTALL)
_BUCKETS = {
    "s3": (r"[^@:?#\s]+", "s3://bucket/path"),
    "gs": (r"[^@:?#\s]+", "gs://bucket/path"),
    "abfs": (
        r"[^@:?#\s]+(@[^@:?#\s]+)?",
        "abfss://container@account.dfs.core.windows.net/path, or az://container/path",
    ),
}
"""By store: the pattern of a URL's host, and an example of a URL."""


class FilesOptions(TabularOptions):
    """Options of a sink that writes files. A relative `path` begins at the job file's folder.

    `target_file_size` is a number of B, KB (1,024 B), MB or GB. A file that has reached this size gets no more rows. If
    you leave the option out, each task writes one file for each partition folder.
    """

    path: str
    """The folder for the files: a local path, `s3://bucket/path` (`s3a`, `s3n`), `gs://bucket/path`,
    `az://container/path`, `abfss://container@account.dfs.core.windows.net/path`, `sftp://user@host:port/path`, or
    `webhdfs://user@host:port/path` with the web address of HDFS's NameNode."""
    on_schema_change: Literal["fail", "add_columns", "allow"] = "fail"
    """The columns that an epoch may have. `fail`: the same as in the epoch before. `add_columns`: the same, and new
    ones. `allow`: any. exactsink refuses any other epoch before its first row."""
    endpoint_url: str | None = None
    """For S3: the store's address. Default: `AWS_ENDPOINT_URL`, else Amazon's."""
    allow_folded_names: bool = False
    """Accept text in `partition_by` if the file system treats two names as one, for example `a=X` and `a=x`. One folder
    then has the rows of both values, and readers see one value for all of them."""
    profile: str | None = None
    """For S3: the profile with the credentials. Default: `AWS_PROFILE`."""

    @field_validator("path")
    @classmethod
    def _usable(cls, path: str, info: ValidationInfo) -> str:
        url = _URL.fullmatch(path)
        scheme = "file" if url is None else object_scheme(path)
        if url is not None and scheme in _BUCKETS:
            return _store_url(scheme, url["host"] or "", url["path"])
        if url is not None and scheme in ("sftp", "webhdfs"):
            return _server_url(scheme, url["host"] or "", url["path"])
        if scheme != "file":
            known = ", ".join(f"{each}://" for each in (*_BUCKETS, "sftp", "webhdfs"))
            raise ValueError(f"{scheme}: is not supported: give a local path, or a URL that begins with {known}")
        if not path:
            raise ValueError("give the folder that the files go to")
        return real_path(path, info.context)

    @field_validator("endpoint_url")
    @classmethod
    def _without_secrets(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/@?#]+/?", url):
            raise ValueError("give http://HOST:PORT or https://HOST:PORT; credentials come from the environment")
        return url

    @model_validator(mode="after")
    def _columns_have_names(self) -> FilesOptions:
        if self.format == "csv" and self.on_schema_change == "add_columns":
            raise ValueError('CSV has columns by position, so readers misread new ones: set on_schema_change = "allow"')
        return self

    @model_validator(mode="after")
    def _store_options_have_a_use(self) -> FilesOptions:
        if not self.in_s3 and (self.endpoint_url is not None or self.profile is not None):
            raise ValueError("endpoint_url and profile are for a path on s3://")
        return self

    @property
    def in_s3(self) -> bool:
        """Return whether the target is in S3."""
        return self.path.startswith("s3://")

    @property
    def in_store(self) -> bool:
        """Return whether the target is in an object store."""
        return object_scheme(self.path) in _BUCKETS


def _store_url(scheme: str, bucket: str, path: str) -> str:
    named, written = _BUCKETS[scheme]
    if not re.fullmatch(named, bucket):
        raise ValueError(f"write {written}; credentials come from the environment, a profile or a role")
    if path.strip("/") and not is_below(path.strip("/")):
        raise ValueError("the path in the bucket has an empty name, `.` or `..` in it")
    return f"{scheme}://{bucket}/{path.strip('/')}".rstrip("/")


def _server_url(scheme: str, host: str, path: str) -> str:
    if not re.fullmatch(r"(?:[^@:/?#\s]+@)?[^@:/?#\s]+(?::\d+)?", host):
        raise ValueError(f"write {scheme}://user@host:port/path, never a password; SFTP keys are in ~/.ssh or an agent")
    if not is_below(path.strip("/")):
        raise ValueError("give the whole path of the folder on the server, without an empty name, `.` or `..`")
    return f"{scheme}://{host}/{path.strip('/')}"


def store_of(root: ObjectPath) -> Store:
    """Return the store of a target, with its calls."""
    if root.scheme == "s3":
        return S3(root)
    if root.scheme == "gs":  # imported here: its library may not be installed
        from exactsink_files.gcs import Gcs

        return Gcs(root)
    from exactsink_files.azure import Azure

    return Azure(root)


class FilesBackend(TabularBackend):
    """Write files that get their final names after the decision. Each appears whole, an epoch's files one by one."""

    Options = FilesOptions
    options: FilesOptions

    @property
    def strategy(self) -> str:
        return "multipart" if self.options.in_store else "rename"

    @property
    def on_schema_change(self) -> Literal["fail", "add_columns", "allow"]:
        return self.options.on_schema_change

    @property
    def target(self) -> str:
        return self.options.path if is_object_url(self.options.path) else f"file://{self.options.path}"

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the address of an S3 server that is set and reached without a proxy; its library tries for 20 s."""
        given = self.options.endpoint_url or os.getenv("AWS_ENDPOINT_URL_S3") or os.getenv("AWS_ENDPOINT_URL")
        if not self.options.in_s3 or not given or getproxies():
            return ()
        url = urlsplit(given)
        return (f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}",)

    @property
    def traits(self) -> Traits:
        """Return traits: a rule of the bucket, its service, or a person may drop uploads, and with them votes."""
        lost, judged = self.options.in_store, self.options.format == "parquet"
        return Traits(atomic_visibility=False, can_lose_votes=lost, marks=True, validates_rows=judged, appends=True)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        self.check_rows(txn, schema)
        if not is_object_url(self.options.path):
            return FilesWriter(txn, schema, self.options, TempFolder(txn, *json.loads(ticket)))
        root = self._root(ticket.decode())
        assert isinstance(root, ObjectPath)
        hidden: HiddenFiles[Any] = SentFiles(txn, root) if root.renames else UploadFiles(txn, store_of(root))
        return FilesWriter(txn, schema, self.options, hidden)

    def committer(self, ctx: JobContext) -> Committer:
        root = self.root
        if isinstance(root, Path):
            place: FilePlace = Links(root, ctx.file_mode)
        else:
            place = Renames(root) if root.renames else Uploads(store_of(root))
        exact = () if self.options.allow_folded_names else self.options.partition_by
        return FilesCommitter(ctx, place, self.problems, exact)

    @property
    def root(self) -> AnyPath:
        """Return the target's folder, with the connection that the options set. Raises ConfigError."""
        return self._root(self.options.path)

    def _root(self, root: str) -> AnyPath:
        if root.startswith("s3://"):
            return open_s3(root, self.options.endpoint_url, self.options.profile)
        return root_of(root)

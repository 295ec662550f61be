"""The `files` backend: its options, and what it says of itself."""

from __future__ import annotations

import re

import pyarrow as pa
from pydantic import ValidationInfo, field_validator

from exactsink.contract import Committer, JobContext, Traits, Txn, Writer
from exactsink.toolkit.local_paths import real_path
from exactsink.toolkit.tabular import TabularBackend, TabularOptions
from exactsink_files.committer import FilesCommitter
from exactsink_files.writer import FilesWriter

__all__ = ["FilesBackend", "FilesOptions"]

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?(?P<path>/.*|)", re.DOTALL)


class FilesOptions(TabularOptions):
    """Where the files go and what they look like. `path` is made absolute where the options are first read.

    `target_file_size` is a number of B, KB (1,024 B), MB or GB: a file that has reached it gets no more rows. Without
    it a participant writes one file per partition folder.
    """

    path: str
    """The folder that the files go to: a local path, or `file:///path`."""

    @field_validator("path")
    @classmethod
    def _local(cls, path: str, info: ValidationInfo) -> str:
        url = _URL.fullmatch(path)
        if url is not None:
            if url["scheme"].lower() != "file":
                raise ValueError(
                    f"{url['scheme']}: is not a local path: give a path or a file:// URL (object stores come later)"
                )
            if url["host"] not in (None, "", "localhost"):
                raise ValueError(f"file://{url['host']}/ names another machine: write file:///path, or mount it")
            path = url["path"]
        if not path or "\0" in path:
            raise ValueError("give the folder that the files go to")
        return "/" + real_path(path, info.context).lstrip("/")  # a leading `//` would be kept


class FilesBackend(TabularBackend):
    """Files that get their names after the decision; each appears whole, an epoch's files one after another."""

    Options = FilesOptions
    options: FilesOptions

    @property
    def strategy(self) -> str:
        return "rename"

    @property
    def target(self) -> str:
        return f"file://{self.options.path}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=False, can_lose_votes=False, visible_early=False, marks=True)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        self.check_rows(txn, schema)
        return FilesWriter(txn, schema, ticket.decode(), self.options)

    def committer(self, ctx: JobContext) -> Committer:
        return FilesCommitter(ctx, self.options.path, self.problems)

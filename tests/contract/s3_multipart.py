"""Skeleton: a multipart upload per file, begun and filled in a task, completed by the driver. Fits as it is.

The object's key holds `Txn.id`, so an upload found by listing reads back. Listing is not to be trusted on every server:
the upload ids are kept in records of our own beside the data, and the ticket reports a writer where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field, SecretStr

from exactsink.contract import (
    Backend,
    BackendOptions,
    Committable,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Traits,
    Txn,
    Undecided,
    Writer,
)


class S3Options(BackendOptions):
    endpoint: str
    bucket: str
    prefix: str
    secret_key: SecretStr
    part_bytes: int = Field(default=16 << 20, ge=5 << 20)
    strategy: Literal["multipart"] = "multipart"


@dataclass(frozen=True)
class Part:
    number: int
    etag: str
    size: int


@dataclass(frozen=True)
class UploadVote:
    """The payload of a committable: one participant may fill several objects (partition folders)."""

    key: str
    upload_id: str
    parts: tuple[Part, ...]
    etag: str  # of the completed object, computed from the parts'


class S3Writer(Writer):
    def __init__(self, options: S3Options, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._options = options
        self._txn = txn
        self._schema = schema
        self._ticket = ticket

    def write(self, batch: pa.RecordBatch) -> None:
        # at the first: put the record of the intended key, create_multipart_upload with metadata txn.id, put the record
        # with the upload id; upload_part whenever a part is full
        raise NotImplementedError

    def pre_commit(self) -> Committable:
        raise NotImplementedError  # last upload_part, list_parts compared with ours; deadline: the lifecycle rule's

    def abort(self) -> None:
        raise NotImplementedError  # abort_multipart_upload


class S3Committer(Committer):
    def __init__(self, options: S3Options, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        # get_bucket_lifecycle_configuration: AbortIncompleteMultipartUpload against the longest pause (not reported);
        # a probe upload: listed by prefix, completed by If-None-Match?
        raise NotImplementedError

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        raise NotImplementedError  # no call; the prefix of the records, and the lifecycle rule's days

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        # complete_multipart_upload with our part list; NoSuchUpload: head_object, our ETag and metadata
        # AlreadyCommitted; no object, or another's: Unknown (it may have been completed and deleted since)
        raise NotImplementedError

    def abort(self, undecided: Undecided) -> None:
        raise NotImplementedError  # read the txn's record, abort_multipart_upload (404 is done), delete the record

    def in_doubt(self) -> Iterable[InDoubt]:
        raise NotImplementedError  # the records under {prefix}/_exactsink/{job}.{sink}., names are Txn.id

    def close(self) -> None:
        raise NotImplementedError  # the client


class S3Backend(Backend):
    Options = S3Options
    options: S3Options

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"s3://{self.options.bucket}/{self.options.prefix}"

    @property
    def traits(self) -> Traits:
        return Traits(can_lose_votes=True)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return S3Writer(self.options, txn, schema, ticket)

    def committer(self, ctx: JobContext) -> Committer:
        return S3Committer(self.options, ctx)


SAMPLE: Backend = S3Backend(
    S3Options.model_validate(
        {"endpoint": "http://localhost:9000", "bucket": "lake", "prefix": "orders", "secret_key": "not a secret"}
    )
)

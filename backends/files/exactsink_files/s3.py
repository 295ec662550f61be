"""The calls on an S3 store: multipart uploads, and the objects that exist."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.storage import ObjectPath, Upload, s3_pages, store_code, store_errors
from exactsink_files.preflight_s3 import lifecycle_problems, remedy_of
from exactsink_files.stores import AT_ONCE, ObjectHead, Proof, Store
from exactsink_files.votes import Part, VotedFile

__all__ = ["S3", "open_s3"]

_SLOWEST_ANSWER = 120
"""Seconds: a server may copy all parts of a file before it answers that the file is complete."""
_NO_CONDITION = frozenset({"NotImplemented", "501"})
_ABSENT = frozenset({"NoSuchUpload", "NoSuchKey", "404"})


def open_s3(url: str, endpoint_url: str | None, profile: str | None) -> ObjectPath:
    """Open a target in S3, with botocore's usual credentials. Raises ConfigError without s3fs."""
    given = {"endpoint_url": endpoint_url, "profile": profile}
    config = {"max_pool_connections": AT_ONCE, "read_timeout": _SLOWEST_ANSWER}
    return ObjectPath.of(url, config_kwargs=config, **{name: value for name, value in given.items() if value})


class S3(Store):
    """A bucket. botocore repeats requests by itself."""

    notes = "some"
    proofs: Mapping[str, Proof] = {
        **dict.fromkeys(("NoSuchUpload", "404"), "gone"),
        **dict.fromkeys(("InvalidPart", "InvalidPartOrder", "EntityTooSmall"), "parts differ"),
        **dict.fromkeys(
            ("PreconditionFailed", "412", "ConditionalRequestConflict", "OperationAborted", "409"), "condition"
        ),
    }
    ends_by = "a lifecycle rule of the bucket (AbortIncompleteMultipartUpload)"

    def create(self, key: str, metadata: Mapping[str, str]) -> str:
        return str(self._call("create_multipart_upload", Key=key, Metadata=metadata)["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        answer = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data)
        return Part(number, len(data), answer["ETag"])

    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str] | None = None) -> None:
        """Complete an upload, which has its metadata since it was begun.

        A success proves nothing: servers may report it for any object of that name. versitygw does so for a repeat
        after it died in the first call.
        """
        named = {"Parts": [{"PartNumber": part.number, "ETag": part.etag} for part in parts]}
        wanted = {"Key": key, "UploadId": upload, "MultipartUpload": named}
        try:
            self._call("complete_multipart_upload", **wanted, IfNoneMatch="*")
        except OSError as error:
            if store_code(error) not in _NO_CONDITION:
                raise
            self._call("complete_multipart_upload", **wanted)

    @contextmanager
    def completes_sent(self) -> Iterator[Mapping[str, int]]:
        sent: Counter[str] = Counter()

        def count(request: Any, **_: object) -> None:
            sent[parse_qs(urlsplit(request.url).query)["uploadId"][0]] += 1

        events = self._fs.s3.meta.events
        events.register("before-send.s3.CompleteMultipartUpload", count)
        try:
            yield sent
        finally:
            events.unregister("before-send.s3.CompleteMultipartUpload", count)

    def abort(self, key: str, upload: str) -> None:
        self._found("abort_multipart_upload", Key=key, UploadId=upload)

    def parts(self, key: str, upload: str) -> list[Part] | None:
        with _absent_is_none():
            pages = s3_pages(self._call, "list_parts", Key=key, UploadId=upload)
            found = [part for page in pages for part in page.get("Parts", ())]
            return [Part(part["PartNumber"], part["Size"], part["ETag"]) for part in found]
        return None

    def head(self, key: str) -> ObjectHead | None:
        found = self._found("head_object", Key=key)
        if found is None:
            self._call("list_objects_v2", Prefix=key, MaxKeys=1)  # a HEAD does not show that the bucket is missing
            return None
        encrypted = found.get("SSECustomerAlgorithm") or found.get("ServerSideEncryption") not in (None, "", "AES256")
        return ObjectHead(found["ContentLength"], found.get("Metadata", {}), found["ETag"], not encrypted)

    def is_made_of(self, held: ObjectHead, parts: Sequence[Part]) -> bool:
        tags = [part.etag.strip('"') for part in parts]
        if not held.plain_etag or not all(re.fullmatch("[0-9a-f]{32}", tag) for tag in tags):
            return True
        whole = hashlib.md5(b"".join(map(bytes.fromhex, tags)), usedforsecurity=False).hexdigest()
        shape = re.fullmatch(r"[0-9a-f]{32}-(\d+)", held.etag.strip('"'))
        return shape is None or held.etag.strip('"') == f"{whole}-{len(tags)}"

    def waiting(self, files: Sequence[VotedFile]) -> set[str]:
        listed = {upload.upload_id for upload in self.uploads(self.prefix)}
        return {file.temp for file in files if file.temp in listed}

    def unfinished(self, *, everywhere: bool) -> Sequence[Upload]:
        found = list(self.uploads(self.prefix))
        if not found and everywhere and self.prefix:
            found = [upload for upload in self.uploads("") if upload.name.startswith(self.prefix)]
        return found

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List unfinished uploads, by key. Some servers find them only by a whole key, or only without a prefix."""
        for page in s3_pages(self._call, "list_multipart_uploads", Prefix=prefix):
            for found in page.get("Uploads", ()):
                yield Upload(found["Key"], found["UploadId"], found["Initiated"].timestamp())

    def objects(self, prefix: str, *, deep: bool = False) -> Iterator[tuple[str, float]]:
        grouped = {} if deep else {"Delimiter": "/"}
        for page in s3_pages(self._call, "list_objects_v2", Prefix=prefix, **grouped):
            for found in page.get("Contents", ()):
                yield found["Key"], found["LastModified"].timestamp()

    def lifecycle(self) -> list[dict[str, Any]]:
        """Return the rules of the bucket's lifecycle. Raises OSError with S3's code, also if there are no rules."""
        return list(self._call("get_bucket_lifecycle_configuration").get("Rules", ()))

    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        return lifecycle_problems(self.lifecycle, self.prefix, root, ctx)

    def refused(self, error: OSError, root: str) -> str:
        return remedy_of(error, root)

    def _found(self, method: str, **given: Any) -> dict[str, Any] | None:
        with _absent_is_none():
            return self._call(method, **given)
        return None

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        with store_errors(self.root.url):
            answer: dict[str, Any] = self._fs.call_s3(method, Bucket=self.bucket, **given)
            return answer


@contextmanager
def _absent_is_none() -> Iterator[None]:
    """End the block if an upload or object is absent; raise FileNotFoundError if the bucket is."""
    try:
        yield
    except FileNotFoundError as absent:
        if store_code(absent) not in _ABSENT:
            raise

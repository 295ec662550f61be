"""What the backend asks of an S3 store: multipart uploads, and what stands. Answers are values, errors are OSErrors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from exactsink.toolkit.storage import ObjectPath, Upload, s3_pages, store_code, store_errors
from exactsink_files.votes import Part

__all__ = ["S3", "ObjectHead", "in_parallel", "open_s3"]

AT_ONCE = 32
"""Requests on their way at a time, so that hundreds of files are a matter of a second."""
_SLOWEST_ANSWER = 120
"""Seconds: a server may copy the parts of a file before it answers that it is complete."""
_NO_CONDITION = frozenset({"NotImplemented", "501"})
_ABSENT = frozenset({"NoSuchUpload", "NoSuchKey", "404"})

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What a store says of an object."""

    size: int
    etag: str
    metadata: dict[str, str]
    plain_etag: bool
    """Whether its ETag is of MD5s, as it is unless a key of the user's or of a key service encrypts it."""


def open_s3(url: str, endpoint_url: str | None, profile: str | None) -> ObjectPath:
    """Open a target in S3. Credentials come the ordinary way. Raises ConfigError without s3fs."""
    given = {"endpoint_url": endpoint_url, "profile": profile}
    config = {"max_pool_connections": AT_ONCE, "read_timeout": _SLOWEST_ANSWER}
    return ObjectPath.of(url, config_kwargs=config, **{name: value for name, value in given.items() if value})


class S3:
    """Calls on keys below one URL. May be used by several threads."""

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        self._fs: Any = root.fs
        self.bucket, self.prefix, _ = self._fs.split_path(f"{root.url}/")
        self._objects = ObjectPath(f"s3://{self.bucket}", root.fs)

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def create(self, key: str, metadata: dict[str, str]) -> str:
        """Begin an upload; return its id."""
        return str(self._call("create_multipart_upload", Key=key, Metadata=metadata)["UploadId"])

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        answer = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=data)
        return Part(number, len(data), answer["ETag"])

    def complete(self, key: str, upload: str, parts: Sequence[Part]) -> None:
        """Let the object have its name, unless another has it, where the store has such conditions.

        That this succeeds proves nothing for an upload that was not seen to stand: a server may answer so for any
        object of that name. Nor does it for a repeat: versitygw answers so, too, when it died in the first call.
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
        """Count how often the Complete of each upload is sent: the libraries repeat it by themselves."""
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
        """Drop an upload and its parts. Idempotent."""
        self._found("abort_multipart_upload", Key=key, UploadId=upload)

    def parts(self, key: str, upload: str) -> list[Part] | None:
        """List an upload's parts; None when there is no such upload."""
        with _absent_is_none():
            pages = s3_pages(self._call, "list_parts", Key=key, UploadId=upload)
            found = [part for page in pages for part in page.get("Parts", ())]
            return [Part(part["PartNumber"], part["Size"], part["ETag"]) for part in found]
        return None

    def head(self, key: str) -> ObjectHead | None:
        """Look at an object; None when it is absent. Raises OSError for a bucket that is."""
        found = self._found("head_object", Key=key)
        if found is None:
            self._call("list_objects_v2", Prefix=key, MaxKeys=1)  # a HEAD does not say that the bucket is missing
            return None
        encrypted = found.get("SSECustomerAlgorithm") or found.get("ServerSideEncryption") not in (None, "", "AES256")
        return ObjectHead(found["ContentLength"], found["ETag"], found.get("Metadata", {}), not encrypted)

    def get(self, key: str) -> bytes | None:
        """Read a small object; None when it is absent."""
        try:
            return (self._objects / key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes, **condition: str) -> None:
        self._call("put_object", Key=key, Body=data, **condition)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, by one request for up to a thousand. Idempotent."""
        self._objects.unlink_below(keys)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List unfinished uploads, by key. Some servers find them by a whole key only, or without a prefix only."""
        for page in s3_pages(self._call, "list_multipart_uploads", Prefix=prefix):
            for found in page.get("Uploads", ()):
                yield Upload(found["Key"], found["UploadId"], found["Initiated"].timestamp())

    def objects(self, prefix: str, *, deep: bool = False) -> Iterator[tuple[str, float]]:
        """List objects of a prefix, and when each was written, in Unix seconds; `deep`: also with a `/` behind it."""
        grouped = {} if deep else {"Delimiter": "/"}
        for page in s3_pages(self._call, "list_objects_v2", Prefix=prefix, **grouped):
            for found in page.get("Contents", ()):
                yield found["Key"], found["LastModified"].timestamp()

    def lifecycle(self) -> list[dict[str, Any]]:
        """Return the rules of the bucket's lifecycle. Raises OSError, with S3's own code where it has none."""
        return list(self._call("get_bucket_lifecycle_configuration").get("Rules", ()))

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
    """End the block where an upload or object is absent; raise what says that the bucket is."""
    try:
        yield
    except FileNotFoundError as absent:
        if store_code(absent) not in _ABSENT:
            raise


def in_parallel(call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """Make a call for each item, many at a time; an error leaves out what had not begun, and is raised in the end."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

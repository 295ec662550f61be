"""Google Cloud Storage as `CloudFiles`. Credentials are Google's own: GOOGLE_APPLICATION_CREDENTIALS, or a role."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud.storage import Blob, Bucket, Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests import RequestException

from exactsink.toolkit.storage.cloud_files import CONNECT_SECONDS, LIBRARY_FAILED, READ_SECONDS, CloudFiles
from exactsink.toolkit.storage.object_calls import ObjectInfo

__all__ = ["ONCE", "GcsFiles"]

ONCE: dict[str, Any] = {"retry": None, "timeout": (CONNECT_SECONDS, READ_SECONDS)}
"""The arguments of every request."""


class GcsFiles(CloudFiles):
    """Files in Google's buckets."""

    protocol = ("gs",)
    taken = frozenset({"412"})

    def connect(self, bucket: str) -> Bucket:
        return Client(project=None).bucket(bucket)  # a login needs no default project

    def said(self, error: Exception) -> tuple[int, str] | None:
        if isinstance(error, GoogleAPICallError):
            return int(error.code or LIBRARY_FAILED), str(error.code or "")
        if isinstance(error, InvalidResponse):
            return error.response.status_code, str(error.response.status_code)
        if isinstance(error, RequestException | TransportError | DataCorruption):
            return LIBRARY_FAILED, ""
        if isinstance(error, GoogleAuthError):  # a metadata server that is away comes inside a RefreshError
            away = error.retryable or any(isinstance(each, TransportError) for each in error.args)
            return LIBRARY_FAILED if away else 401, ""
        return None

    def blob(self, bucket: str, key: str, **given: Any) -> Blob:
        """Return an object, unread. `generation` chooses one of the objects that had this name."""
        found: Blob = self.client(bucket).blob(key, **given)
        return found

    def look(self, bucket: str, key: str) -> Blob:
        """Return an object with its properties. Raises FileNotFoundError."""
        blob = self.blob(bucket, key)
        with self._bucket_exists(bucket, key):
            self.call(lambda: blob.reload(**ONCE))
        return blob

    def head(self, bucket: str, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        found = self.look(bucket, key)
        return _info(found), found.metadata or {}

    def read(self, bucket: str, key: str, start: int | None, end: int | None) -> bytes:
        if end is not None and end <= (start or 0):
            return b""
        last, blob = None if end is None else end - 1, self.blob(bucket, key)
        with self._bucket_exists(bucket, key):
            return self.call(lambda: bytes(blob.download_as_bytes(start=start, end=last, raw_download=True, **ONCE)))

    def write(self, bucket: str, key: str, data: bytes | IO[bytes], *, create: bool = False) -> str:
        """Write an object; return its generation."""
        condition = {"if_generation_match": 0} if create else {}

        def upload() -> str:
            blob = self.blob(bucket, key)
            source = io.BytesIO(data) if isinstance(data, bytes) else data
            blob.upload_from_file(source, rewind=True, size=source.seek(0, io.SEEK_END), **condition, **ONCE)
            return str(blob.generation)

        with self._bucket_exists(bucket, key):
            return self.call(upload)

    def remove(self, bucket: str, key: str) -> None:
        self.call(lambda: self.blob(bucket, key).delete(**ONCE))

    def compose(
        self, bucket: str, key: str, sources: list[tuple[str, int]], metadata: Mapping[str, str] | None = None
    ) -> str:
        """Make an object of exactly these generations of others, unless the name is taken. Return its generation."""

        def composed() -> str:
            made, parts = self.blob(bucket, key), [self.blob(bucket, name) for name, _ in sources]
            made.metadata, made.content_type = dict(metadata or {}), "application/octet-stream"
            pinned = [generation for _, generation in sources]
            made.compose(parts, if_generation_match=0, if_source_generation_match=pinned, **ONCE)
            return str(made.generation)

        return self.call(composed)

    def rules(self, bucket: str) -> Bucket:
        """Return a bucket with its rules."""
        found: Bucket = self.client(bucket)
        with self._bucket_exists(bucket, ""):
            self.call(lambda: found.reload(**ONCE))
        return found

    def objects(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
        for name, info, _ in self.generations(bucket, prefix, deep=deep):
            yield name, info

    def generations(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo, int]]:
        """List as `objects` does, each key with its generation."""
        client, grouped = self.client(bucket).client, {} if deep else {"delimiter": "/"}

        def page(token: str | None) -> tuple[list[Blob], list[str], str | None]:
            """Get one page by a listing of its own: after a failed page, a shared listing would end as if complete."""
            listed = client.list_blobs(bucket, prefix=prefix, page_token=token, **grouped, **ONCE)
            return list(next(listed.pages)), sorted(listed.prefixes), listed.next_page_token

        token: str | None = None
        while True:
            try:
                found, folders, token = self.call(lambda token=token: page(token))  # type: ignore[misc]
            except FileNotFoundError as error:  # a prefix without objects is an empty list
                raise OSError(errno.ENODEV, f"the bucket does not exist: {error}") from error
            yield from ((blob.name, _info(blob), int(blob.generation)) for blob in found)
            yield from ((name, ObjectInfo(0), 0) for name in folders)
            if not token:
                return

    @contextmanager
    def _bucket_exists(self, bucket: str, key: str) -> Iterator[None]:
        """For a 404 in the block, list the bucket to find out whether the bucket is missing, and raise for that."""
        try:
            yield
        except FileNotFoundError:
            next(self.objects(bucket, key, deep=True), None)
            raise


def _info(found: Blob) -> ObjectInfo:
    return ObjectInfo(int(found.size), found.updated.timestamp() if found.updated else None)

"""Calls that send fewer requests to S3 than fsspec's, and report everything that S3 refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exactsink.toolkit.storage.object_errors import store_code

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["ObjectInfo", "Upload", "abort_upload", "delete", "entries", "info_of", "s3_pages", "uploads"]

_MOST_KEYS = 1000  # of one DeleteObjects request
_AT_ONCE = 16  # deletes at once, in a store without such a request


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's size in bytes, and when it was written (Unix seconds, None if unknown)."""

    size: int
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was neither completed nor aborted.

    Readers don't see it, and the store keeps its parts.
    """

    name: str
    upload_id: str
    begun: float


def entries(fs: AbstractFileSystem, url: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
    """List the names directly below a name or, with `deep`, all objects below it. Never from a cache."""
    if hasattr(fs, "objects"):
        bucket, prefix = _split(f"{url}/")
        for key, info in fs.objects(bucket, prefix, deep=deep):
            if name := key[len(prefix) :].rstrip("/"):
                yield name, info
        return
    if not hasattr(fs, "call_s3"):
        yield from _entries_by_fsspec(fs, url, deep=deep)
        return
    bucket, prefix = _split(f"{url}/")
    grouped = {} if deep else {"Delimiter": "/"}
    for page in s3_pages(fs.call_s3, "list_objects_v2", Bucket=bucket, Prefix=prefix, **grouped):
        for folder in page.get("CommonPrefixes", ()):
            yield folder["Prefix"][len(prefix) : -1], ObjectInfo(0)
        for found in page.get("Contents", ()):
            if name := found["Key"][len(prefix) :]:  # an empty key marks the folder, as Hadoop's S3A does
                yield name, ObjectInfo(int(found["Size"]), found["LastModified"].timestamp())


def _entries_by_fsspec(fs: AbstractFileSystem, url: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
    own = str(fs._strip_protocol(url)).rstrip("/")
    try:
        found = fs.find(url, detail=True).values() if deep else fs.ls(url, detail=True, refresh=True)
    except FileNotFoundError:
        return
    for each in found:
        if name := str(each["name"]).rstrip("/")[len(own) + 1 :]:
            yield name, info_of(each)


def delete(fs: AbstractFileSystem, urls: Sequence[str]) -> None:
    """Delete objects of one bucket, in this order if the requests have one. Idempotent.

    Raises OSError if an object could not be deleted.
    """
    if not hasattr(fs, "call_s3"):
        with ThreadPoolExecutor(_AT_ONCE if hasattr(fs, "objects") else 1) as pool:
            list(pool.map(lambda url: _delete_one(fs, url), urls))
        return
    for first in range(0, len(urls), _MOST_KEYS):
        places = [_split(url) for url in urls[first : first + _MOST_KEYS]]
        wanted = {"Objects": [{"Key": key} for _, key in places], "Quiet": True}
        answer = fs.call_s3("delete_objects", Bucket=places[0][0], Delete=wanted)
        for refused in answer.get("Errors", ()):
            text = f"{refused.get('Code')}: {refused.get('Message')}: {refused.get('Key')}"
            raise PermissionError(text) if refused.get("Code") == "AccessDenied" else OSError(text)


def _delete_one(fs: AbstractFileSystem, url: str) -> None:
    with suppress(FileNotFoundError):
        fs.rm_file(url)


def uploads(fs: AbstractFileSystem, url: str, *, everywhere: bool) -> list[Upload]:
    """List the unfinished uploads below a name; none if the store can't list them.

    Some servers can't search by a prefix. `everywhere` then searches the whole bucket.
    """
    if not hasattr(fs, "call_s3"):
        return []
    bucket, prefix = _split(f"{url}/")
    for asked in [prefix, ""] if everywhere else [prefix]:
        pages = s3_pages(fs.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=asked)
        listed = [each for page in pages for each in page.get("Uploads", ()) if each["Key"].startswith(prefix)]
        if listed:
            return [Upload(e["Key"][len(prefix) :], e["UploadId"], e["Initiated"].timestamp()) for e in listed]
    return []


def abort_upload(fs: AbstractFileSystem, url: str, upload_id: str) -> None:
    """Drop an upload and its parts. Idempotent."""
    bucket, key = _split(url)
    with suppress(FileNotFoundError):  # some servers forget an upload after its abort
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id)


def info_of(found: dict[str, Any]) -> ObjectInfo:
    """Convert fsspec's description of an object."""
    modified: Any = found.get("LastModified", found.get("mtime", found.get("last_modified")))
    seconds = modified.timestamp() if hasattr(modified, "timestamp") else modified
    return ObjectInfo(int(found.get("size") or 0), None if seconds is None else float(seconds))


def s3_pages(call: Callable[..., dict[str, Any]], method: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """List from S3 page by page until the list is complete. `NextMarker` of a page is the `Marker` of the next.

    If no upload is unfinished, `rclone serve s3` answers a listing of uploads with NoSuchUpload: the list is empty.
    """
    while True:
        try:
            page = call(method, **asked)
        except FileNotFoundError as error:
            if (method, store_code(error)) != ("list_multipart_uploads", "NoSuchUpload") or "KeyMarker" in asked:
                raise
            page = {}
        yield page
        if not page.get("IsTruncated"):
            return
        following = {name.removeprefix("Next"): value for name, value in page.items() if name.startswith("Next")}
        if following.items() <= asked.items():
            raise OSError(f"the store's answer to {method} is truncated, and lacks the marker of the next page")
        asked |= following


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key

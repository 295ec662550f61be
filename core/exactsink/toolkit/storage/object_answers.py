"""s3fs that believes no answer of S3 which was cut: a proxy may pass the status on, and lose the rest."""

from __future__ import annotations

import hashlib
import io
import re
from contextlib import closing
from typing import Any

from botocore.exceptions import FlexibleChecksumError
from botocore.parsers import ResponseParserError
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

__all__ = ["CheckedS3"]

_ALWAYS = {
    "complete_multipart_upload": {"ETag", "Key"},
    "create_multipart_upload": {"UploadId"},
    "get_bucket_lifecycle_configuration": {"Rules"},
    "head_object": {"ContentLength", "ETag"},
    "list_multipart_uploads": {"IsTruncated"},
    "list_objects_v2": {"IsTruncated", "Name"},
    "list_parts": {"IsTruncated"},
    "put_object": {"ETag"},
    "upload_part": {"ETag"},
}
"""Fields that every server gives. Answers that are empty by nature, for example to a DELETE, prove nothing anywhere."""


class CheckedS3(S3FileSystem):  # type: ignore[misc]
    """The calls of s3fs, where an answer that was cut is an error like a lost connection: the call may have been done.

    s3fs reads an object again then, some times; all other calls are the caller's to repeat, or to look after.
    """

    async def _call_s3(self, method: str, *given: Any, **asked: Any) -> Any:
        answer = await super()._call_s3(method, *given, **asked)
        if missing := _ALWAYS.get(method, set()) - answer.keys():
            raise _cut(method, f"without {' and '.join(sorted(missing))}")
        if method == "get_object":
            answer["Body"] = _Read(await self._whole(answer, asked))
        return answer

    call_s3 = sync_wrapper(_call_s3)

    async def _whole(self, answer: dict[str, Any], asked: dict[str, Any]) -> bytes:
        """Read the object, or the range of it, whole: proven by its MD5 where that is its ETag, else by its size."""
        try:
            with closing(answer["Body"]) as body:
                data: bytes = await body.read()
        except FlexibleChecksumError as error:
            raise _cut("get_object", str(error)) from error
        if "Range" in asked:
            first, last = map(int, re.findall(r"\d+", asked["Range"]))
            size = last + 1 - first
        elif answer.get("ETag", "").strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return data
        else:
            size = (await self._call_s3("head_object", Bucket=asked["Bucket"], Key=asked["Key"]))["ContentLength"]
        if len(data) != size:
            raise _cut("get_object", f"after {len(data)} bytes of {asked['Key']}")
        return data


class _Read(io.BytesIO):
    """A body that was read."""

    async def read(self) -> bytes:  # type: ignore[override]
        return self.getvalue()


def _cut(method: str, where: str) -> ResponseParserError:
    return ResponseParserError(f"the answer to {method} was cut {where}, by a proxy perhaps")

"""An s3fs that detects truncated answers of S3: a proxy may pass the status on, and lose the rest."""

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
"""Fields that every server returns. Answers that may be empty, for example to a DELETE, prove nothing."""


class CheckedS3(S3FileSystem):  # type: ignore[misc]
    """s3fs, with a truncated answer turned into an error like a lost connection: the call may have been done.

    s3fs then repeats a read a few times. The caller must repeat or check every other call.
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
        """Read the object, or a range of it.

        Its MD5 proves it complete if that is its ETag, otherwise its size does.
        """
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
    """The body of an answer that was read."""

    async def read(self) -> bytes:  # type: ignore[override]
        return self.getvalue()


def _cut(method: str, where: str) -> ResponseParserError:
    return ResponseParserError(f"the answer to {method} was cut {where}, by a proxy perhaps")

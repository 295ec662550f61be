"""The requests that this process sends to S3: counted, and what goes wrong with some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiobotocore.client
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

RIGHTS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "ListParts": "s3:ListMultipartUploadParts",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
"""What Amazon's S3 asks for each operation."""


class Calls:
    """Requests by the names of S3's operations. A retry below botocore's own is none."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self.ignored = ""  # a parameter that the store does not know
        self._faults: list[tuple[str, Callable[[Any], Any]]] = []
        real = aiobotocore.client.AioBaseClient._make_api_call

        async def call(client: Any, operation: str, asked: Any) -> Any:
            self.sent.append(operation)
            asked = {name: value for name, value in asked.items() if name != self.ignored}
            for fault in self._faults:
                if fault[0] == operation:
                    self._faults.remove(fault)
                    return await fault[1](lambda: real(client, operation, asked))
            return await real(client, operation, asked)

        patch.setattr(aiobotocore.client.AioBaseClient, "_make_api_call", call)

    def lose_answer(self, operation: str) -> None:
        """Let the next such request be done, and its answer be lost."""

        async def lost(do: Callable[[], Any]) -> Any:
            await do()
            raise ConnectionClosedError(endpoint_url="http://cut")

        self._faults.append((operation, lost))

    def answer(self, operation: str, answer: Any) -> None:
        """Answer the next such request so, and do nothing."""

        async def given(do: Callable[[], Any]) -> Any:
            return answer

        self._faults.append((operation, given))

    def refuse(self, operation: str, status: int, code: str, times: int = 1) -> None:
        """Answer the next such requests with an error, and do nothing."""

        async def refused(do: Callable[[], Any]) -> Any:
            answer = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, operation)  # type: ignore[arg-type]

        self._faults += [(operation, refused)] * times

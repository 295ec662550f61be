"""Azure Blob Storage as `CloudFiles`. A bucket is a container: its name, or `container@account.dfs.core.windows.net`.

If the URL names no account, it is that of AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT. Credentials come
from that connection string, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or azure-identity.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobPrefix, BlobProperties, ContainerClient

from exactsink.toolkit.storage.cloud_files import CONNECT_SECONDS, LIBRARY_FAILED, READ_SECONDS, CloudFiles, session
from exactsink.toolkit.storage.object_calls import ObjectInfo

__all__ = ["AzureFiles"]


class AzureFiles(CloudFiles):
    """Files in Azure's containers."""

    protocol = ("abfs",)
    taken = frozenset({"BlobAlreadyExists"})
    no_bucket = frozenset({"ContainerNotFound", "ContainerBeingDeleted"})

    def connect(self, bucket: str) -> ContainerClient:
        name, _, host = bucket.partition("@")
        options: dict[str, Any] = {
            "retry_total": 0,
            "transport": RequestsTransport(session=session(), session_owner=False),
            "connection_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
        }
        given = os.environ.get
        if text := given("AZURE_STORAGE_CONNECTION_STRING"):
            client = ContainerClient.from_connection_string(text, name, **options)
            if host and host.partition(".")[0] != client.account_name:
                why = f"AZURE_STORAGE_CONNECTION_STRING is for account {client.account_name}, but the URL names {host}"
                raise PermissionError(why)
            return client
        if not host and not (account := given("AZURE_STORAGE_ACCOUNT")):
            raise PermissionError(f"no account for container {name}: set AZURE_STORAGE_ACCOUNT")
        host = host.replace(".dfs.", ".blob.") or f"{account}.blob.core.windows.net"
        key = given("AZURE_STORAGE_KEY") or given("AZURE_STORAGE_SAS_TOKEN") or _identity()
        return ContainerClient(f"https://{host}", name, credential=key, **options)

    def said(self, error: Exception) -> tuple[int, str] | None:
        if isinstance(error, HttpResponseError):
            code = getattr(error, "error_code", None)
            unanswered = 401 if isinstance(error, ClientAuthenticationError) else LIBRARY_FAILED  # 401: no identity
            return error.status_code or unanswered, str(getattr(code, "value", code) or "")
        if isinstance(error, ServiceRequestError | ServiceResponseError):
            return LIBRARY_FAILED, ""
        return (401, "") if isinstance(error, AzureError) else None  # azure-identity found no credentials

    def head(self, bucket: str, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        found = self.properties(bucket, key)
        return _info(found), found.metadata or {}

    def properties(self, bucket: str, key: str) -> BlobProperties:
        """Return a blob's properties. Raises FileNotFoundError."""
        blob = self.client(bucket).get_blob_client(key)
        found: BlobProperties = self.call(lambda: blob.get_blob_properties())
        return found

    def read(self, bucket: str, key: str, start: int | None, end: int | None) -> bytes:
        blob = self.client(bucket).get_blob_client(key)
        length = None if end is None else end - (start or 0)
        if length == 0:
            return b""
        return self.call(lambda: bytes(blob.download_blob(start, length).readall()))

    def write(self, bucket: str, key: str, data: bytes | IO[bytes], *, create: bool = False) -> str:
        blob = self.client(bucket).get_blob_client(key)

        def upload() -> str:
            source = io.BytesIO(data) if isinstance(data, bytes) else data
            source.seek(0)
            return str(blob.upload_blob(source, overwrite=not create)["etag"])

        return self.call(upload)

    def remove(self, bucket: str, key: str) -> None:
        blob = self.client(bucket).get_blob_client(key)
        self.call(lambda: blob.delete_blob())

    def remove_same(self, bucket: str, key: str, etag: str) -> None:
        """Remove a blob if it still has this ETag. Raises OSError otherwise."""
        blob = self.client(bucket).get_blob_client(key)
        self.call(lambda: blob.delete_blob(etag=etag, match_condition=MatchConditions.IfNotModified))

    def objects(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
        client, begins = self.client(bucket), prefix or None
        pages = (client.list_blobs(begins) if deep else client.walk_blobs(begins)).by_page()
        while (page := self.call(lambda: next(pages, None))) is not None:
            for found in self.call(lambda page=page: list(page)):  # type: ignore[misc]
                yield found.name, ObjectInfo(0) if isinstance(found, BlobPrefix) else _info(found)


def _info(found: BlobProperties) -> ObjectInfo:
    return ObjectInfo(int(found.size), found.last_modified.timestamp() if found.last_modified else None)


def _identity() -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        fix = "set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_KEY, or pip install azure-identity"
        raise PermissionError(f"no credentials for Azure: {fix}") from error
    return DefaultAzureCredential()

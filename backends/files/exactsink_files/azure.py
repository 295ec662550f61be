"""The calls on Azure Blob Storage. An upload is a blob's blocks, which nobody sees until they are committed.

The service can neither begin nor abort an upload. So an upload is a prefix of its blocks' ids, and a blob has one
writer. An abort commits an empty blob of that name, which drops all blocks, and then removes the blob.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock, BlobClient

from exactsink.contract import Finding, JobContext
from exactsink_files.stores import ObjectHead, Proof, Store
from exactsink_files.votes import Part

__all__ = ["Azure"]

_DAY = 86_400
_KEPT_SECONDS = 7 * _DAY
"""How long the service keeps uncommitted blocks."""
_ABORTED = "exactsink_aborted"
_GIVE = (
    "give the account's key, a SAS or the role Storage Blob Data Contributor for {root}: set AZURE_STORAGE_ACCOUNT and "
    "AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or run under an identity"
)


class Azure(Store):
    """A container."""

    proofs: Mapping[str, Proof] = {"BlobAlreadyExists": "condition", "InvalidBlockList": "gone", "BlobNotFound": "gone"}
    ends_by = "the service, a week after the last block came,"

    def create(self, key: str, metadata: Mapping[str, str]) -> str:
        """Return a new name for an upload of this participant."""
        owner = hashlib.sha256(repr(sorted(metadata.items())).encode()).hexdigest()[:16]
        return f"{owner}{secrets.token_hex(8)}"

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        part = Part(number, len(data), _block(upload, number))
        self._fs.call(lambda: self._blob(key).stage_block(part.etag, data, length=len(data)))
        return part

    def sealed(self, key: str, upload: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Check that all blocks are there, because a sweep may have removed the first ones."""
        if self.parts(key, upload) != list(parts):
            raise OSError(errno.ECANCELED, f"blocks of {upload} are gone: a sweep removed them", key)
        return tuple(parts)

    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str] | None = None) -> None:
        self._commit(key, [part.etag for part in parts], metadata or {})

    def abort(self, key: str, upload: str) -> None:
        """Drop the blocks by committing an empty blob, then remove that blob, never a file. Idempotent.

        If a process died in between, the empty blob is still there, and its metadata identify it.
        """
        try:
            etag = self._commit(key, [], {_ABORTED: "1"})
        except FileExistsError:
            with suppress(FileNotFoundError):
                found = self._fs.properties(self.bucket, key)
                if found.size or _ABORTED not in (found.metadata or {}):
                    return
                etag = found.etag
        with suppress(FileNotFoundError):
            self._fs.remove_same(self.bucket, key, etag)

    def parts(self, key: str, upload: str) -> list[Part] | None:
        try:
            _, blocks = self._fs.call(lambda: self._blob(key).get_block_list("all"))
        except FileNotFoundError:
            return None
        sizes = {block.id: block.size for block in blocks if block.id.startswith(upload)}
        return [Part(int(name[len(upload) :]), sizes[name], name) for name in sorted(sizes)] or None

    def head(self, key: str) -> ObjectHead | None:
        try:
            found, metadata = self._fs.head(self.bucket, key)
        except FileNotFoundError:
            return None
        if not found.size and _ABORTED in metadata:  # an abort died before it removed its empty blob
            return None
        return ObjectHead(found.size, {name.replace("_", "-"): value for name, value in metadata.items()})

    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        if (pause := ctx.longest_pause_seconds) > _KEPT_SECONDS:
            message = f"{root}: the service deletes uncommitted blocks after 7 days, but the job may pause for"
            yield Finding("error", f"{message} {pause / _DAY:g}", "set the job's longest_pause to 7 days or less")

    def refused(self, error: OSError, root: str) -> str:
        if error.errno == errno.EACCES:
            return _GIVE.format(root=root)
        return "check the store, and AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"

    def _commit(self, key: str, blocks: Sequence[str], metadata: Mapping[str, str]) -> str:
        """Make a blob of blocks, unless the name is taken; return its ETag. Names of metadata must be identifiers."""
        named = {name.replace("-", "_"): value for name, value in metadata.items()}
        listed = [BlobBlock(block) for block in blocks]
        answer = self._fs.call(
            lambda: self._blob(key).commit_block_list(listed, metadata=named, match_condition=MatchConditions.IfMissing)
        )
        return str(answer["etag"])

    def _blob(self, key: str) -> BlobClient:
        client: BlobClient = self._fs.client(self.bucket).get_blob_client(key)
        return client


def _block(upload: str, number: int) -> str:
    return f"{upload}{number:06d}"

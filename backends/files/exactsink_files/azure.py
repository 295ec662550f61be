"""What the backend asks of Azure Blob Storage: blocks of a blob, which nobody sees until they are committed.

The service has no upload to begin or to abort. An upload is a name that its blocks' ids begin with, and a blob has one
writer. An abort makes an empty blob of the name, which takes all blocks with it, and removes it again.
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
from exactsink.toolkit.storage import store_code
from exactsink_files.stores import ObjectHead, Proof, Store
from exactsink_files.votes import Part

__all__ = ["Azure"]

_DAY = 86_400
_KEPT_SECONDS = 7 * _DAY
"""How long the service keeps blocks that nobody commits."""
_ABORTED = "exactsink_aborted"
_GIVE = (
    "give the account's key, a SAS or the role Storage Blob Data Contributor for {root}: set AZURE_STORAGE_ACCOUNT and "
    "AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or run under an identity"
)
_PROOFS: dict[str, Proof] = {"BlobAlreadyExists": "condition", "InvalidBlockList": "gone", "BlobNotFound": "gone"}


class Azure(Store):
    """A container."""

    ends_by = "the service, a week after the last block came,"

    def create(self, key: str, metadata: Mapping[str, str]) -> str:
        """Name an upload, for one participant and one call of its writer."""
        whose = hashlib.sha256(repr(sorted(metadata.items())).encode()).hexdigest()[:16]
        return f"{whose}{secrets.token_hex(8)}"

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        part = Part(number, len(data), _block(upload, number))
        self._fs.call(lambda: self._blob(key).stage_block(part.etag, data, length=len(data)))
        return part

    def sealed(self, key: str, upload: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Look whether all blocks are there: a sweep may have taken those that were sent first."""
        if self.parts(key, upload) != list(parts):
            raise OSError(errno.ECANCELED, f"blocks of {upload} are gone: a sweep removed them", key)
        return tuple(parts)

    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str] | None = None) -> None:
        self._commit(key, [part.etag for part in parts], metadata or {})

    def proves(self, error: OSError) -> Proof:
        return _PROOFS.get(store_code(error), "")

    def abort(self, key: str, upload: str) -> None:
        """Take the blocks away by an empty blob, and remove it: that one only, never a file.

        Whoever died in between has left it, with what it is in its metadata.
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
        return ObjectHead(found.size, {name.replace("_", "-"): value for name, value in metadata.items()})

    def objects(self, prefix: str, *, deep: bool = False) -> Iterator[tuple[str, float]]:
        for key, info in self._fs.objects(self.bucket, prefix, deep=deep):
            if not key.endswith("/"):
                yield key, info.modified or 0.0

    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        if (pause := ctx.longest_pause_seconds) > _KEPT_SECONDS:
            message = f"{root}: the service deletes uncommitted blocks after 7 days, and the job may pause for"
            yield Finding("error", f"{message} {pause / _DAY:g}", "set the job's longest_pause to 7 days or less")

    def refused(self, error: OSError, root: str) -> str:
        if error.errno == errno.EACCES:
            return _GIVE.format(root=root)
        return "look at the store, and at AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING"

    def _commit(self, key: str, blocks: Sequence[str], metadata: Mapping[str, str]) -> str:
        """Make a blob of blocks, unless one has the name; return its ETag. Metadata's names are identifiers here."""
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

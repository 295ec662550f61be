"""The interface between the rules of a commit (`uploads`) and the object stores: a class for each store.

In each store, a task sends parts that nobody sees, until one call makes an object of them, unless the object's name is
taken. Answers are values, errors are OSErrors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.storage import ObjectPath, Upload, store_code
from exactsink_files.votes import Part, VotedFile

__all__ = ["AT_ONCE", "ObjectHead", "Proof", "Store", "in_parallel"]

AT_ONCE = 32
"""The number of simultaneous requests, so that hundreds of files take about a second."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

Proof: TypeAlias = Literal["gone", "parts differ", "condition", ""]
"""The proof in a refused Complete: the upload is gone, its parts differ, or the name is, or was, taken."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object, as its store describes it."""

    size: int
    metadata: Mapping[str, str]
    etag: str = ""
    plain_etag: bool = False
    """Whether its ETag is made of MD5s. S3's is, unless a user's key or a key service encrypts the object."""


class Store(ABC):
    """Calls on keys below one URL. Several threads may use it."""

    longest_key = 1024  # bytes
    notes: Literal["some", "all", "none"] = "all"
    """Which of its uploads a participant lists in the store before it sends them: all if the store can't list any."""
    proofs: Mapping[str, Proof] = {}
    """The proofs in refusals of a Complete, by the code of the error."""
    ends_by = ""
    """Who ends unfinished uploads, other than a sweep, in words."""

    def __init__(self, root: ObjectPath) -> None:
        self.root = root
        self._fs: Any = root.fs
        scheme, _, rest = root.url.partition("://")
        self.bucket, _, below = rest.partition("/")
        self.prefix = f"{below}/" if below else ""
        self._objects = ObjectPath(f"{scheme}://{self.bucket}", root.fs)

    def key(self, name: str) -> str:
        return f"{self.prefix}{name}"

    @abstractmethod
    def create(self, key: str, metadata: Mapping[str, str]) -> str:
        """Begin an upload; return its id."""

    @abstractmethod
    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        """Send a part."""

    def sealed(self, key: str, upload: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return the parts of a sent upload in the form that `complete` needs."""
        return tuple(parts)

    @abstractmethod
    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> None:
        """Make the object of the parts, unless its name is taken (if the store has such conditions).

        A success proves nothing if the upload was not seen before, or if the call is a repeat.
        """

    @contextmanager
    def completes_sent(self) -> Iterator[Mapping[str, int]]:
        """Count how often the Complete of each upload is sent, because a library may repeat it by itself."""
        yield Counter()

    def proves(self, error: OSError) -> Proof:
        """Return the proof in the refusal of a Complete; empty if it proves nothing."""
        return self.proofs.get(store_code(error), "")

    @abstractmethod
    def abort(self, key: str, upload: str) -> None:
        """Drop an upload and its parts: it can't be completed any more. Idempotent."""

    @abstractmethod
    def parts(self, key: str, upload: str) -> list[Part] | None:
        """List an upload's parts; return None if there is no such upload."""

    def waiting(self, files: Sequence[VotedFile]) -> set[str]:
        """Return the uploads that one listing shows as waiting. The caller looks at each of the others."""
        return set()

    def unfinished(self, *, everywhere: bool) -> Sequence[Upload]:
        """List unfinished uploads, if the store can. `everywhere`: in the whole bucket, if necessary."""
        return []

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List unfinished uploads of keys with this prefix, if the store can."""
        return iter(())

    @abstractmethod
    def head(self, key: str) -> ObjectHead | None:
        """Look at an object; return None if it is absent. Raises OSError if the bucket is absent."""

    def is_made_of(self, held: ObjectHead, parts: Sequence[Part]) -> bool:
        """Return whether an object may be made of these parts: False only if the store disproves it."""
        return True

    def forget(self, files: Sequence[VotedFile]) -> None:  # noqa: B027 - most leave nothing
        """Remove the remaining parts of files that have their final names. Idempotent."""

    def objects(self, prefix: str, *, deep: bool = False) -> Iterator[tuple[str, float]]:
        """List objects with a prefix, and when each was written (Unix seconds). `deep`: also with a later `/`."""
        for key, info in self._fs.objects(self.bucket, prefix, deep=deep):
            if not key.endswith("/"):
                yield key, info.modified or 0.0

    @abstractmethod
    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        """Find limits that end unfinished uploads before the job's longest pause is over."""

    @abstractmethod
    def refused(self, error: OSError, root: str) -> str:
        """Return the fix for a refusal by the store."""

    def get(self, key: str) -> bytes | None:
        """Read a small object; return None if it is absent."""
        try:
            return (self._objects / key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        (self._objects / key).replace(data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, with as few requests as the store allows. Idempotent."""
        self._objects.unlink_below(keys)


def in_parallel(call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """Make a call for each item, many at a time. After an error, no further call begins, and the error is raised."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

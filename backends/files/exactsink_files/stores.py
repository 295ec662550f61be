"""The seam between the rules of a commit, which `uploads` has, and the object stores that it is made in: a class each.

In each, parts are sent that nobody sees, until one call makes them the object of a name, unless an object has it.
Answers are values, errors are OSErrors.
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
from exactsink.toolkit.storage import ObjectPath, Upload
from exactsink_files.votes import Part, VotedFile

__all__ = ["AT_ONCE", "ObjectHead", "Proof", "Store", "in_parallel"]

AT_ONCE = 32
"""Requests on their way at a time, so that hundreds of files are a matter of a second."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

Proof: TypeAlias = Literal["gone", "parts differ", "condition", ""]
"""What a refused Complete says: the upload is gone, its parts are others, or something has the name, or had it."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What a store says of an object."""

    size: int
    metadata: Mapping[str, str]
    etag: str = ""
    plain_etag: bool = False
    """Whether its ETag is of MD5s, as S3's is unless a key of the user's or of a key service encrypts it."""


class Store(ABC):
    """Calls on keys below one URL. May be used by several threads."""

    longest_key = 1024  # bytes
    notes: Literal["some", "all", "none"] = "all"
    """Which uploads a participant lists in the store before it sends: those that the store itself does not list."""
    ends_by = ""
    """What ends unfinished uploads beside a sweep, in words."""

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
        """Return the parts of an upload that is sent, as they are completed."""
        return tuple(parts)

    @abstractmethod
    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str]) -> None:
        """Let the object have its name, unless another has it, where the store has such conditions.

        That this succeeds proves nothing for an upload that was not seen to stand, nor for a repeat.
        """

    @contextmanager
    def completes_sent(self) -> Iterator[Mapping[str, int]]:
        """Count how often the Complete of each upload is sent, where a library repeats it by itself."""
        yield Counter()

    @abstractmethod
    def proves(self, error: OSError) -> Proof:
        """Return what the refusal of a Complete proves; empty where it proves nothing."""

    @abstractmethod
    def abort(self, key: str, upload: str) -> None:
        """Drop an upload and its parts: it can't be completed any more. Idempotent."""

    @abstractmethod
    def parts(self, key: str, upload: str) -> list[Part] | None:
        """List an upload's parts; None when there is no such upload."""

    def waiting(self, files: Sequence[VotedFile]) -> set[str]:
        """Return those of these uploads that a listing shows to wait; whoever is not among them is looked at alone."""
        return set()

    def unfinished(self, *, everywhere: bool) -> Sequence[Upload]:
        """List unfinished uploads, as far as the store does; `everywhere`: in the whole bucket, if need be."""
        return []

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """List unfinished uploads of keys that begin so, as far as the store does."""
        return iter(())

    @abstractmethod
    def head(self, key: str) -> ObjectHead | None:
        """Look at an object; None when it is absent. Raises OSError for a bucket that is."""

    def is_made_of(self, held: ObjectHead, parts: Sequence[Part]) -> bool:
        """Return whether an object may be made of these parts, as far as the store says."""
        return True

    def forget(self, files: Sequence[VotedFile]) -> None:  # noqa: B027 - most leave nothing
        """Remove what files that have their names leave behind. Idempotent."""

    @abstractmethod
    def objects(self, prefix: str, *, deep: bool = False) -> Iterator[tuple[str, float]]:
        """List objects of a prefix, and when each was written, in Unix seconds; `deep`: also with a `/` behind it."""

    @abstractmethod
    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        """Find what ends unfinished uploads before the job may come back to them."""

    @abstractmethod
    def refused(self, error: OSError, root: str) -> str:
        """Return what to do about the store's refusal."""

    def get(self, key: str) -> bytes | None:
        """Read a small object; None when it is absent."""
        try:
            return (self._objects / key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        (self._objects / key).replace(data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, by as few requests as the store has for it. Idempotent."""
        self._objects.unlink_below(keys)


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

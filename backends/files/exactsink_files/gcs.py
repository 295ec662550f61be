"""The calls on Google Cloud Storage. An upload is hidden objects, from which one call composes the final object.

`_exactsink/TXN.parts/NAME.NUMBER` is a part, and the vote holds its generation. The store lists parts, so a participant
writes no list of them. A commit or a sweep removes them.
"""

from __future__ import annotations

import base64
import errno
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os.path import commonprefix

from exactsink.contract import Finding, JobContext
from exactsink.toolkit.storage import ObjectPath, Upload
from exactsink_files.stores import ObjectHead, Proof, Store, in_parallel
from exactsink_files.votes import Part, VotedFile

__all__ = ["Gcs"]

_DAY = 86_400
_MOST_SOURCES = 32  # of one compose
_PARTS = ".parts/"
_GIVE = (
    "give the job's account the role Storage Object User (roles/storage.objectUser) on the bucket of {root}, and let "
    "GOOGLE_APPLICATION_CREDENTIALS name its key, or run under it"
)


class Gcs(Store):
    """A bucket."""

    notes = "none"
    proofs: Mapping[str, Proof] = {"412": "condition", "404": "gone"}

    def __init__(self, root: ObjectPath) -> None:
        super().__init__(root)
        self._own = self.prefix if self.prefix.endswith("_exactsink/") else f"{self.prefix}_exactsink/"

    def create(self, key: str, metadata: Mapping[str, str]) -> str:
        """Return the name of an upload: the common prefix of its parts."""
        return f"{metadata.get('exactsink-txn', 'try')}{_PARTS}{key.rpartition('/')[2]}"

    def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        def write(name: str) -> str:
            return str(self._fs.write(self.bucket, name, data, create=True))

        md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        return self._made(upload, number, f"{number:05d}", len(data), write, md5)

    def sealed(self, key: str, upload: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Compose parts until one call can compose all of them."""
        level = 0
        while len(parts) > _MOST_SOURCES:
            level += 1
            groups = [parts[first : first + _MOST_SOURCES] for first in range(0, len(parts), _MOST_SOURCES)]
            parts = in_parallel(partial(self._composed, upload, level), list(enumerate(groups, 1)))
            self.delete([self._name(upload, part) for group in groups for part in group])
        return tuple(parts)

    def complete(self, key: str, upload: str, parts: Sequence[Part], metadata: Mapping[str, str] | None = None) -> None:
        self._fs.compose(self.bucket, key, self._sources(upload, parts), metadata)

    def abort(self, key: str, upload: str) -> None:
        self.delete([name for name, _ in self._fs.objects(self.bucket, self._place(upload), deep=True)])

    def parts(self, key: str, upload: str) -> list[Part] | None:
        return self._listed(self._place(upload)).get(upload)

    def waiting(self, files: Sequence[VotedFile]) -> set[str]:
        listed = self._listed(self._own + commonprefix([file.temp for file in files]))  # noqa: RUF071 - by characters
        return {file.temp for file in files if listed.get(file.temp) == list(file.parts)}

    def unfinished(self, *, everywhere: bool) -> Sequence[Upload]:
        """List all uploads, under the names of files at the root, by which participants are recognized."""
        begun: dict[str, float] = {}
        for name, info in self._fs.objects(self.bucket, self._own, deep=True):
            if _PARTS in name:
                upload = name[len(self._own) :].rpartition(".")[0]
                begun[upload] = min(info.modified or 0.0, begun.get(upload, float("inf")))
        return [Upload(self.key(upload.partition(_PARTS)[2]), upload, when) for upload, when in begun.items()]

    def head(self, key: str) -> ObjectHead | None:
        with suppress(FileNotFoundError):
            found, metadata = self._fs.head(self.bucket, key)
            return ObjectHead(found.size, metadata)
        return None

    def forget(self, files: Sequence[VotedFile]) -> None:
        """Remove the parts."""
        self.delete([self._name(file.temp, part) for file in files for part in file.parts])

    def limits(self, root: str, ctx: JobContext) -> Iterator[Finding]:
        """Find rules of the bucket that delete waiting parts, or keep composed ones."""
        try:
            bucket = self._fs.rules(self.bucket)
        except PermissionError:
            fix = "grant the right to read them (storage.buckets.get), or check that no rule deletes below _exactsink/"
            yield Finding("warning", f"{root}: the bucket's lifecycle rules can't be read", fix)
            return
        for rule in bucket.lifecycle_rules:
            condition, days = rule.get("condition", {}), rule.get("condition", {}).get("age")
            begins = condition.get("matchesPrefix") or [""]
            concerned = any(self._own.startswith(each) or each.startswith(self._own) for each in begins)
            deletes = rule.get("action", {}).get("type") == "Delete"
            if deletes and concerned and days is not None and days * _DAY < ctx.longest_pause_seconds:
                message = f"{root}: a lifecycle rule of the bucket deletes objects after {days} days"
                fix = "exclude _exactsink/ from it, or set the job's longest_pause to fewer days"
                yield Finding(
                    "error", f"{message}, but the job may pause for {ctx.longest_pause_seconds / _DAY:g}", fix
                )
        if bucket.retention_period:
            message = f"{root}: the bucket's retention policy keeps the parts of committed files"
            yield Finding("error", message, "use a bucket without a retention policy")

    def refused(self, error: OSError, root: str) -> str:
        if error.errno == errno.EACCES:
            return _GIVE.format(root=root)
        return "check the store, and GOOGLE_APPLICATION_CREDENTIALS"

    def _composed(self, upload: str, level: int, group: tuple[int, Sequence[Part]]) -> Part:
        number, parts = group
        sources, size = self._sources(upload, parts), sum(part.size for part in parts)
        name = f"{level}-{number:05d}"
        return self._made(upload, number, name, size, lambda to: str(self._fs.compose(self.bucket, to, sources)))

    def _made(
        self, upload: str, number: int, suffix: str, size: int, make: Callable[[str], str], md5: str | None = None
    ) -> Part:
        """Make a part. If it exists, the answer of an earlier try was lost, because nobody else writes here."""
        name = self._place(upload) + suffix
        try:
            generation = make(name)
        except FileExistsError:
            found = self._fs.look(self.bucket, name)
            if found.size != size or md5 not in (None, found.md5_hash):
                raise
            generation = str(found.generation)
        return Part(number, size, f"{suffix}@{generation}")

    def _listed(self, prefix: str) -> dict[str, list[Part]]:
        """List the parts below a name, by upload."""
        found: dict[str, list[Part]] = {}
        for name, info, generation in sorted(self._fs.generations(self.bucket, prefix, deep=True)):
            upload, _, suffix = name[len(self._own) :].rpartition(".")
            if (number := suffix.rpartition("-")[2]).isdecimal():
                part = Part(int(number), info.size, f"{suffix}@{generation}")
                found.setdefault(upload, []).append(part)
        return found

    def _place(self, upload: str) -> str:
        return f"{self._own}{upload}."

    def _name(self, upload: str, part: Part) -> str:
        return self._place(upload) + part.etag.partition("@")[0]

    def _sources(self, upload: str, parts: Sequence[Part]) -> list[tuple[str, int]]:
        return [(self._name(upload, part), int(part.etag.partition("@")[2])) for part in parts]

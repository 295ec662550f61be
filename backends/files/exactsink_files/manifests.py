"""The epochs in a sink's mark folder: a manifest for each epoch, and folds, which merge the manifests of a range.

- `eN.SET.manifest` and `eN.SET.done`: one epoch. `marks` describes their use as marks.
- `mLEVEL.FIRST-LAST.epochs`: a fold, with a line for each epoch of its range that has files. Ranges are aligned: 100
  epochs in level 1, 100 times as many in each level above. Folding a range again makes the same content, and never
  replaces a file.

A fold is durable before its parts are deleted, and replaces them: readers ignore a manifest or smaller fold within the
range of a fold, because a stalled driver may write one again. Each epoch names the sink's epoch before it (`after`), so
a missing epoch is detected. A range is folded only when a higher epoch exists, because it is final then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from exactsink.contract import Fatal, Retryable
from exactsink.toolkit.storage import AnyPath, ObjectPath, create_file, file_names
from exactsink_files.votes import is_below

__all__ = ["Epoch", "Epochs", "FileEntry", "Listing", "bytes_of", "epochs_of", "fold", "names_in", "range_of"]

_FAN = 100
"""The number of epochs in a fold of the first level."""
_MOST_BYTES = 32 * 1024 * 1024
"""The largest fold of folds, because readers read it whole. Folds that would make a larger one are kept."""
_VERSION = 1
_TRIES = 100
_OF_EPOCH = re.compile(r"e(?P<epoch>\d{1,19})\.(?P<set>[0-9a-f]{16})\.(?P<kind>manifest|done)(?P<unfinished>\..*)?")
_MANIFEST = re.compile(r"e(\d{1,19})\.[0-9a-f]{16}\.manifest")
_FOLD = re.compile(r"m(?P<level>[1-9])\.(?P<first>\d{1,19})-(?P<last>\d{1,19})\.epochs(?P<unfinished>\..*)?")


class FileEntry(NamedTuple):
    """One file: `path` is below the target's root."""

    path: str
    size: int
    rows: int
    sha256: str

    @classmethod
    def of(cls, path: str, size: int, sha256: str, rows: int) -> FileEntry:
        """Read an entry of a manifest. Raises ValueError for a path that leads out of the target."""
        if not is_below(path):
            raise ValueError(f"{path!r} is outside of the target")
        return cls(path, size, rows, sha256)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch's files in this sink.

    `after`: the sink's epoch before this one, -1 if this is the first, None if it is not known. If an epoch is not
    `done` although a higher one exists, an operator ended it by `resolve`: its files may be absent.
    """

    number: int
    after: int | None
    done: bool
    files: tuple[FileEntry, ...]

    @classmethod
    def of(cls, number: int, bodies: Iterable[Mapping[str, Any]], done: bool) -> Epoch:
        """Make the epoch from the manifests of its sets."""
        sets = list(bodies)
        known = [body["after"] for body in sets if body.get("after") is not None]
        voted = [file for body in sets for participant in body["participants"].values() for file in participant]
        files = {file["path"]: FileEntry.of(**file) for file in voted}
        return cls(number, max(known, default=None), done, tuple(files[path] for path in sorted(files)))

    def line(self) -> bytes:
        """Return the epoch as a line of a fold."""
        files = [file._asdict() for file in self.files]
        body = {"version": _VERSION, "epoch": self.number, "after": self.after, "done": self.done, "files": files}
        return json.dumps(body, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Epoch:
        body = json.loads(line)
        if body["version"] != _VERSION:
            raise ValueError(f"version {body['version']}, this release reads {_VERSION}")
        return cls(body["epoch"], body["after"], body["done"], tuple(FileEntry.of(**file) for file in body["files"]))


@dataclass(frozen=True, slots=True)
class _Fold:
    level: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"m{self.level}.{self.first}-{self.last}.epochs"

    def holds(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last

    def above(self) -> _Fold:
        """Return the fold of the next level that contains this one."""
        width = (self.last - self.first + 1) * _FAN
        first = self.first - self.first % width
        return _Fold(self.level + 1, first, first + width - 1)


@dataclass(frozen=True, slots=True)
class Listing:
    """One listing of a mark folder: for each epoch, its sets and whether each is done; and the folds."""

    names: tuple[str, ...]
    sets: Mapping[int, Mapping[str, bool]]
    folds: tuple[_Fold, ...]

    @classmethod
    def of(cls, folder: AnyPath) -> Listing:
        """List a mark folder. An absent folder counts as empty."""
        names = names_in(folder)
        folds = sorted(_folds(names), key=lambda fold: (fold.first, -fold.level))
        return cls(tuple(names), _sets(names), tuple(folds))

    @classmethod
    def newest(cls, folder: AnyPath) -> Mapping[int, Mapping[str, bool]]:
        """List only the sets of the highest epoch; empty if no epoch has a manifest."""
        names = names_in(folder)
        highest = max((found[1] for found in map(_MANIFEST.fullmatch, names) if found), key=int, default=None)
        return {} if highest is None else _sets(name for name in names if name.startswith(f"e{highest}."))

    @property
    def highest(self) -> int:
        """Return the highest epoch with a manifest of its own, -1 if there is none."""
        return max(self.sets, default=-1)

    def counting(self, epoch: int) -> list[str]:
        """Return the sets with the epoch's files: the sets that are done, or all sets if none is done."""
        sets = self.sets[epoch]
        return sorted(named for named, done in sets.items() if done) or sorted(sets)

    def superfluous(self, folds: Sequence[_Fold]) -> Iterator[str]:
        """Yield the names that these folds make superfluous, never those of the highest epoch."""
        for name in dict.fromkeys([*self.names, *(fold.name for fold in folds)]):
            if (found := _OF_EPOCH.fullmatch(name)) is not None:
                epoch = int(found["epoch"])
                counts = epoch in self.sets and found["set"] in self.counting(epoch) and not found["unfinished"]
                if epoch < self.highest and (not counts or _is_held(folds, epoch, epoch)):
                    yield name
            elif (found := _FOLD.fullmatch(name)) is not None:
                fold = _Fold(int(found["level"]), int(found["first"]), int(found["last"]))
                least = fold.level if found["unfinished"] else fold.level + 1
                if any(other.level >= least and other.holds(fold.first, fold.last) for other in folds):
                    yield name


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs with known files, in order and without a gap, up to the last epoch that is done.

    `whole`: they begin with the sink's first epoch. Otherwise the files of earlier epochs are not known.
    """

    known: tuple[Epoch, ...]
    whole: bool


def range_of(epoch: int) -> int:
    """Return the number of the range of an epoch."""
    return epoch // _FAN


def fold(folder: AnyPath, listing: Listing) -> list[_Fold]:
    """Fold the final ranges; return all folds that exist. Idempotent, also beside other processes."""
    standing = list(listing.folds)
    ready = {epoch - epoch % _FAN for epoch in listing.sets if not _is_held(standing, epoch, epoch)}
    made = []
    for first in sorted(first for first in ready if first + _FAN <= listing.highest):
        with suppress(
            FileNotFoundError, ValueError, TypeError, KeyError
        ):  # another process deleted it; or it is damaged, which readers report
            within = sorted(epoch for epoch in listing.sets if first <= epoch < first + _FAN)
            data = b"".join(_epoch(folder, listing, epoch).line() for epoch in within)
            new = _Fold(1, first, first + _FAN - 1)
            create_file(folder / new.name, data)
            made.append(new)
    standing += made
    while made:
        made = list(_folded_again(folder, listing, standing, made))
        standing += made
    return standing


def _folded_again(
    folder: AnyPath, listing: Listing, standing: Sequence[_Fold], made: Sequence[_Fold]
) -> Iterator[_Fold]:
    """Fold the folds of one level that fill a range of the next level."""
    level = made[0].level
    for new in dict.fromkeys(each.above() for each in standing if each.level == level and level < 9):
        below = [each for each in dict.fromkeys(standing) if new.holds(each.first, each.last)]
        parts = sorted((each for each in below if each.level == level), key=lambda each: each.first)
        loose = any(new.holds(epoch, epoch) and not _is_held(parts, epoch, epoch) for epoch in listing.sets)
        loose = loose or not all(_is_held(parts, each.first, each.last) for each in below)
        if loose or new.last >= listing.highest or _is_held(standing, new.first, new.last):
            continue
        with suppress(FileNotFoundError):
            if sum(bytes_of(folder / part.name) for part in parts) <= _MOST_BYTES:
                create_file(folder / new.name, b"".join((folder / part.name).read_bytes() for part in parts))
                yield new


def epochs_of(folder: AnyPath) -> Epochs:
    """Read the known epochs. Drivers may commit and fold at the same time. Raises Retryable, and Fatal for damage.

    A listing can miss epochs that are folded meanwhile, so a gap counts only if two listings show it.
    """
    before = None
    for _ in range(_TRIES):
        try:
            found = _unbroken(_read(folder, Listing.of(folder)))
        except FileNotFoundError:  # it was folded after the listing
            continue
        if found.whole or found == before:
            return found
        before = found
    raise Retryable(f"{folder} keeps changing while it is read", next="try again")


def _read(folder: AnyPath, listing: Listing) -> dict[int, Epoch]:
    """Read all epochs of a listing, except the highest one if it is not done."""
    epochs: dict[int, Epoch] = {}
    for each in listing.folds:
        if not any(other.level > each.level and other.holds(each.first, each.last) for other in listing.folds):
            with _readable(folder / each.name):
                lines = (folder / each.name).read_bytes().splitlines()
                epochs |= {epoch.number: epoch for epoch in map(Epoch.from_line, lines)}
    for number in listing.sets:
        if not _is_held(listing.folds, number, number):
            with _readable(folder / f"e{number}.*.manifest"):
                epoch = _epoch(folder, listing, number)
            if epoch.done or number < listing.highest:
                epochs[number] = epoch
    return epochs


def _unbroken(epochs: Mapping[int, Epoch]) -> Epochs:
    """Follow `after` from the newest epoch back to the first, or to a gap."""
    known: list[Epoch] = []
    number: int | None = max(epochs, default=None)
    while number is not None and number in epochs:
        known.append(epochs[number])
        number = epochs[number].after
    return Epochs(tuple(reversed(known)), number == -1 or not epochs)


def _epoch(folder: AnyPath, listing: Listing, number: int) -> Epoch:
    bodies = [json.loads((folder / f"e{number}.{named}.manifest").read_bytes()) for named in listing.counting(number)]
    if any(body["version"] != _VERSION for body in bodies):
        raise ValueError(f"this release reads version {_VERSION}")
    return Epoch.of(number, bodies, any(listing.sets[number].values()))


@contextmanager
def _readable(what: AnyPath) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        fix = "restore it from a backup, or move it away: epochs are then known from the next one on"
        raise Fatal(f"{what} does not list an epoch's files: {error!r}", next=fix) from error


def names_in(folder: AnyPath) -> list[str]:
    """List a folder. An absent folder counts as empty."""
    try:
        return file_names(folder)
    except FileNotFoundError:
        return []


def _sets(names: Iterable[str]) -> dict[int, dict[str, bool]]:
    """Return the sets of each epoch that have a manifest, and whether each is done."""
    kinds: dict[tuple[int, str], set[str]] = {}
    for found in filter(None, map(_OF_EPOCH.fullmatch, names)):
        if not found["unfinished"]:
            kinds.setdefault((int(found["epoch"]), found["set"]), set()).add(found["kind"])
    sets: dict[int, dict[str, bool]] = {}
    for (epoch, named), there in kinds.items():
        if "manifest" in there:
            sets.setdefault(epoch, {})[named] = "done" in there
    return sets


def _is_held(folds: Iterable[_Fold], first: int, last: int) -> bool:
    return any(fold.holds(first, last) for fold in folds)


def _folds(names: Iterable[str]) -> Iterator[_Fold]:
    for found in filter(None, map(_FOLD.fullmatch, names)):
        if not found["unfinished"]:
            yield _Fold(int(found["level"]), int(found["first"]), int(found["last"]))


def bytes_of(path: AnyPath) -> int:
    """Return a file's size. Raises FileNotFoundError."""
    return path.info().size if isinstance(path, ObjectPath) else path.stat().st_size

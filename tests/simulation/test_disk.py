"""Power cuts and failing disks: whatever is not synced is gone, and nothing decided is lost or doubled."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from exactsink.protocol.journal.stores import local
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.toolkit.roads import staged
from exactsink.toolkit.roads.idempotent import _ProvenApplier
from exactsink.toolkit.storage import DurableFile, durable, sync_folders
from exactsink_files import folders
from exactsink_files.marks import MarkFolder
from tests.simulation.disk_plays import KINDS, Broken, Lab, failed_syncs, faults, kills, power_cuts

SAMPLES = {power_cuts: 37, kills: 11, failed_syncs: 9, faults: 97}
"""Every so manieth is played by `make test`; primes, so that a sample meets all kinds of calls."""
Patch = pytest.MonkeyPatch


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Use memory where the system has a folder of it: here no sync needs a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as made:
        yield Path(made)


@pytest.mark.parametrize("at", ["some calls", pytest.param("every call", marks=pytest.mark.proof)])
@pytest.mark.parametrize("family", SAMPLES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_promise_is_kept(
    kind: str, family: Callable[[Lab], int], at: str, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    count = family(Lab(kind, folder) if at == "every call" else Lab(kind, folder, SAMPLES[family]))
    record_property("schedules", count)
    assert count > (200 if at == "every call" else 10)


@dataclass(frozen=True)
class Defect:
    """A planted defect, and which of the plays must catch it: those at calls that match; or the syncs that it omits."""

    name: str
    kind: str
    only: str
    family: Callable[[Lab], int] = power_cuts
    plant: Callable[[Patch], None] = lambda patch: None
    omitted: str = ""


def _everywhere(name: str, new: Callable[..., Any]) -> Callable[[Patch], None]:
    """Put a function in the place of one of `durable`, wherever it was imported."""

    def plant(patch: Patch) -> None:
        old = getattr(durable, name)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is old:
                patch.setattr(module, name, new)

    return plant


def _one_parent(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sync_folders([folder.parent])


def _made_once(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sync_folders(folder.absolute().parents)


def _seal_again(patch: Patch) -> None:
    real = DurableFile.seal

    def twice(self: DurableFile) -> tuple[int, str]:
        try:
            return real(self)
        except OSError:
            return real(self)

    patch.setattr(DurableFile, "seal", twice)


def _set(owner: object, name: str, new: object) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, new)


def _nothing(*_: object) -> None:
    """Leave out what is done here."""


def _made_unsynced(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _sync_again(self: LocalStore, seq: int) -> None:
    sync_folders([self._standing(seq).parent])
    self._unsure = -1


JOURNAL, STAGING, LAKE = "/job/journal", "/job/staging/sink", "/lake/_exactsink"
APPENDED = f"fsync {JOURNAL}(/.*)?$"
DEFECTS = (
    Defect("staged pre_commit without folder sync", "table", APPENDED, plant=_set(staged, "sync_folders", _nothing)),
    Defect("staged file not synced", "table", APPENDED, omitted=rf"{STAGING}/.*\.arrow"),
    Defect("make_folder syncs only the first parent", "table", APPENDED, plant=_everywhere("make_folder", _one_parent)),
    Defect("journal entry's file not synced", "table", APPENDED, omitted=rf"{JOURNAL}/.*"),
    Defect("journal entry's name not synced", "table", "unlink", omitted=JOURNAL),
    Defect("journal block's entry's name not synced", "table", "unlink", omitted=rf"{JOURNAL}/\d*"),
    Defect("journal block not named durably", "table", "unlink", plant=_set(local, "make_folder", _made_unsynced)),
    Defect("proof's file not synced", "keyed", "unlink", omitted=rf"{STAGING}/.*\.appl.*"),
    Defect("proof's name not synced", "keyed", "unlink", omitted=STAGING),
    Defect("vote's file not synced", "lake", APPENDED, omitted=rf"{LAKE}/.*/\d\.tmp"),
    Defect("vote's folder not synced", "lake", APPENDED, omitted=rf"{LAKE}/orders\.[^/]*\.p[^/]*"),
    Defect("vote's folder not named durably", "lake", APPENDED, omitted=LAKE),
    Defect("final names not synced", "lake", "rmdir", omitted="/lake/kind=."),
    Defect("partition's folder not synced", "lake", "rmdir", omitted="/lake"),
    Defect("birth's and manifest's files not synced", "lake", "link", omitted=rf"{LAKE}/orders\.sink/.*"),
    Defect("a killed driver's entry is trusted", "table", APPENDED, kills, _set(LocalStore, "_write_again", _nothing)),
    Defect("an entry is synced again", "table", APPENDED, failed_syncs, _set(LocalStore, "_write_again", _sync_again)),
    Defect("a folder is synced again", "lake", "/lake$", failed_syncs, _everywhere("make_folder", _made_once)),
    Defect("a file is synced again", "keyed", r"0\.appl", failed_syncs, _seal_again),
    Defect("a proof is synced again", "keyed", "sink$", failed_syncs, _set(_ProvenApplier, "confirm", _nothing)),
    Defect("a birth is synced again", "lake", r"orders\.sink$", failed_syncs, _set(MarkFolder, "confirm", _nothing)),
    Defect("names are synced again", "lake", "kind", failed_syncs, _set(folders, "SyncFailed", ZeroDivisionError)),
    Defect("staging's errors as they come", "keyed", "arrow", faults, _set(staged, "staging_errors", nullcontext)),
)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_planted_defect_is_caught(defect: Defect, folder: Path, monkeypatch: Patch) -> None:
    defect.plant(monkeypatch)
    with pytest.raises(Broken):
        defect.family(Lab(defect.kind, folder, only=defect.only, omitted=defect.omitted))

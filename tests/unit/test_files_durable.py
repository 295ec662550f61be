"""Large files: the disk begins before the seal, and the sync, the size and the hash stay what they were."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from tests.unit.files_target import around, refused

from exactsink.contract import DurableFile, file_sha256

MB = 1 << 20
CHUNKS = [bytes([n]) * (3 * MB + n) for n in range(9)]  # 27 MB


@pytest.mark.parametrize("advice", ["taken", "refused"])
def test_a_large_file_is_sealed_with_what_was_written(tmp_path: Path, advice: str) -> None:
    no_advice: AbstractContextManager[None] = refused(tmp_path, "posix_fadvise", errno.EINVAL)
    file = DurableFile(tmp_path / "large")
    with no_advice if advice == "refused" else nullcontext():
        for chunk in CHUNKS:
            file.write(chunk)
    synced: list[str] = []
    with around(tmp_path, ["fsync"], lambda _, path: synced.append(path)):
        sealed = file.seal()
    whole = b"".join(CHUNKS)
    assert sealed == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (tmp_path / "large").read_bytes() == whole
    assert file_sha256(tmp_path / "large") == sealed[1]
    assert synced == [str(tmp_path / "large")]


def test_the_disk_is_reported_of_every_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[int, int]] = []
    real = os.posix_fadvise
    own = DurableFile(tmp_path / "large")

    def advise(handle: int, offset: int, length: int, advice: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") == str(tmp_path / "large"):
            reported.append((offset, length))
            assert advice == os.POSIX_FADV_DONTNEED
        real(handle, offset, length, advice)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fadvise", advise)
        for chunk in CHUNKS:
            own.write(chunk)
    size, _ = own.seal()
    ends = [offset + length for offset, length in reported]
    assert [offset for offset, _ in reported] == [0, *ends[:-1]]
    assert len(reported) == 3
    assert size - 8 * MB < ends[-1] <= size

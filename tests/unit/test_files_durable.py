"""Large files: the disk begins before the seal, and the sync, the size and the hash stay what they were."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.os_faults import around

from exactsink.contract import DurableFile, file_sha256

MB = 1 << 20
CHUNKS = [bytes([n]) * (3 * MB + n) for n in range(9)]  # 27 MB


@pytest.mark.parametrize("advice", ["taken", "refused"])
def test_a_large_file_is_sealed_with_what_was_written_and_begun_in_parts(tmp_path: Path, advice: str) -> None:
    begun: list[tuple[int, int]] = []

    def advise(handle: int, offset: int, length: int, how: int) -> Any:
        if os.readlink(f"/proc/self/fd/{handle}") == str(tmp_path / "large"):
            assert how == os.POSIX_FADV_DONTNEED
            begun.append((offset, length))
            if advice == "refused":
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    file, synced = DurableFile(tmp_path / "large"), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fadvise", advise)
        for chunk in CHUNKS:
            file.write(chunk)
    with around(tmp_path, ["fsync"], lambda _, path: synced.append(path)):
        size, sha256 = file.seal()
    whole = b"".join(CHUNKS)
    assert (size, sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert file_sha256(tmp_path / "large") == sha256
    assert synced == [str(tmp_path / "large")]
    ends = [offset + length for offset, length in begun]
    assert [offset for offset, _ in begun] == [0, *ends[:-1]]  # each part once
    assert len(begun) == 3
    assert size - 8 * MB < ends[-1] <= size

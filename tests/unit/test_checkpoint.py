"""What Spark's checkpoint folder says of where a batch ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactsink.job.checkpoint import Checkpoint

KAFKA = '{"orders":{"0":120,"1":7}}'


@pytest.mark.parametrize(
    ("log", "ends"),
    [
        (f"v1\n{{}}\n{KAFKA}", (KAFKA,)),
        (f"v1\n{{}}\n{KAFKA}\n-\n17\n", (KAFKA, "17")),
        (f"v2\n{{}}\n0:{KAFKA}", ()),
    ],
)
def test_a_batch_ends_where_the_offset_log_says_source_by_source(
    log: str, ends: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(log)
    assert Checkpoint(tmp_path).source_ends(3) == ends

"""Where a history is kept: the stream's, and each batch run's, apart from all others; and what the checkpoint says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.odd_names import ODD_NAMES

from exactsink.contract import NAME_PATTERN, ConfigError
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.config import JobConfig
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Action, Complete, Note

KAFKA = '{"orders":{"0":120,"1":7}}'


def _config(name: str = "flights", **job: object) -> JobConfig:
    job = {"name": name, "checkpoint": "/data/chk", **job}
    return JobConfig.model_validate({"job": job, "sinks": {"s": {"backend": "x"}}})


def test_every_run_has_a_name_and_a_folder_of_its_own() -> None:
    stream = JobHistory.of(_config())
    assert (stream.job, stream.folder, stream.run) == ("flights", Path("/data/chk.exactsink"), None)
    runs = [JobHistory.of(_config(), run) for run in ("2026-11-20", "2026-11-21", "2026-11-20 ", "ß/../x")]
    assert len({history.job for history in runs}) == len({history.folder for history in runs}) == 4
    for history in runs:
        assert history.folder.parent == Path("/data/chk.exactsink/runs")
        assert history.job.startswith("flights-")
        assert len(history.job) == len("flights-") + 10
    assert JobHistory.of(_config(), "2026-11-20") == runs[0]


@pytest.mark.parametrize("odd", ODD_NAMES.values(), ids=ODD_NAMES)
def test_odd_names_make_no_odd_paths_or_ids(odd: str) -> None:
    history = JobHistory.of(_config(), odd)
    assert history.folder.parent == Path("/data/chk.exactsink/runs")
    assert re.fullmatch(NAME_PATTERN, history.job)
    for name in (odd, f"a{odd}", "a\n", "a\0"):
        with pytest.raises(ValueError, match="String should match pattern"):
            _config(name)
        with pytest.raises(ValueError, match="String should match pattern"):
            JobConfig.model_validate({"job": {"name": "a", "checkpoint": "/c"}, "sinks": {name: {"backend": "x"}}})


def test_names_that_leave_no_room_for_the_runs_hash_are_refused() -> None:
    assert len(JobHistory.of(_config("n" * 29), "r").job) == 40
    with pytest.raises(ConfigError, match="too long for batch runs"):
        JobHistory.of(_config("n" * 30), "r")
    with pytest.raises(ConfigError, match="needs a name"):
        JobHistory.of(_config(), "")
    assert JobHistory.of(_config("n" * 40)).job == "n" * 40


def test_a_journals_url_is_a_secret(tmp_path: Path) -> None:
    history = JobHistory.of(_config(journal=f"sqlite:///{tmp_path}/hidden.db"))
    assert "hidden" not in repr(history)
    journal = history.journal(lambda attempt: None)
    journal.claim("query", "host:1")
    journal.close()
    assert (tmp_path / "hidden.db").exists()


def test_a_run_is_complete_by_its_record() -> None:
    recovered = Action("ada on host", "recover", "", "recovered by an operator")
    assert not Log().is_complete
    assert not Log(anchors=(recovered, Note("recovered by an operator"))).is_complete
    assert Log(anchors=(Complete(0), recovered)).is_complete


@pytest.mark.parametrize(
    ("log", "ends"),
    [(f"v1\n{{}}\n{KAFKA}", (KAFKA,)), (f"v1\n{{}}\n{KAFKA}\n-\n17\n", (KAFKA, "17")), (f"v2\n{{}}\n0:{KAFKA}", ())],
)
def test_a_batch_ends_where_the_checkpoints_offset_log_says(log: str, ends: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(log)
    assert Checkpoint(tmp_path).source_ends(3) == ends


def test_a_place_that_takes_no_file_is_found_and_the_look_leaves_nothing(tmp_path: Path) -> None:
    found = list(JobHistory.of(_config(checkpoint="/sys/below/chk")).check())
    assert [(finding.severity, finding.message) for finding in found] == [
        ("error", f"{what} can't be written to /sys/below/{name}: /sys: Permission denied")
        for what, name in (("the job's journal and state", "chk.exactsink"), ("Spark's checkpoint", "chk"))
    ]
    assert list(JobHistory.of(_config(checkpoint=str(tmp_path / "new/chk"))).check()) == []
    (tmp_path / "chk").touch()
    (in_the_way,) = JobHistory.of(_config(checkpoint=str(tmp_path / "chk"))).check()
    assert in_the_way.message.endswith(
        f"checkpoint can't be written to {tmp_path}/chk: {tmp_path}/chk: Not a directory"
    )
    assert in_the_way.fix == f"move the file {tmp_path}/chk away; or set [job] checkpoint to another folder"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chk"]

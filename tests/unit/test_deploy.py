"""What is deployed: the unit is valid, grace periods are longer than a stop's bound, exit codes are the code's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from exactsink.contract import ConfigError, Fatal, Fenced, InDoubtError, Refused
from exactsink.job.config import load_config
from exactsink.job.config.model import JobSection
from exactsink.spark.session import refuse_cluster_mode

DEPLOY = Path(__file__).parents[2] / "examples/deploy"
UNIT = (DEPLOY / "exactsink@.service").read_text()
MANIFEST = (DEPLOY / "kubernetes.yaml").read_text()
STOP_WITHIN = JobSection(name="orders", checkpoint="/chk").stop_within_seconds


def test_the_unit_lets_the_driver_end_its_epoch_and_waits_for_a_person_after_codes_that_want_one() -> None:
    said = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert (said["KillMode"], said["KillSignal"], said["Restart"]) == ("mixed", "SIGTERM", "on-failure")
    assert float(said["TimeoutStopSec"]) > STOP_WITHIN
    wanted = {kind.exit_code for kind in (ConfigError, Fatal, Fenced, InDoubtError, Refused)}
    assert set(map(int, said["RestartPreventExitStatus"].split())) == wanted


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is in Debian's package systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "exactsink@orders.service"
    unit.write_text(UNIT.replace("/opt/exactsink/bin/exactsink", sys.executable).replace("User=exactsink\n", ""))
    ran = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if str(unit) in line]) == (0, [])


def test_the_manifest_gives_the_driver_its_time_and_its_job_is_valid(tmp_path: Path) -> None:
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", MANIFEST)
    [text] = re.findall(r"  job\.toml: \|\n((?:    .*\n|\n)+)", MANIFEST)
    (tmp_path / "job.toml").write_text(text.replace("\n    ", "\n")[4:])
    config, _ = load_config(tmp_path / "job.toml")
    assert float(grace) > config.job.stop_within_seconds
    assert config.observe.prometheus == ":9464"
    assert MANIFEST.count(": 9464") == 1
    if shutil.which("kubectl"):  # reads the YAML, and its kinds and names, without a cluster
        (tmp_path / "kustomization.yaml").write_text("resources: [kubernetes.yaml]\n")
        (tmp_path / "kubernetes.yaml").write_text(MANIFEST)
        ran = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


def test_spark_submits_cluster_mode_is_refused_by_name() -> None:
    refuse_cluster_mode("client")
    with pytest.raises(ConfigError, match="cluster mode is not supported"):
        refuse_cluster_mode("cluster")

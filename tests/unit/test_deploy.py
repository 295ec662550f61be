"""What is deployed: the unit is valid, grace periods are longer than a stop's bound, exit codes are the code's own."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import yaml
from tests.servers.waiting import wait_until

from exactsink.contract import ConfigError, ExactsinkError, errors
from exactsink.job.config import load_config
from exactsink.job.config.model import JobSection
from exactsink.spark.session import refuse_cluster_mode
from exactsink.starters.job import TARGETS, job_text
from exactsink_kafka.options import KafkaOptions

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ExactsinkError)]
DEPLOY = Path(__file__).parents[2] / "examples/deploy"
UNIT = (DEPLOY / "exactsink@.service").read_text()
MANIFEST = (DEPLOY / "kubernetes.yaml").read_text()
WANT_A_PERSON = {kind.exit_code for kind in ERRORS if kind.exit_code < errors.EXIT_BUG}
STOP_WITHIN = JobSection(name="orders", checkpoint="/chk").stop_within_seconds


def test_the_unit_lets_the_driver_end_its_epoch_and_waits_for_a_person_after_codes_that_want_one() -> None:
    said = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert (said["KillMode"], said["KillSignal"], said["Restart"]) == ("mixed", "SIGTERM", "on-failure")
    assert float(said["TimeoutStopSec"]) > STOP_WITHIN
    assert set(map(int, said["RestartPreventExitStatus"].split())) == WANT_A_PERSON
    assert int(said["UMask"], 8) & 0o050 == 0, "a group of readers can read a lake"


def test_the_dag_tries_again_what_may_go_through_and_ends_the_driver_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow is too heavy to install here; what the DAG uses of it is stood in for."""
    failed, airflow, dags = type("Failed", (Exception,), {}), type("Again", (Exception,), {}), MagicMock()
    sdk = ModuleType("airflow.sdk")
    vars(sdk).update(DAG=dags, BaseOperator=type("BaseOperator", (), {"__init__": lambda self, *, task_id: None}))
    errors = ModuleType("airflow.sdk.exceptions")
    vars(errors).update(AirflowFailException=failed, AirflowException=airflow)
    for module in (ModuleType("airflow"), sdk, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = runpy.run_path(str(DEPLOY / "airflow_dag.py"))
    assert (dags.call_args.kwargs["max_active_runs"], names["Exactsink"].template_fields) == (1, ("command",))
    assert set(names["A_PERSON_HAS_TO_LOOK"]) == WANT_A_PERSON
    for code in (0, 1, 5, 6, 70, 75, 130, 143):
        expected = failed if code in WANT_A_PERSON else airflow
        with pytest.raises(expected) if code else nullcontext():
            names["Exactsink"](task_id="run", command=["sh", "-c", f"exit {code}"]).execute({})
    ready = tmp_path / "ready"
    script = f"trap 'exit 0' TERM; touch {ready}; for n in $(seq 600); do sleep 0.1; done; exit 9"
    running = names["Exactsink"](task_id="run", command=["sh", "-c", script])
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(running.execute, {})
        wait_until(lambda: ready.exists() and running._driver is not None, "the driver")
        assert os.getpgid(running._driver.pid) != os.getpgid(0), "a signal to the worker's group reaches no JVM"
        running.on_kill()
        assert ran.result() is None


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


def test_the_servers_of_compose_are_where_the_jobs_of_init_look_and_for_this_machine_alone() -> None:
    text = (DEPLOY.parent / "compose/compose.yaml").read_text()
    compose = yaml.safe_load(text)
    services = compose["services"]
    ports = {port for service in services.values() for port in service["ports"]}
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
    assert all(re.search(r":v?\d", service["image"]) for service in services.values()), "an image without a version"
    assert {volume.split(":")[0] for service in services.values() for volume in service["volumes"]} == set(
        compose["volumes"]
    )
    job = job_text("orders", "kafka", TARGETS)
    assert set(re.findall(r"localhost:(\d+)", job)) == {"9092"} <= {port.rsplit(":", 1)[1] for port in ports}
    settings = services["kafka"]["environment"]
    assert settings["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://localhost:9092"
    assert (
        int(settings["KAFKA_TRANSACTION_MAX_TIMEOUT_MS"]) / 1000
        >= KafkaOptions.model_fields["transaction_timeout_seconds"].get_default()
    )
    [password] = re.findall(r"user=postgres password=(\w+)", text)
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == password
    assert services["postgres"]["command"][1:] == ["-c", "max_prepared_transactions=64"]
    keys = dict(re.findall(r"(AWS_\w+|BUCKET)=(\S+)", text))
    command = services["s3"]["command"]
    assert [command[command.index(name) + 1] for name in ("--access", "--secret", "--region")] == [
        keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"], keys["AWS_DEFAULT_REGION"],
    ]  # fmt: skip
    assert keys["BUCKET"] in job
    assert set(re.findall(r"\$\{(\w+)", job)) == {"KAFKA", "POSTGRES", "BUCKET", "ICEBERG_CATALOG"}

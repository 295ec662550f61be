"""A DAG that runs a job of exactsink once an hour: all there is in its source, then it ends.

See docs/how-to/run-with-airflow.md. The driver runs on the worker, as a process of its own; its exit
code says whether a retry can help.
"""

from __future__ import annotations

import signal
import subprocess
from datetime import datetime, timedelta

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException  # before 3.3: airflow.exceptions

A_PERSON_HAS_TO_LOOK = range(1, 7)
"""Exit codes after which another try alone won't help: docs/reference/exit-codes.md."""


class Exactsink(BaseOperator):
    """Run `exactsink COMMAND JOB.toml`. SIGTERM, when the task is stopped, lets the driver end after its epoch."""

    template_fields = ("command",)  # `{{ ds }}` in a command is the task's day

    def __init__(self, *, command: list[str], **kwargs) -> None:
        super().__init__(**kwargs)
        self.command = command
        self._driver = None

    def execute(self, context) -> None:
        # A session of its own: a signal to the worker's group would kill spark-submit's JVM in the middle of an epoch.
        self._driver = subprocess.Popen(self.command, start_new_session=True)
        code = self._driver.wait()
        if code in A_PERSON_HAS_TO_LOOK:
            raise AirflowFailException(f"exit code {code}: a person has to look, no retry helps; see the task's log")
        if code:
            raise AirflowException(f"exit code {code}: nothing is lost, the next try goes on")

    def on_kill(self) -> None:
        if self._driver is not None:
            self._driver.send_signal(signal.SIGTERM)
            self._driver.wait()


with DAG(
    "exactsink_orders",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a second driver would fence the first: safe, and useless
    default_args={"retries": 6, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
):
    Exactsink(task_id="run", command=["/opt/exactsink/bin/exactsink", "run", "/srv/exactsink/orders/job.toml"])

"""What a scrape shows while something hangs, and which alert that is: promtool evaluates the rules on the scrape."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.unit import observe_runs as runs
from tests.unit.test_observe_exporters import scrape

from exactsink.contract import Event, Fenced
from exactsink.job.driver import Driver
from exactsink.job.history import JobHistory
from exactsink.observe.live import LIVE_METRICS, Live
from exactsink.observe.metrics import METRICS, PHASE
from exactsink.observe.prometheus import PrometheusMetrics
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.events import Events, Subscriber
from exactsink.protocol.journal.journal import Journal

EXAMPLES = Path(__file__).parents[2] / "examples/observe"
PROMTOOL = shutil.which("promtool", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
Scraped = Mapping[str, float]
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="`make promtool` gets it")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


def of(live: Live, metric: str) -> dict[tuple[str, ...], float]:
    return {m.labels: m.value for m in live.read() if m.metric.prometheus == f"exactsink_{metric}"}


def edge(point: str, side: Any, epoch: int | None = 7, **fields: Any) -> Event:
    return Event(point, "sim", side, epoch, fields)


def test_ages_go_on_while_nothing_happens() -> None:
    clock = Clock()
    live = Live(clock)
    live(edge("open_epoch", "before"))
    live(edge("open_epoch", "after", seconds=0.1))
    clock.now += 5
    assert of(live, "current_phase_seconds") == {("sim", "write", ""): 5}
    assert of(live, "open_decision_seconds") == {("sim",): 0}
    live(edge("vote", "before"))
    live(edge("vote", "after", seconds=0.1))
    live(edge("decided", "", at=clock.now - 60, sinks=("lake", "table"), entries=12, bytes=300))
    for sink in ("lake", "table"):
        live(edge(f"commit:{sink}", "before"))
    live(edge("commit:lake", "after", seconds=0.1))
    clock.now += 90
    assert of(live, "open_decision_seconds") == {("sim",): 150}
    assert of(live, "current_phase_seconds") == {("sim", "commit", "table"): 90}
    assert of(live, "decided_epoch") == {("sim", "lake"): 7, ("sim", "table"): 7}
    assert of(live, "committed_epoch") == {("sim", "lake"): 7}
    assert (of(live, "journal_entries"), of(live, "decision_bytes")) == ({("sim",): 12}, {("sim",): 300})
    live(edge("commit:table", "after", seconds=0.1))
    live(edge("complete", "after", seconds=0.1))
    live(edge("return", "before", rows={}))
    live(edge("beat", "", None))
    clock.now += 2
    assert of(live, "open_decision_seconds") == {("sim",): 0}
    assert of(live, "current_phase_seconds") == {("sim", "between", ""): 2}
    assert of(live, "heartbeat_age_seconds") == {("sim",): 2}
    live(edge("source_behind", "", source="Kafka", of="offsets", behind=9.0))
    assert of(live, "source_behind") == {("sim", "Kafka", "offsets"): 9}


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    with closing(PrometheusMetrics(CollectorRegistry())) as made:
        yield made


def healthy(metrics: PrometheusMetrics, folder: Path) -> Scraped:
    runs.two_epochs(metrics)
    return scraped(metrics)


def hanging(metrics: PrometheusMetrics, folder: Path) -> Scraped:
    """Scrape while the store of sink table holds a commit up."""
    committing, let_go = threading.Event(), threading.Event()

    def hold(event: Event) -> None:
        metrics(event)
        if (event.name, event.edge) == ("commit:table", "before"):
            committing.set()
            let_go.wait(60)

    bench = runs.Observed(hold)
    driving = threading.Thread(target=lambda: _epoch(bench, bench.driver()))
    driving.start()
    try:
        assert committing.wait(60)
        return scraped(metrics)
    finally:
        let_go.set()
        driving.join()


def _epoch(bench: runs.Observed, driver: Coordinator) -> None:
    driver.run_epoch(bench.batch(0))


def lost(metrics: PrometheusMetrics, folder: Path) -> Scraped:
    """Let a process lose votes, write them again and end before any scrape; scrape the one that comes next."""
    bench = runs.Observed(losses=[("lake", 0, 0), ("lake", 0, 1)])
    with process(folder, bench) as crashed:
        bench.crash_before_the_commit(crashed, 0)
    with process(folder, bench) as ended:
        assert ended.run_epoch(bench.batch(0, cut=1)).skipped
    with process(folder, bench, metrics):
        return scraped(metrics)


def fenced(metrics: PrometheusMetrics, folder: Path) -> Scraped:
    """Let a process be fenced, and end by it before any scrape; scrape the one that goes on."""
    bench = runs.Observed()
    with process(folder, bench) as old, process(folder, bench, metrics) as newer:
        with pytest.raises(Fenced):
            old.run_epoch(bench.batch(0))
        newer.run_epoch(bench.batch(0))
        return scraped(metrics)


def gone(metrics: PrometheusMetrics, folder: Path) -> Scraped:
    """Scrape two jobs, each at its own address, and once more when one of them has ended."""
    other = PrometheusMetrics(CollectorRegistry())
    runs.two_epochs(other)
    server = other.serve("127.0.0.1:0")
    assert scrape(server.port)
    other.close()
    with pytest.raises(urllib.error.URLError):
        scrape(server.port)
    return {**healthy(metrics, folder), 'up{instance="other",job="exactsink"}': 0}


@contextmanager
def process(folder: Path, bench: runs.Observed, *subscribers: Subscriber) -> Iterator[Coordinator]:
    """Drive the job of this folder as a process does: with its own client of the journal, heartbeat and subscribers."""

    class History(JobHistory):
        def journal(self, wait: Callable[[int], None]) -> Journal:
            return bench.journal()

    history = History("sim", folder / "chk.exactsink", folder / "chk")
    driver = Driver(history, bench.sinks(), Events("sim", [*subscribers, history.last_times()]))
    with closing(driver):
        driver.coordinator.start("query", lambda epoch: False)
        yield driver.coordinator


def scraped(metrics: PrometheusMetrics) -> Scraped:
    """Read the endpoint; return every series by its name in PromQL, and that of the scrape itself."""
    server = metrics.serve("127.0.0.1:0")
    try:
        found = scrape(server.port)
    finally:
        server.close()
    series = {
        name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels)) + "}": value
        for (name, labels), value in found.items()
        if name.startswith("exactsink")
    }
    return {**series, 'up{instance="this",job="exactsink"}': 1}


STATES: dict[str, tuple[Callable[[PrometheusMetrics, Path], Scraped], set[str], set[str]]] = {
    "all is well": (healthy, set(), set()),
    "a commit hangs": (
        hanging,
        {"ExactsinkDecidedNotCommitted"},
        {"ExactsinkDecidedNotCommitted", "ExactsinkPhaseHangs"},
    ),
    "votes were lost": (lost, {"ExactsinkVotesLost"}, set()),
    "a driver was fenced": (fenced, {"ExactsinkFenced"}, set()),
    "one of two jobs is gone": (gone, set(), {"ExactsinkGone"}),
}
"""What was run and scraped, and which alerts fire 9 and 15 minutes later."""


@needs_promtool
@pytest.mark.parametrize("state", STATES)
def test_in_each_bad_state_the_alerts_that_are_meant_fire_and_no_others(
    state: str, metrics: PrometheusMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each series goes on for 20 minutes: ages grow, the rest stays, and counters began at 0 a minute before."""
    monkeypatch.setattr("exactsink.observe.state.HEARTBEAT_SECONDS", 0.0)  # no wait for the next look
    bad, soon, late = STATES[state]
    series = [{"series": name, "values": _values(name, value)} for name, value in bad(metrics, tmp_path).items()]
    shutil.copy(EXAMPLES / "alerts.yml", tmp_path)
    alerts = re.findall(r"alert: (\w+)", (EXAMPLES / "alerts.yml").read_text())
    asked = [
        {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)', "eval_time": at}
        | {"exp_samples": [{"labels": "{}", "value": int(name in meant)}]}
        for name in alerts
        for at, meant in (("9m", soon), ("15m", late))
    ]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": asked}
    body = {"rule_files": ["alerts.yml"], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(body))  # JSON is YAML
    ran = subprocess.run([str(PROMTOOL), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _values(name: str, value: float) -> str:
    if re.search(r"_total\{", name):
        return f"0x35 {value}x45"  # every 15 s, from the 9th minute on
    ages = ("exactsink_open_decision", "exactsink_current_phase", "exactsink_lost_votes_age", "exactsink_fenced_age")
    return f"{value}+15x80" if name.startswith(ages) and value > 0 else f"{value}x80"


def test_the_rules_and_the_dashboard_name_metrics_that_exist() -> None:
    known = {metric.prometheus for metric in (*METRICS, *LIVE_METRICS)}
    known |= {f"{PHASE.prometheus}_{end}" for end in ("bucket", "sum", "count")}
    for name in ("alerts.yml", "dashboard.json"):
        used = set(re.findall(r"exactsink_\w+", (EXAMPLES / name).read_text()))
        assert used, name
        assert used <= known, used - known


@needs_promtool
def test_promtool_takes_the_rules_and_every_query_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) >= len(panels) - 1
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    files = [str(tmp_path / "queries.yml"), str(EXAMPLES / "alerts.yml")]
    for check in (["rules", *files], ["config", str(EXAMPLES / "prometheus.yml")]):
        ran = subprocess.run([str(PROMTOOL), "check", *check], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_page_says_what_to_do_for_each_alert() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/observe.md").read_text()
    rules = (EXAMPLES / "alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert alerts
    assert [name for name in alerts if f"| `{name}` |" not in page] == []
    assert rules.count("runbook_url:") == rules.count("summary:") == len(alerts)

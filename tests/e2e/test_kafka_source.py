"""From topic to topic by Spark's own Kafka source, on a Spark that has it: kills, and what a topic goes through."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from exactsink.cli.main import main
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers, ForkServer
from tests.e2e.kafka_source import SPARK_VERSION, Piped, kafka_jars, piped
from tests.e2e.test_starter import in_lake
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka, own_kafka
from tests.servers.spark_versions import python_with_spark
from tests.servers.waiting import wait_until

_KEYS = [f"key {number % 7}" for number in range(400)]
_POINTS = ("claim", "recommit", "sweep", "open_epoch", "vote", "decide", "commit:lake", "commit:{target}")
_PLACES = [(point, edge) for point in (*_POINTS, "complete", "return") for edge in ("before", "after")]


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with_spark(SPARK_VERSION)


@pytest.fixture(scope="module")
def source_jvm(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    with closing(WarmJvm(tmp_path_factory.mktemp("source"), "--jars", kafka_jars(), python=python)) as started:
        yield started


@pytest.fixture(scope="module")
def forks(python: Path) -> Iterator[ForkServer]:
    with closing(ForkServer(str(python))) as started:
        yield started


@pytest.fixture
def runs(tmp_path: Path, forks: ForkServer, source_jvm: WarmJvm) -> Iterator[Drivers]:
    with ExitStack() as stack:
        yield Drivers(tmp_path, stack, forks, source_jvm)


@pytest.fixture
def pipe(tmp_path: Path, kafka: Kafka) -> Piped:
    return piped(tmp_path, kafka)


def test_killed_with_a_decision_and_without_one(pipe: Piped, runs: Drivers) -> None:
    job = pipe.job()
    pipe.fill(_KEYS)
    runs.killed(job, Fault("decide", "after", "kill", 0))
    assert (pipe.written(), pipe.in_lake(), pipe.reported()) == (Counter(), Counter(), {})
    runs.killed(job, Fault("decide", "before", "kill", 1))
    assert pipe.written().total() == pipe.in_lake().total() == 200
    assert sum(pipe.reported().values()) == 200
    runs.whole(job)
    assert pipe.amiss() == {}


@pytest.mark.parametrize("target", ["kafka", pytest.param("files", marks=pytest.mark.proof)])
def test_the_job_that_init_writes_goes_from_the_topic_into_its_sinks(
    target: str, tmp_path: Path, kafka: Kafka, runs: Drivers
) -> None:
    name = f"init-{uuid.uuid4().hex[:8]}"
    for topic in (name, f"{name}-incoming"):
        kafka.make_topic(topic)
    with_rows = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(3):
        with_rows.produce(f"{name}-incoming", json.dumps({"id": number, "customer": "ada", "amount": number / 2}))
    assert with_rows.flush(30) == 0
    assert main(["init", str(tmp_path / "job"), "--name", name, "--from", "kafka", "--to", target]) == 0
    runs.whole(tmp_path / "job" / "job.toml", environment={"KAFKA": kafka.bootstrap})
    rows = (
        in_lake(tmp_path / "job")
        if target == "files"
        else sorted(tuple(json.loads(row.value or b"").values()) for row in kafka.rows(name))
    )
    assert rows == [(1, "ada", 0.5), (2, "ada", 1.0)]


@pytest.mark.proof
def test_a_topic_that_grows_while_a_batch_is_cut_off_and_while_a_query_runs(pipe: Piped, runs: Drivers) -> None:
    """Spark's source can't finish a batch of fewer partitions with `available_now`: the job says how to go on."""
    job = pipe.job()
    pipe.fill(_KEYS)
    runs.killed(job, Fault("decide", "before", "kill", 1))
    pipe.grow(4)
    pipe.fill(_KEYS, (1, 2, 3))
    code, said = runs.run(job)
    assert (code, "more partitions now than when the unfinished batch was planned" in said) == (1, True), said
    driver = runs.start(pipe.job(trigger="1 second"))
    driver.until(lambda: pipe.in_lake().total() > 400, "rows of the partitions that are new")
    pipe.grow(5)
    pipe.fill(_KEYS, (4, 0))
    driver.until(lambda: any(row[0] == 4 for row in pipe.written()), "rows of one that a running query meets")
    driver.send(signal.SIGTERM)
    assert driver.exit_code() == 0, driver.reported
    driver.end()
    assert pipe.ahead() == []
    runs.whole(pipe.job())
    assert pipe.amiss() == {}


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_killed_at_every_point(pipe: Piped, runs: Drivers) -> None:
    job = pipe.job(100)
    pipe.fill(_KEYS * 4)
    for point, edge in _PLACES:
        runs.killed(job, Fault(point.format(target=pipe.target), edge, "kill"))  # type: ignore[arg-type]
        assert pipe.ahead() == [], (point, edge)
        assert not (pipe.written() | pipe.in_lake()) - pipe.read(), (point, edge)
    runs.whole(job)
    assert pipe.amiss() == {}


@pytest.mark.proof
def test_a_compacted_topic_with_tombstones_and_transactions(tmp_path: Path, runs: Drivers) -> None:
    """What was read stays, what a replay no longer finds was in no sink; aborted rows never come, open ones later."""
    with own_kafka({"log.cleaner.backoff.ms": "100"}) as broker:
        pipe = piped(tmp_path, broker, segment_ms="100", min_cleanable_dirty_ratio="0.0")
        job = pipe.job(150)

        def in_transaction(keys: list[str], end: str) -> Producer:
            settings = {"transactional.id": f"{pipe.source}-{end}", "transaction.timeout.ms": 900_000}
            producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
            producer.init_transactions(30)
            producer.begin_transaction()
            for number, key in enumerate(keys):
                producer.produce(pipe.source, key=key, value=end if number % 5 else None, partition=number % 2)
            producer.flush(30)
            if end != "open":
                getattr(producer, f"{end}_transaction")(30)
            return producer

        in_transaction(_KEYS, "commit")
        in_transaction(_KEYS, "abort")
        in_transaction([f"late {number}" for number in range(60)], "commit")
        still = in_transaction(["open"] * 10, "open")
        first = pipe.read()
        runs.killed(job, Fault("decide", "before", "kill", 1))
        decided = pipe.written()
        assert decided
        assert decided == pipe.in_lake()
        assert not decided - first

        pipe.compact()
        wait_until(lambda: pipe.read().total() < first.total() - 100, "the topic to be compacted")
        runs.whole(job)
        replayed = pipe.written()
        assert replayed == pipe.in_lake()
        assert decided <= replayed <= first
        assert max(replayed.values()) == 1
        assert {"commit", None} == {row[3] for row in replayed}
        still.commit_transaction(30)
        pipe.fill(["last"], (1,))
        runs.whole(job)
        assert not pipe.read() - pipe.written()
        assert pipe.written() == pipe.in_lake()
        assert pipe.written()[(1, *_last(pipe, 1))] == 1
        assert pipe.reported() == broker.ends(pipe.source)


@pytest.mark.proof
def test_rows_that_the_topic_has_lost_stop_the_job_and_say_how_to_go_on(pipe: Piped, runs: Drivers) -> None:
    job = pipe.job()
    pipe.fill(_KEYS)
    code, said = runs.run(pipe.job(target=pipe.source))
    assert (code, "is the job's own source" in said) == (5, True), said
    runs.killed(pipe.job(), Fault("decide", "before", "kill", 1))
    pipe.lose(150)  # in the middle of the batch that is still to run
    for _ in range(2):
        code, said = runs.run(job)
        assert code == 1, said
        assert "lacks rows that the job has not read yet" in said
        assert 'failOnDataLoss = "false"' in said
    assert pipe.written().total() == 200
    runs.whole(pipe.job(more=', failOnDataLoss = "false"'))
    assert pipe.written() == pipe.in_lake()
    assert (pipe.written().total(), pipe.read() - pipe.written()) == (300, Counter())


def _cut_off(pipe: Piped) -> None:
    pipe.fill(_KEYS)
    pipe.lose(300)


_BETWEEN_TWO_BATCHES: dict[str, tuple[Callable[[Piped], None], int, str]] = {
    "cut off": (_cut_off, 1, "lacks rows that the job has not read yet"),
    "gone": (lambda pipe: pipe.broker.delete_topic(pipe.source), 75, "Kafka lacks the topic"),
    "made again": (lambda pipe: pipe.make_again(100), 1, "lacks rows that the job has not read yet"),
}


@pytest.mark.proof
@pytest.mark.parametrize("runs_on", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("case", _BETWEEN_TWO_BATCHES)
def test_what_a_topic_goes_through_between_two_batches_stops_the_job(
    case: str, runs_on: bool, pipe: Piped, runs: Drivers
) -> None:
    damage, wanted, what = _BETWEEN_TWO_BATCHES[case]
    pipe.fill(_KEYS)
    if runs_on:
        driver = runs.start(pipe.job(trigger="1 second"), Fault("return", "before", "stall", 1))
        driver.stopped()
    else:
        runs.whole(pipe.job())
    before = pipe.read()
    damage(pipe)
    if runs_on:
        driver.send(signal.SIGCONT)
        code, said = driver.exit_code(), driver.reported
        driver.end()
        assert (code, what in said) == (wanted, True), said
    for _ in range(2):
        code, said = runs.run(pipe.job())
        assert (code, what in said) == (wanted, True), said
    assert pipe.written() == pipe.in_lake() == before


@pytest.mark.proof
def test_a_topic_that_was_made_again_and_has_grown_past_the_old_one_is_read_on_from_the_old_place(
    pipe: Piped, runs: Drivers
) -> None:
    """As docs/how-to/read-from-kafka.md says: nobody here sees it, and the rows before that place are passed over."""
    pipe.fill(_KEYS)
    runs.whole(pipe.job())
    old = pipe.written()
    pipe.make_again(600)
    runs.whole(pipe.job())
    after = Counter(row for row in pipe.read() if int(str(row[1])) >= 200)
    assert after.total() == 200
    assert pipe.written() == pipe.in_lake() == old + after


@pytest.mark.proof
def test_the_lag_is_what_is_left_in_the_topic(pipe: Piped, runs: Drivers) -> None:
    pipe.fill(_KEYS)
    driver = runs.start(pipe.job(100, "2 seconds"), Fault("open_epoch", "before", "kill", 4))

    def lags() -> list[float]:
        return [float(found) for found in re.findall(r"source_behind .*of=offsets behind=([\d.]+)", driver.reported)]

    driver.until(lambda: lags()[-1:] == [0], "a lag of nothing, once all was read")
    assert lags()[:4] == [150, 100, 50, 0]
    pipe.fill(_KEYS)
    assert driver.exit_code() == -signal.SIGKILL
    driver.end()
    runs.whole(pipe.job())
    assert pipe.amiss() == {}


def _last(pipe: Piped, partition: int) -> tuple[object, ...]:
    """Return the last record of a partition: its offset, key and value."""
    return max((row[1:] for row in pipe.read() if row[0] == partition), key=lambda row: row[0])  # type: ignore[return-value]

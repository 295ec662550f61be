"""Queries made by hand: a function of the user's around `job.foreach_batch()`, and the ways to call it wrongly."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import ConfigError, ExactsinkError, LineageError, Refused, Retryable
from exactsink.spark import Job
from exactsink.spark.query import Query
from exactsink.spark.session import read_source
from tests.e2e.jobs import ids, in_lake, in_table, write_job, write_source

Around = Callable[[Query, DataFrame, int], object]


class ByHand:
    """A job whose queries call a user's function around the job's own, each in a new job as in a new process."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.path = write_job(folder)
        self.texts: list[str] = []

    def run(self, around: Around, batches: int) -> BaseException | None:
        """Run a query over so many files to its end; return what ended it, or an error of `foreachBatch` itself."""
        write_source(self.folder, batches)
        job = Job.from_toml(self.path)
        query = job.foreach_batch()

        def body(frame: DataFrame, batch: int) -> None:
            try:
                around(query, frame, batch)
            except ExactsinkError as error:
                ended.append(error)
                raise

        ended: list[ExactsinkError] = []
        writer = read_source(job.config, self.spark).writeStream.trigger(availableNow=True).foreachBatch(body)
        try:
            writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()
        except PySparkException as error:
            return ended[-1] if ended else error
        finally:
            job.close()
        return None

    def has(self, batches: Iterable[int]) -> bool:
        """Return whether both sinks have the rows of these batches, once each."""
        wanted = sum((ids(batch + 1) - ids(batch) for batch in batches), start=ids(0))
        return in_lake(self.folder) == in_table(self.folder) == wanted


@pytest.fixture
def by_hand(spark: SparkSession, tmp_path: Path) -> ByHand:
    return ByHand(spark, tmp_path)


def _plainly(query: Query, frame: DataFrame, batch: int) -> None:
    query(frame, batch)


def _part(frame: DataFrame, of: int) -> DataFrame:
    return frame.where(f"id % 2 = {of}")


def _two_frames(query: Query, frame: DataFrame, batch: int) -> None:
    query(_part(frame, 0), batch)
    query(_part(frame, 1), batch)


def test_rows_of_a_second_call_for_a_batch_are_not_dropped_in_silence(by_hand: ByHand) -> None:
    for _ in range(2):  # the second run finishes what the first call decided, and no more
        error = by_hand.run(_two_frames, 2)
        assert isinstance(error, Refused)
        assert "called twice for one batch" in str(error)
        assert 'job.write(frame, run="rest-of-0")' in error.next
        assert in_lake(by_hand.folder).total() == 250
    job = Job.from_toml(by_hand.path)

    def fixed(query: Query, frame: DataFrame, batch: int) -> None:
        if batch == 0:
            job.write(_part(frame, 1), run="rest-of-0")
        query(frame, batch)

    assert by_hand.run(fixed, 2) is None
    assert by_hand.has(range(2))


def _caught(query: Query, frame: DataFrame, batch: int) -> None:
    query(_part(frame, 0), batch)
    with suppress(*[ExactsinkError] * (batch == 0)):
        query(_part(frame, 1), batch)


def _on_threads(query: Query, frame: DataFrame, batch: int) -> None:
    def other_part() -> None:
        with suppress(ExactsinkError):
            query(_part(frame, 1), batch)

    beside = InheritableThread(target=other_part)  # has the query's local properties
    beside.start()
    query(_part(frame, 0), batch)
    beside.join()


def _fails_at_first(query: Query, frame: DataFrame, batch: int) -> None:
    with suppress(ExactsinkError):
        query(frame.selectExpr("id"), batch)
    query(frame, batch)


CAUGHT: dict[str, tuple[Around, str]] = {
    "a second call": (_caught, "batch 1 comes after a call that failed: epoch 0 came twice"),
    "on a thread": (_on_threads, "call that failed: exactsink's function was called on another thread"),
    "again after a failure": (_fails_at_first, "batch 0 comes after a call that failed: "),
}


@pytest.mark.parametrize(("around", "says"), CAUGHT.values(), ids=CAUGHT)
def test_after_an_error_that_was_caught_the_next_call_says_so(by_hand: ByHand, around: Around, says: str) -> None:
    error = by_hand.run(around, 3)
    assert isinstance(error, Retryable)
    assert says in error.what
    assert "caught that error" in error.why
    assert in_lake(by_hand.folder).total() <= 500


def test_a_call_on_a_thread_of_the_users_is_refused(by_hand: ByHand) -> None:
    def elsewhere(query: Query, frame: DataFrame, batch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(query, frame, batch).result()

    error = by_hand.run(elsewhere, 1)
    assert isinstance(error, ConfigError)
    assert "PYSPARK_PIN_THREAD" in error.why


def _skips(query: Query, frame: DataFrame, batch: int) -> None:
    if batch not in (1, 2):
        query(frame, batch)


def _fails_in_one(query: Query, frame: DataFrame, batch: int) -> None:
    with suppress(*[ExactsinkError] * (batch == 1)):
        query(frame.selectExpr("kind") if batch == 1 else frame, batch)


def _skips_the_last(query: Query, frame: DataFrame, batch: int) -> None:
    if batch == 0:
        query(frame, batch)


MISSED: dict[str, tuple[Around, int, int, str]] = {
    "not called": (_skips, 4, 4, "batches 1 to 2"),
    "its error was caught": (_fails_in_one, 3, 3, "batch 1"),
    "found by the next start": (_skips_the_last, 3, 4, "batches 1 to 2"),
}


@pytest.mark.parametrize(("around", "first", "then", "missed"), MISSED.values(), ids=MISSED)
def test_a_batch_for_which_it_was_not_called_is_named_and_given_again(
    by_hand: ByHand, around: Around, first: int, then: int, missed: str
) -> None:
    """In the run itself, and by each start after, until the printed command is followed."""
    errors = [by_hand.run(around, first), by_hand.run(_plainly, then), by_hand.run(_plainly, then)]
    if first == then:
        assert "the journal did not go back in time" in str(errors[0])
    else:
        assert errors.pop(0) is None, "Spark has no batch more that could show it"
    assert "journal and checkpoint agree on all batches before" in str(errors[-1])
    for error in errors:
        assert isinstance(error, LineageError)
        assert f"was not called for {missed}, or its error was caught" in error.what
    found = re.search(r"give batch 1 again: (.*?); or", str(errors[-1]))
    assert found is not None
    subprocess.run(found[1], shell=True, check=True)
    assert by_hand.run(_plainly, then + 1) is None
    assert by_hand.has(range(then + 1))


def test_a_job_group_of_the_users_is_no_new_run_of_the_query(by_hand: ByHand) -> None:
    def grouped(query: Query, frame: DataFrame, batch: int) -> None:
        frame.sparkSession.sparkContext.setJobGroup(f"mine-{batch % 2}", "a group of mine")
        query(frame, batch)

    assert by_hand.run(grouped, 3) is None
    assert by_hand.has(range(3))
    assert Job.from_toml(by_hand.path).journal().read().last_generation == 1

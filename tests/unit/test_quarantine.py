"""Rows that a sink can't hold: each goes to the sink or to its quarantine, counted, and judged the same again."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.judged import judged
from tests.unit.test_participant import Fake as IdleFake
from tests.unit.test_participant import FakeWriter, rows
from tests.unit.upsert_sink import SCHEMA, rows_of, upsert

from exactsink.contract import BatchValidator, Committed, ConfigError, Fatal, Retryable, Txn, Validator, Writer
from exactsink.job.config import bind_sinks, load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.participant import SinkRows, no_probe, write_partition
from exactsink.protocol.quarantine import QUARANTINE_ROWS, check_quarantined
from exactsink.protocol.votes import EpochPlan, Judging, SinkPlan, Vote
from exactsink.protocol.wire import dump_votes, load_votes
from exactsink.toolkit.row_json import row_json, safe_text
from exactsink_kafka.backend import KafkaBackend, KafkaOptions

JUDGED = {name: Judging("bad", b"odd", 3) for name in ("lake", "table")}
PLAN = EpochPlan("job", 7, 3, "ab", {name: SinkPlan(b"") for name in ("lake", "table", "bad")}, JUDGED)


class Fake(IdleFake):
    """Its rows are numbers. Odd ones are bad, by the rules `odd`; rows that are written are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[pa.RecordBatch] = []

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        def check(batch: pa.RecordBatch) -> str | None:
            odd = [n for n in batch.column("n").to_pylist() if n % 2 == 1]
            return f"{odd[0]} is {rules.decode()}" if odd else None

        return BatchValidator(check, schema)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _Kept(self, txn)


class _Kept(FakeWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        self._backend.written.append(batch)  # type: ignore[attr-defined]


def run(plan: EpochPlan, *batches: SinkRows) -> tuple[dict[str, Vote], dict[str, Fake]]:
    backends = {name: Fake() for name in PLAN.sinks}
    votes = list(write_partition(plan, backends, 4, 44, iter(batches), no_probe))
    (refusal,) = {vote.refusal for vote in votes}
    if refusal is not None:
        raise refusal
    return {vote.sink: vote for vote in votes}, backends


def digest(vote: Vote) -> int:
    return 0 if vote.committable is None else vote.committable.digest


BATCHES: Sequence[SinkRows] = [{"lake": rows(5, 6, 7), "table": rows(1)}, {"lake": rows(), "table": rows(8, 9)}]
"""Of the hashes 5, 6, 7 the second is a bad row's, as its number is 1; and 9."""


def test_each_row_goes_to_its_sink_or_to_the_quarantine_and_both_are_counted() -> None:
    votes, backends = run(PLAN, *BATCHES)
    assert [(v.sink, v.rows, v.quarantined, v.reason) for v in votes.values()] == [
        ("lake", 2, 1, "1 is odd"),
        ("table", 2, 1, "1 is odd"),
        ("bad", 2, 0, ""),
    ]
    assert (digest(votes["lake"]), digest(votes["table"])) == (5 + 7, 1 + 8)
    held = [row for batch in backends["bad"].written for row in batch.to_pylist()]
    reason = {"reason": "1 is odd", "row": '{"n": 1}', "epoch": 7}
    assert held == [{"id": f"job.{sink}.e7.p4.n1", "sink": sink, **reason} for sink in ("lake", "table")]
    assert backends["bad"].written[0].schema == QUARANTINE_ROWS
    check_quarantined(PLAN, list(votes.values()))


@pytest.mark.parametrize("lost", ["lake", "bad"])
def test_a_replay_of_one_sinks_lost_votes_judges_again_and_finds_the_same_rows(lost: str) -> None:
    first, _ = run(PLAN, *BATCHES)
    again = replace(PLAN, sinks={lost: SinkPlan(b"", frozenset({4}))})
    if lost == "lake":
        again = replace(again, judged={"lake": JUDGED["lake"]})
    votes, backends = run(again, *({**given} for given in BATCHES))
    assert votes.keys() == {lost}
    assert (votes[lost].rows, digest(votes[lost])) == (first[lost].rows, digest(first[lost]))
    assert [name for name, backend in backends.items() if backend.written] == [lost]
    check_quarantined(again, list(votes.values()))


def test_other_rules_give_a_replay_another_digest() -> None:
    first, _ = run(PLAN, *BATCHES)
    other = {name: replace(judging, rules=b"uneven") for name, judging in JUDGED.items()}
    again, _ = run(replace(PLAN, judged=other), *BATCHES)
    assert again["bad"].rows == first["bad"].rows
    assert digest(again["bad"]) != digest(first["bad"])


def test_where_rows_are_cut_is_no_part_of_the_quarantines_digest() -> None:
    whole, _ = run(PLAN, {"lake": rows(5, 6, 7, 8), "table": rows()})
    second = [part.slice(2) for part in rows(5, 6, 7, 8)]
    first = [part.slice(0, 2) for part in rows(5, 6, 7, 8)]
    cut, _ = run(PLAN, *({"lake": tuple(part), "table": rows()} for part in (second, first)))
    assert digest(cut["bad"]) == digest(whole["bad"])


def test_more_bad_rows_than_may_go_there_stop_the_epoch_in_the_task_and_over_all_tasks() -> None:
    with pytest.raises(Fatal, match=r"lake: more than 3 rows .* \(quarantine_at_most\): the first: 1 is odd"):
        run(PLAN, {"lake": rows(*range(8)), "table": rows()})
    votes, _ = run(PLAN, {"lake": rows(*range(6)), "table": rows()})
    other = [replace(vote, partition=5) for vote in votes.values()]
    with pytest.raises(Fatal, match="lake: more than 3 rows"):
        check_quarantined(PLAN, [*votes.values(), *other])


@pytest.mark.parametrize("got", [1, 3])
def test_an_epoch_is_refused_whose_quarantine_got_other_rows_than_were_found_bad(got: int) -> None:
    votes, _ = run(PLAN, *BATCHES)
    other = replace(votes["bad"], rows=got)
    with pytest.raises(Retryable, match=f"quarantine bad got {got} rows: 2 rows of lake, table were found bad"):
        check_quarantined(PLAN, [votes["lake"], votes["table"], other])


def test_a_validator_that_names_a_row_twice_or_one_that_is_not_there_stops_the_epoch() -> None:
    for places in ([0, 0], [1, 0], [3], [-1]):

        class Odd(Validator):
            def bad_rows(
                self, batch: pa.RecordBatch, places: Sequence[int] = tuple(places)
            ) -> Iterator[tuple[int, str]]:
                return iter([(place, "why") for place in places])

        backends = {name: Fake() for name in PLAN.sinks}
        backends["lake"].validator = lambda schema, rules, made=Odd: made()  # type: ignore[method-assign, misc]
        votes = list(write_partition(PLAN, backends, 4, 44, [{"lake": rows(1, 2), "table": rows()}], no_probe))
        assert "twice, or out of order" in str(votes[0].refusal)


def test_what_refuses_a_batch_without_rows_is_no_rows_fault() -> None:
    with pytest.raises(Fatal, match="the type"):
        BatchValidator(lambda batch: "the type", SCHEMA)


def test_votes_carry_what_was_found() -> None:
    votes, _ = run(PLAN, *BATCHES)
    assert load_votes(PLAN, dump_votes(list(votes.values()))) == list(votes.values())


def test_a_row_as_json_keeps_what_no_store_takes() -> None:
    names = ["n", "n", "text", "bytes", "decimal", "nan", "far", "when", "list", "map", "none"]
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\0")])
    columns = [
        *(pa.array([n]) for n in (1, 2)),
        text,
        pa.array([b"\xff\0"]),
        pa.array([Decimal("1.50")]),
        pa.array([float("nan")]),
        pa.array([2**62], pa.timestamp("us")),
        pa.array([dt.datetime(2026, 1, 2, 3, 4, 5)], pa.timestamp("us", "UTC")),
        pa.array([[{"a": None}, {"a": True}]]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        pa.array([None], pa.int8()),
    ]
    row = row_json(pa.RecordBatch.from_arrays(columns, names))
    assert json.loads(row) == {
        "n": 1,
        "n (1)": 2,
        "text": "a\\xff\0",
        "bytes": "/wA=",
        "decimal": "1.50",
        "nan": "nan",
        "far": str(2**62),
        "when": "2026-01-02 03:04:05.000000Z",
        "list": [{"a": None}, {"a": True}],
        "map": [["k", 1]],
        "none": None,
    }
    assert row.isascii()
    assert safe_text("a\0b\udcff") == "a\\0b\\udcff"


FORM = "id PRIMARY KEY, v TEXT NOT NULL, o BIGINT CHECK (o > 0), UNIQUE (o)"


def test_sqlite_judges_rows_as_its_writer_does_and_takes_the_others(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t ({FORM})")
    given = rows_of([(1, "a", 1), (None, "b", 2), (2, None, 3), (3, "c", -1), (4, "d", 4), (5, None, -1), (6, "e", 6)])
    bad, vote = judged(sink, given)
    assert bad == {
        1: "table t: key column id is NULL (or NaN) in 1 rows of a batch",
        2: "table t: column v is NOT NULL, and 1 rows of a batch have NULL there",
        3: "table t refuses the row with id = 3: CHECK constraint failed: o > 0",
        5: "table t: column v is NOT NULL, and 1 rows of a batch have NULL there",
    }
    assert sink.commit(1, [vote]) == [Committed()]
    assert sink.rows() == [(1, "a"), (4, "d"), (6, "e")]


def test_what_rows_break_together_is_not_judged_but_stops(tmp_path: Path) -> None:
    """A judgement must not hang on the rows beside it: they are others where the batch is cut anew."""
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t ({FORM})")
    same = rows_of([(1, "a", 1), (2, "b", 1)])
    rules = sink.with_committer(lambda committer: committer.row_rules(SCHEMA))
    assert list(sink.backend.validator(SCHEMA, rules).bad_rows(same.to_batches()[0])) == []
    with pytest.raises(Fatal, match="UNIQUE constraint failed"):
        sink.vote(1, same)


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = {"key": pa.binary(), "value": pa.string(), "topic": pa.string(), "partition": pa.int32()}
RECORD |= {"timestamp": pa.timestamp("us", "UTC"), "headers": HEADERS}
GOOD = {"key": b"k", "value": "v", "topic": "t", "partition": None, "timestamp": None, "headers": None}
RECORDS = [
    (GOOD, None),
    ({**GOOD, "topic": None}, "topic is NULL"),
    ({**GOOD, "topic": "a\0b"}, "NUL in its name"),
    ({**GOOD, "partition": -1}, "partition is negative"),
    ({**GOOD, "timestamp": dt.datetime(1969, 1, 1)}, "not after 1970"),
    ({**GOOD, "headers": [{"key": None, "value": b""}]}, "without a key"),
    ({**GOOD, "value": None, "key": None}, None),
    ({**GOOD, "value": "v" * 4963}, None),
    ({**GOOD, "value": "v" * 4964}, "has 4965 bytes, and message.max.bytes leaves 4964"),
    ({**GOOD, "value": "v" * 4891, "headers": [{"key": "h", "value": b"x" * 68}]}, None),
    ({**GOOD, "value": "v" * 4892, "headers": [{"key": "h", "value": b"x" * 68}]}, "has 4965 bytes"),
]


def test_kafka_judges_records_by_what_the_client_takes() -> None:
    from confluent_kafka import KafkaException, Producer

    from exactsink_kafka.records import Records

    options = KafkaOptions.model_validate({"bootstrap_servers": "127.0.0.1:1", "producer": {"message.max.bytes": 5000}})
    schema = pa.schema(list(RECORD.items()))
    batch = pa.RecordBatch.from_pylist([row for row, _ in RECORDS], schema=schema)
    found = dict(KafkaBackend(options).validator(schema, b"").bad_rows(batch))
    assert found.keys() == {place for place, (_, why) in enumerate(RECORDS) if why}
    assert all(why in found[place] for place, (_, why) in enumerate(RECORDS) if why)
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": 5000})
    for place, (row, _) in enumerate(RECORDS):
        if place in found and "bytes" not in found[place]:
            with pytest.raises(Fatal):
                Records(batch.slice(place, 1), None, "write")
            continue
        headers = [(header["key"], header["value"]) for header in row["headers"] or []]
        try:
            producer.produce("t", row["value"], row["key"], headers=headers)
        except KafkaException:
            assert place in found
        else:
            assert place not in found
    producer.purge()


def test_kafka_makes_records_of_quarantined_rows_without_the_jvm() -> None:
    row = {"id": "i", "sink": "s", "epoch": 7, "reason": 'a "b"', "row": "{}"}
    batch = pa.RecordBatch.from_pylist([row], schema=QUARANTINE_ROWS)

    def made(**given: object) -> list[dict[str, str]]:
        options = {"bootstrap_servers": "h:1", "topic": "t", "value_format": "json", **given}
        records: list[dict[str, str]] = (
            KafkaBackend(KafkaOptions.model_validate(options)).shape_in_task(batch).to_pylist()
        )
        return records

    assert made() == [{"value": json.dumps(row)}]
    assert made(key=["id"]) == [{"key": "i", "value": json.dumps(row)}]
    assert made(key=["sink", "epoch"])[0]["key"] == '{"sink": "s", "epoch": 7}'
    for wrong in ({"key": ["kind"]}, {"value_format": "columns"}):
        with pytest.raises(ConfigError, match="can't be a quarantine"):
            made(**wrong)


JOB = """
[job]
name = "j"
checkpoint = "/tmp/c"
[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:////tmp/t.db"
table = "t"
keys = ["id"]
on_bad_row = "quarantine"
quarantine = "bad"
[sinks.bad]
backend = "files"
path = "/tmp/bad"
format = "json"
"""
UPSERT = 'backend = "idempotent_upsert"\nurl = "sqlite:////tmp/t.db"\ntable = "b"\nkeys = ["id"]\n'
FILES = 'backend = "files"\npath = "/tmp/bad"\nformat = "json"\n'
CONFIGS = {
    "a sink that is not there": ('"bad"', '"bat"', "the job has no sink bat; did you mean bad"),
    "one without the other": ('quarantine = "bad"\n', "", 'give on_bad_row = "quarantine" and quarantine'),
    "stop with a quarantine": ('on_bad_row = "quarantine"', 'on_bad_row = "stop"', 'give on_bad_row = "quarantine"'),
    "a limit without a quarantine": (
        'on_bad_row = "quarantine"\nquarantine = "bad"\n',
        "quarantine_at_most = 3\n",
        "the sink has none",
    ),
    "itself": ('quarantine = "bad"\n', 'quarantine = "table"\n', "has quarantine, and can't be a quarantine"),
    "a quarantine with rows of its own": (FILES, FILES + 'where = "true"\n', "sink bad has where, and can't be"),
    "CSV": ('"json"', '"csv"', "can't be a quarantine with these options"),
    "rows that show early": (FILES, UPSERT + 'strategy = "direct"\n', "bad (direct) can't be a quarantine"),
    "rows that are shaped": (FILES, UPSERT + 'exclude = ["row"]\n', "can't be a quarantine with these options"),
    "a strategy without a judge": (
        'on_bad_row = "q',
        'strategy = "direct"\non_bad_row = "q',
        "idempotent_upsert (direct) can't judge rows",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_quarantine_that_could_not_be_kept_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    old, new, said = CONFIGS[case]
    job = tmp_path / "job.toml"
    assert old in JOB
    job.write_text(JOB.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        config, document = load_config(job)
        bind_sinks(config, document, Registry(installed_plugins()))
    assert said in str(refused.value)


def test_a_job_with_a_quarantine_is_bound(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    config, document = load_config(tmp_path / "job.toml")
    sinks = bind_sinks(config, document, Registry(installed_plugins()))
    assert (sinks["table"].quarantine, sinks["table"].quarantine_at_most) == ("bad", 1000)

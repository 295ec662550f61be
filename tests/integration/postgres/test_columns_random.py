"""Rows of every type at once, at random from a seed: what the server has is what was sent."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.integration.postgres.table_of_rows import filled, made, read
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

Make = Callable[[random.Random], Any]
FIRST = datetime(1, 1, 1)
WHOLE_RANGE = int((datetime.max - FIRST).total_seconds())


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.new_database("columns_random"), autocommit=True, prepare_threshold=None) as session:
        session.execute("SET timezone = 'UTC'")
        session.execute("CREATE DOMAIN cents AS numeric(12,2)")
        yield session


def whole(bits: int) -> Make:
    return lambda rng: rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) >> rng.randrange(bits)


def decimal(digits: int, scale: int) -> Make:
    return lambda rng: Decimal(rng.choice((1, -1)) * (rng.randrange(10**digits) // 10 ** rng.randrange(digits))).scaleb(
        -scale
    )


def text(rng: random.Random) -> str:
    return "".join(rng.choice("ab \t\\\"'{},é☃𝄞NULL") for _ in range(rng.choice((0, 1, 5, 50))))


def double(rng: random.Random) -> float:
    return rng.choice((rng.uniform(-1, 1), rng.uniform(-1e300, 1e300), float("inf"), -0.0, float(rng.randrange(9))))


def single(rng: random.Random) -> float:
    return float(struct.unpack("f", struct.pack("f", rng.uniform(-1e30, 1e30)))[0])


def moment(rng: random.Random) -> datetime:
    return FIRST + timedelta(seconds=rng.randrange(WHOLE_RANGE), microseconds=rng.randrange(10**6))


def zoned(rng: random.Random) -> datetime:
    return moment(rng).replace(tzinfo=timezone.utc)


def day(rng: random.Random) -> date:
    return moment(rng).date()


def clock(rng: random.Random) -> time:
    return moment(rng).time()


def span(rng: random.Random) -> timedelta:
    return timedelta(microseconds=rng.randint(-(10**16), 10**16))


SCALARS: list[tuple[str, pa.DataType, Make]] = [
    ("boolean", pa.bool_(), lambda rng: rng.random() < 0.5),
    ("smallint", pa.int64(), whole(16)),
    ("integer", pa.int16(), whole(16)),
    ("integer", pa.int64(), whole(32)),
    ("bigint", pa.int64(), whole(64)),
    ("numeric", pa.int32(), whole(32)),
    ("real", pa.float32(), single),
    ("double precision", pa.float64(), double),
    ("numeric", pa.decimal128(38, 18), decimal(38, 18)),
    ("numeric", pa.decimal128(38, 0), decimal(38, 0)),
    ("numeric(10,4)", pa.decimal128(30, 10), decimal(10, 4)),
    ("cents", pa.decimal128(12, 2), decimal(12, 2)),
    ("text", pa.string(), text),
    ("varchar(50)", pa.large_string(), text),
    ("text", pa.string_view(), text),
    ("text", pa.dictionary(pa.int32(), pa.string()), text),
    ("bytea", pa.binary(), lambda rng: rng.randbytes(rng.randrange(20))),
    ("uuid", pa.binary(16), lambda rng: uuid.UUID(int=rng.getrandbits(128))),
    ("uuid", pa.string(), lambda rng: uuid.UUID(int=rng.getrandbits(128))),
    ("date", pa.date32(), day),
    ("timestamp", pa.timestamp("us"), moment),
    ("timestamptz", pa.timestamp("us", "Europe/Berlin"), zoned),
    ("time", pa.time64("us"), clock),
    ("interval", pa.duration("us"), span),
]


def nullable(make: Make, rng: random.Random) -> Any:
    return None if rng.random() < 0.2 else make(rng)


def as_sent(values: list[Any], type: pa.DataType) -> pa.Array:
    def sent(value: Any) -> Any:
        if isinstance(value, list):
            return [sent(v) for v in value]
        if not isinstance(value, uuid.UUID):
            return value
        return value.bytes if "binary" in str(type) else str(value)

    return pa.array([sent(value) for value in values], type)


@pytest.mark.parametrize("seed", range(3))
def test_random_rows_of_all_types_come_back_as_they_were(connection: psycopg.Connection, seed: int) -> None:
    rng = random.Random(seed)
    listed = [(f"{kind}[]", pa.list_(arrow), make) for kind, arrow, make in SCALARS if kind != "cents"]
    columns = {f"c{place}": spec for place, spec in enumerate(SCALARS + listed)}
    order = rng.sample(sorted(columns), len(columns))
    sent: list[list[Any]] = []
    batches = []
    for count in (1, 40, 0, 60):
        rows = {}
        for name in order:
            kind, _, make = columns[name]
            if kind.endswith("[]"):
                rows[name] = [
                    nullable(lambda rng, make=make: [nullable(make, rng) for _ in range(rng.randrange(4))], rng)
                    for _ in range(count)
                ]
            else:
                rows[name] = [nullable(make, rng) for _ in range(count)]
        begin, end = (0, count) if count < 40 else (rng.randrange(1, 9), count - rng.randrange(1, 9))
        whole_batch = pa.record_batch({name: as_sent(rows[name], columns[name][1]) for name in order})
        batches.append(whole_batch.slice(begin, end - begin))
        sent += [list(row) for row in zip(*(rows[name][begin:end] for name in order), strict=True)]
    table = made(connection, {name: columns[name][0] for name in sorted(columns)})
    filled(connection, table, batches)
    found = [list(row) for row in read(connection, order)]
    for place, name in enumerate(order):
        got, wanted = [row[place] for row in found], [row[place] for row in sent]
        assert got == wanted, f"{name} {columns[name][:2]}"

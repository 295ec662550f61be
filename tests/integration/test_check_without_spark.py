"""`check --no-spark` on real servers: what of a target keeps rows of any columns out is found without a frame."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exactsink.cli import check_driver
from exactsink.cli.main import main
from exactsink.operate.driver_check import check_from_driver
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.unit.conftest import Ended

JOB = """
[job]
name = "orders"
checkpoint = "{folder}/chk"
require = "exactly_once"

[sinks.plain]
backend = "postgres"
conninfo = "{conninfo}"
table = "plain"
strategy = "staged"

[sinks.pg]
backend = "idempotent_upsert"
url = "{url}"
table = "kept"
keys = ["id"]

[sinks.maria]
backend = "idempotent_upsert"
url = "{maria}"
table = "kept"
keys = ["id"]

[sinks.lite]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/lite.db"
table = "kept"
keys = ["id"]

[sinks.topic]
backend = "kafka"
bootstrap_servers = "{bootstrap}"
topic = "{topic}"
marks_may_expire = true
"""
TABLE = "CREATE TABLE kept (nr BIGINT NOT NULL, id BIGINT NOT NULL {})"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], Ended]:
    """A busy machine is no target that hangs: it may take a minute."""
    monkeypatch.setattr(check_driver, "check_from_driver", partial(check_from_driver, seconds=60))

    def run() -> Ended:
        capsys.readouterr()
        return Ended(main(["check", "--no-spark", "--json", str(tmp_path / "job.toml")]), *capsys.readouterr())

    return run


def errors(ended: Ended) -> Mapping[str, Sequence[str]]:
    sinks: Mapping[str, Any] = ended.body["sinks"]
    return {
        name: [found["message"] for found in sink["findings"] if found["severity"] == "error"]
        for name, sink in sinks.items()
    }


def test_targets_are_looked_at_without_a_frame(
    tmp_path: Path, check: Callable[[], Ended], postgres: Postgres, mariadb: MariaDB, kafka: Kafka
) -> None:
    database, maria = postgres.new_database("check"), mariadb.new_database("check")
    role = f"clerk_{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    names = {"conninfo": database.replace("user=postgres", f"user={role}"), "bootstrap": kafka.bootstrap}
    name = dict(pair.split("=", 1) for pair in database.split())["dbname"]
    urls = {"url": postgres.url(name), "maria": mariadb.url(maria)}
    topic = f"check-{uuid.uuid4().hex[:8]}"
    text = JOB.format(folder=tmp_path, topic=topic, **names, **urls)
    (tmp_path / "job.toml").write_text(text)
    found = errors(check())
    assert ["table plain does not exist" in message for message in found["plain"]].count(True) == 1
    assert ["table kept does not exist" in " ".join(found[sink]) for sink in ("pg", "maria", "lite")] == [True] * 3
    assert f"topic {topic}" in found["topic"][0]

    # Tables are there, the role may not write, and no index is over the keys.
    postgres.execute("CREATE TABLE plain (id BIGINT)", name)
    postgres.execute(TABLE.format(""), name)
    mariadb.execute(TABLE.format(""), database=maria)
    with closing(sqlite3.connect(tmp_path / "lite.db")) as lite:
        lite.execute(TABLE.format(""))
    (tmp_path / "job.toml").write_text(text.replace(topic, kafka.new_topic("check", partitions=1)))
    found = errors(check())
    assert "may not insert into table" in " ".join(found["plain"])
    assert ["no unique index" in " ".join(found["pg"]), "no PRIMARY KEY" in " ".join(found["maria"])] == [True, True]
    assert "no PRIMARY KEY or UNIQUE index" in " ".join(found["lite"])
    assert found["topic"] == []

    # What a row could break is a warning; the rest is as it has to be.
    postgres.execute(f"GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON plain TO {role}", name)
    postgres.execute(f"GRANT ALL ON DATABASE {name} TO {role}", name)
    postgres.execute("CREATE UNIQUE INDEX ON kept (id); ALTER TABLE kept ADD UNIQUE (nr)", name)
    mariadb.execute("ALTER TABLE kept ADD PRIMARY KEY (id), ADD UNIQUE (nr)", database=maria)
    with closing(sqlite3.connect(tmp_path / "lite.db")) as lite:
        lite.execute("CREATE UNIQUE INDEX k ON kept (id)")
        lite.execute("CREATE UNIQUE INDEX n ON kept (nr)")
    ended = check()
    assert (ended.code, [message for found in errors(ended).values() for message in found]) == (0, [])
    for sink in ("pg", "maria", "lite"):
        assert "nr" in " ".join(one["message"] for one in ended.body["sinks"][sink]["findings"])
    assert "types of the columns of plain, pg, maria, lite, topic" in ended.body["not_looked_at"]

"""The mistakes of a first day, one after the other: each refused before the first row, and repaired as it says."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.e2e.drivers import Drivers
from tests.e2e.first_day import PASSWORD, Day, shop_server
from tests.e2e.jobs import ids, in_lake, in_table, write_source
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka
from tests.servers.postgres import PostgresServer
from tests.servers.waiting import wait_until

_JOB = """\
[job]
name = "first-day"
checkpoint = "/sys/first-day"
restarts = 0

[spark]
master = "local[2]"
"spark.sql.shuffle.partitions" = 2

[spark.conf]
spark.ui.enabled = false
spark.log.level = "ERROR"
spark.python.daemon.module = "tests.e2e.python_daemon"

[source]
format = "jsn"
path = "source"

[sinks.lake]
backend = "file"
path = "lake"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///table.db"
table = "rows"
key = ["id"]
columns = ["id", "kidn", "amount"]

[sinks.db]
backend = "postgres"
conninfo = "host={host} port={port} dbname=shop user=loader password='${{SHOP_PASSWORD}}'"
table = "rows"
columns = "id"

[sinks.out]
backend = "kafka"
bootstrap_servers = "{kafka}"
topic = "{topic}"
value_format = "json"
"""
_WRONG = "wr0ng-Pa55"


def test_each_message_leads_to_the_next_until_every_row_is_there_once(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, kafka: Kafka, capfd: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path, 2)
    day = Day(tmp_path, drivers, jvm, capfd)
    topic = kafka.new_topic("taken", 1) + "-first-day"
    with shop_server() as server:
        places = {"host": server.folder, "port": server.port, "kafka": kafka.bootstrap, "topic": topic}
        day.file.write_text(_JOB.format(**places))
        _file(day)
        server.start()
        _source(day)
        _server(day, server)
        _targets(day, server, kafka, topic)
        assert not (tmp_path / "lake").exists()
        assert not (tmp_path / "checkpoint").exists()
        assert "the job's guarantee: exactly once" in day.whole()
        assert in_lake(tmp_path) == in_table(tmp_path) == ids(2)
        assert Counter(row for (row,) in server.execute("SELECT id FROM rows", "shop")) == ids(2)
        assert Counter(json.loads(record.value or b"")["id"] for record in kafka.rows(topic)) == ids(2)
    assert day.leaks(PASSWORD) == day.leaks(_WRONG) == []


def _file(day: Day) -> None:
    """What the job's file alone shows: no JVM is started."""
    export = "\n  next: export SHOP_PASSWORD=..., or write ${SHOP_PASSWORD:-...}"
    day.refused(2, f"{day.at('conninfo')}: the environment has no SHOP_PASSWORD{export}", command="run")
    day.environment["SHOP_PASSWORD"] = ""
    day.refused(2, f"{day.at('conninfo')}: the environment's SHOP_PASSWORD is empty{export}", command="run")
    day.environment["SHOP_PASSWORD"] = _WRONG
    setting = '"spark.sql.shuffle.partitions" = 2'
    spark = "Spark's own settings belong in [spark.conf], under their whole names in quotes"
    narrow = day.at('columns = "id"')
    columns = 'sinks.db.columns: a list is wanted: write columns = ["id"]'
    both = f"{day.at(setting)}: unknown key spark.spark.sql.shuffle.partitions: {spark}"
    fix = f"\n  next: fix job.toml, then `exactsink check {day.file}`"
    day.refused(2, f"{both}\n{narrow}: {columns}{fix}", command="check")
    day.edit((f"{setting}\n", ""), ("[spark.conf]\n", f"[spark.conf]\n{setting}\n"))
    day.edit(('columns = "id"', 'columns = ["id"]'))
    near = "no backend file is installed; did you mean files?\n  next: name one of delta, files, iceberg, idempotent_up"
    day.refused(2, f"{day.at('backend = ')}: {near}", command="run")
    day.edit(('"file"', '"files"'))
    missing = f"{day.at('[sinks.table]')}: sinks.table.keys is missing"
    day.refused(2, f"{missing}\n{day.at('key =')}: unknown key sinks.table.key; did you mean keys?{fix}", command="run")
    day.edit(("key =", "keys ="), ('"local[2]"', '"local[2"'))


def _source(day: Day) -> None:
    """What Spark says of source and columns, in its words and with the place in the file."""
    day.refused(2, "Could not parse Master URL: 'local[2'\n  next: fix [spark] master: local[2], spark://HOST:7077, ")
    day.edit(('"local[2"', '"local[2]"'))
    lacks = "Spark refuses the source or its transform: org.apache.spark.SparkClassNotFoundException: "
    fix = 'next: fix [source] format; did you mean json?; or name the package that has it: [spark] packages = ["'
    day.refused(2, lacks, "Failed to find the data source: jsn.", fix)
    day.edit(('"jsn"', '"json"'))
    day.refused(2, "Schema must be specified", 'next: name it: [source] schema = "id BIGINT, name STRING"')
    day.edit(('path = "source"', 'path = "source"\nschema = "id BIGINT, kind STRING, amount DOUBLE"'))
    column = "sink table: Spark refuses its columns, where or types: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"
    day.refused(
        2, column, "name `kidn` cannot", "Did you mean one of the following? [`id`, `kind`, `amount`]", "\n  next: "
    )
    day.edit(('"kidn"', '"kind"'))


def _server(day: Day, server: PostgresServer) -> None:
    """A server that is down, a wrong password, a database that is not there."""
    place = f"sink db: connect to postgres://{server.folder}:{server.port}/shop: "
    server.stop()
    down = "\n  next: check that the server is up, then start the job again"
    day.refused(75, place, "Is the server running locally and accepting connections on that socket?", down)
    server.start()
    fix = (
        "\n  next: give the right user and password to the driver and every executor: in conninfo, a passfile or PGPASS"
    )
    day.refused(1, place, 'password authentication failed for user "loader"', fix)
    day.environment["SHOP_PASSWORD"] = PASSWORD
    day.edit(("dbname=shop", "dbname=shopp"))
    day.refused(1, 'database "shopp" does not exist', "next: make the database, or fix dbname in conninfo")
    day.edit(("dbname=shopp", "dbname=shop"))


def _targets(day: Day, server: PostgresServer, kafka: Kafka, topic: str) -> None:
    """Places that can't be written, and tables and topics that are not there or don't fit: all said at once."""
    day.refused(
        5, "the job's journal and state can't be written to /sys/first-day.exactsink: /sys: ", "sudo install -d -o "
    )
    day.edit(('"/sys/first-day"', '"checkpoint"'))
    server.execute("CREATE TABLE rows (id text)", "shop")
    said = day.refused(
        5,
        f"sink table: table rows does not exist in {day.folder}/table.db",
        'sink db: role "loader" may not make table public.exactsink_epochs',
        "sink db: table public.rows, column id: the rows' int64 does not go into text",
        'sink db: role "loader" may not insert into table public.rows',
        f"sink out: there is no topic {topic}, and exactsink does not rely on brokers to create it",
        f"next: fix that, then `exactsink check {day.file}`",
    )
    for statement in day.fixes(said):
        _obey(statement, day, server, kafka, topic)


def _obey(fix: str, day: Day, server: PostgresServer, kafka: Kafka, topic: str) -> None:
    """Do what a message says, as it says it."""
    if fix.startswith("kafka-topics.sh"):
        found = re.search(r"--create --topic (\S+) --partitions (\d+)", fix)
        assert found
        assert found[1] == topic
        admin, partitions = kafka.admin(), int(found[2])
        admin.create_topics([NewTopic(topic, partitions)])[topic].result()
        wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions, "the topic")
    elif "or run: " in fix:
        with closing(sqlite3.connect(day.folder / "table.db")) as connection:
            connection.executescript(fix.partition("or run: ")[2])
    else:
        server.execute(fix.split("; or ")[0].partition(", or ")[2] or fix.split("; or ")[0], "shop")

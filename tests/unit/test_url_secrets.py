"""A URL whose password is not percent-encoded is refused, and nothing of it is shown: its parts are anybody's guess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import Ended

from exactsink.job.config import load_config

Command = Callable[..., Ended]

SINK = '[sinks.s]\nbackend = "{}"\n'
LAKE = SINK.format("files") + 'path = "{folder}/lake"\n'
TABLE = SINK.format("idempotent_upsert") + 'table = "t"\nkeys = ["id"]\n'
PLACES = {
    "journal": LAKE + '[job]\njournal = "postgresql+psycopg://u:{password}@127.0.0.1:1/db"\n',
    "checkpoint": LAKE + '[job]\ncheckpoint = "s3://u:{password}@bucket/chk"\n',
    "staging": LAKE + '[job]\nstaging = "sftp://u:{password}@127.0.0.1/staging"\n',
    "source": LAKE + '[source]\nformat = "json"\npath = "s3a://u:{password}@bucket/rows"\n',
    "source options": LAKE
    + '[source]\nformat = "kafka"\noptions."kafka.bootstrap.servers" = "SASL://u:{password}@h:1"\n',
    "spark": LAKE + '[spark]\nmaster = "spark://u:{password}@127.0.0.1:1"\n',
    "sftp": SINK.format("files") + 'path = "sftp://u:{password}@127.0.0.1/lake"\n',
    "s3": SINK.format("files") + 'path = "s3://u:{password}@bucket/lake"\n',
    "postgres": SINK.format("postgres") + 'table = "t"\nconninfo = "postgresql://u:{password}@127.0.0.1:1/db"\n',
    "kafka": SINK.format("kafka") + 'topic = "t"\nbootstrap_servers = "SASL_SSL://u:{password}@127.0.0.1:1"\n',
    "upserts, postgresql": TABLE + 'url = "postgresql://u:{password}@127.0.0.1:1/db"\n',
    "upserts, mysql": TABLE + 'url = "mysql+pymysql://u:{password}@127.0.0.1:1/db"\n',
    "upserts, other": TABLE + 'url = "duckdb://u:{password}@127.0.0.1:1/db"\n',
}
PASSWORDS = ["al@OMEGA", "al/OMEGA", "al@b/OMEGA", "1/OMEGA", "al?OMEGA", "al#OMEGA", "al@b@OMEGA"]


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_url_that_can_be_read_in_two_ways_is_refused_without_its_text(
    place: str, password: str, tmp_path: Path, command: Command
) -> None:
    text = PLACES[place].format(folder=tmp_path, password=password)
    head = f'[job]\nname = "orders"\ncheckpoint = "{tmp_path}/chk"\n'
    job, _, more = text.partition("[job]\n") if "[job]" in text else (text, "", "")
    if place == "checkpoint":
        head = '[job]\nname = "orders"\n'
    path = tmp_path / "job.toml"
    path.write_text(f"{head}{more}{job}")
    for name, *options in (("status", "--within", "0.2"), ("status", "--json"), ("check", "--no-spark")):
        ended = command(name, str(path), *options)
        assert (ended.code, "OMEGA" in ended.out + ended.err) == (2, False), ended.err
    assert not list(tmp_path.rglob("*.exactsink"))


LEGAL = (
    *("s3://bucket/a@b/c", "sftp://me@host:22/a@b", "abfss://box@account/a@b", "hdfs://name:8020/a@b"),
    *("sftp://[::1]:22/lake", "postgresql://u:p%40@h/db", "mysql://h:1,h:2/db?charset=utf8", "jdbc:x://h/db?user=a@b"),
)


def test_an_at_sign_where_no_password_can_be_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    options = "\n".join(f'options.o{number} = "{url}"' for number, url in enumerate(LEGAL))
    source = f'[source]\nformat = "json"\n{options}\n{LAKE.format(folder=tmp_path)}'
    path.write_text(f'[job]\nname = "a"\ncheckpoint = "{tmp_path}/c"\n{source}')
    assert load_config(path)[0].source is not None

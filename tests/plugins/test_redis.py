"""The Redis plugin of the examples, on a real server: a crash of the server, and what preflight finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import Fatal, JobContext, LineageError, Retryable
from exactsink.testing import Session
from exactsink.testing.target import ROWS
from tests.plugins.conftest import rows
from tests.servers.redis import RedisServer, own_redis

PLUGIN = Path(__file__).parents[2] / "examples/plugins/exactsink-redis"
pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("installed")]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with own_redis() as started:
        yield started


def session(server: RedisServer, folder: Path, lineage: str = "ab", **options: Any) -> Session:
    from exactsink_redis import RedisBackend, RedisOptions

    values = {"url": server.url, "prefix": folder.name, "keys": ["id"], "count_by": ["kind"], **options}
    ctx = JobContext("shop", "cache", str(folder / "staging"), 1, lineage)
    return Session(RedisBackend(RedisOptions.model_validate(values)), ctx, lineage)


def test_what_is_committed_outlives_a_crash_of_the_server_with_its_mark(tmp_path: Path) -> None:
    with own_redis() as server:
        sink = session(server, tmp_path)
        voted = sink.prepare(0, [rows(1, 2), rows(3)])
        server.crash()
        with pytest.raises(Retryable, match="Redis can't be used"):
            sink.commit(0, voted)
        server.start()
        assert len(sink.commit(0, voted)) == 2
        server.crash()
        server.start()
        prefix = f"{{{tmp_path.name}}}"
        assert server.execute("HGETALL", f"{prefix}:count:kind") == {"k": "3"}
        assert server.execute("GET", f"{prefix}:row:3") == '{"id": 3, "kind": "k", "amount": 1.0}'
        with closing(sink.backend.committer(sink.ctx)) as committer:
            mark = committer.mark()
            assert mark is not None
            assert (mark.lineage, mark.epoch) == ("ab", 0)
        sink.commit(0, voted)  # again: it changes nothing
        assert server.execute("HGETALL", f"{prefix}:count:kind") == {"k": "3"}


def test_a_server_that_may_forget_is_refused_before_the_first_row(tmp_path: Path) -> None:
    with own_redis(("--appendonly no",)) as server:
        sink = session(server, tmp_path)
        with closing(sink.backend.committer(sink.ctx)) as committer:
            (found,) = committer.check(ROWS, None)
        assert (found.severity, "appendonly no" in found.message) == ("error", True)
        for setting in found.fix.removesuffix(", in redis.conf or by CONFIG SET").split(", "):
            server.execute("CONFIG", "SET", *setting.split(" "))
        with closing(sink.backend.committer(sink.ctx)) as committer:
            assert list(committer.check(ROWS, None)) == []


def test_what_would_break_an_epoch_in_the_middle_is_refused_whole(server: RedisServer, tmp_path: Path) -> None:
    """EXEC rolls nothing back, so nothing in it may fail by itself."""
    sink = session(server, tmp_path)
    server.execute("SET", f"{{{tmp_path.name}}}:count:kind", "no hash")
    with pytest.raises(Fatal, match="is not a hash"):
        sink.commit(0, sink.prepare(0, [rows(1)]))
    assert server.execute("KEYS", f"{{{tmp_path.name}}}:row:*") == []


def test_another_journals_epochs_are_refused(server: RedisServer, tmp_path: Path) -> None:
    first, second = (session(server, tmp_path, lineage) for lineage in ("ab", "cd"))
    first.commit(0, first.prepare(0, [rows(1)]))
    with pytest.raises(LineageError):
        second.commit(1, second.prepare(1, [rows(2)]))


def test_a_password_is_never_shown(server: RedisServer, tmp_path: Path) -> None:
    sink = session(server, tmp_path, url=f"redis://:s3cret@127.0.0.1:{server.port}/0")
    assert sink.backend.target == f"redis:127.0.0.1:{server.port}/0/{tmp_path.name}"
    assert "s3cret" not in repr(sink.backend.options)

"""A REST catalog: the kit on it, answers that are lost on the way, and a catalog that dies between vote and commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactsink.contract import AlreadyCommitted, Committed, Mark, Retryable
from exactsink.testing import ConformanceSuite, ConformanceTarget
from exactsink.testing.target import ROWS
from exactsink_iceberg.conformance import StrictTarget
from tests.integration.iceberg.lake import Lake, epochs, interrupted, rows
from tests.servers.iceberg_catalog import RestCatalog
from tests.servers.process import owned
from tests.servers.s3_proxy import cutting_s3
from tests.servers.s3_rules import Trap

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def kit_catalog() -> Iterator[RestCatalog]:
    with owned(RestCatalog()) as server:
        yield server


class TestIcebergOnRest(ConformanceSuite):
    @pytest.fixture
    def target(self, kit_catalog: RestCatalog) -> ConformanceTarget:
        return StrictTarget(("kind",), kit_catalog.uri)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
def test_an_answer_that_is_lost_on_the_way_puts_an_epoch_once(tmp_path: Path, landed: bool) -> None:
    cut = None if landed else lambda: (_ for _ in ()).throw(ConnectionError)
    with owned(RestCatalog()) as catalog, cutting_s3(catalog) as proxy:
        lake, trap = Lake(tmp_path, catalog.uri), Trap("^POST .*/tables/orders$", before=cut)
        sink = lake.session(uri=proxy.endpoint)
        assert sink.with_committer(lambda committer: list(committer.check(ROWS, None))) == []
        sink.put_birth()
        voted = sink.prepare(0, [rows(1, 2), rows(3)])
        outcomes = interrupted(sink, 0, voted, lambda: proxy.set(trap))
        assert outcomes == {AlreadyCommitted() if landed else Committed()}
        assert trap.sprung.is_set() == landed
        assert (lake.ids(), sink.mark()) == (Counter([1, 2, 3]), Mark("ab", 0, frozenset(["ab"])))


def test_a_catalog_that_is_killed_between_vote_and_commit_and_inside_it(tmp_path: Path) -> None:
    with owned(RestCatalog()) as catalog:
        lake = Lake(tmp_path, catalog.uri)
        epochs(sink := lake.session(), 0)
        voted = sink.prepare(1, [rows(1)])
        catalog.crash()
        with pytest.raises(Retryable, match=r"can.t be used: ConnectionError: .*127\.0\.0\.1"):
            sink.commit(1, voted)
        catalog.start()
        with pytest.raises(Retryable, match="can't be used"):
            interrupted(sink, 1, voted, catalog.crash)
        catalog.start()
        assert interrupted(sink, 1, voted, lambda: lake.table().append(rows(9))) == {Committed()}
        assert sink.commit(1, voted) == [AlreadyCommitted()]
        assert lake.ids() == Counter([0, 1, 9])

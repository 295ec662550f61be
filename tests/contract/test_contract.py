"""The contract's gate: strategies that nobody has shipped yet must fit it, and a misfit must not get through.

Each strategy beside this file is driven as the protocol drives it, and type-checked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mypy import api
from tests.contract.memory import MemoryBackend, Store
from tests.contract.strategies import Bucket, XaServer, txn_of, xid_of

from exactsink.contract import AlreadyCommitted, Committed, JobContext, Lost, Txn, Unknown, Writer
from exactsink.testing.session import Session

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TABLES = [pa.table({"id": [1, 2]}), pa.table({"id": [3]})]


def a_session(store: Store, folder: Path) -> Session:
    return Session(MemoryBackend(store), JobContext("orders", "table", str(folder), 3, "ab"), "ab")


def visible(session: Session) -> list[int]:
    """Return the ids that a reader of the store sees."""
    backend: Any = session.backend
    return sorted(row["id"] for row in backend.store.rows())


@pytest.fixture(params=[XaServer, Bucket])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    return a_session(request.param(), tmp_path)


def test_a_strategy_commits_once_whoever_asks_again(session: Session) -> None:
    votes = session.prepare(0, TABLES)
    assert {participant.ref for participant in session.listed()} == {vote.ref for vote in votes}
    assert visible(session) == []
    assert session.commit(0, votes) == [Committed(), Committed()]
    assert session.commit(0, votes, times=2) == [AlreadyCommitted(), AlreadyCommitted()]
    assert (visible(session), session.listed()) == ([1, 2, 3], [])


def test_a_strategy_lists_and_aborts_its_own_undecided_work_only(session: Session) -> None:
    other = Session(session.backend, replace(session.ctx, sink="other"), session.token)
    votes = session.prepare(0, TABLES)
    loser = session.write(0, 1, session.open(0, TABLES[1].schema), TABLES[1], attempt=9)
    assert other.listed() == []
    session.abort(*[listed for listed in session.listed() if listed.ref == loser.ref])
    session.commit(0, votes)
    assert (visible(session), session.listed()) == ([1, 2, 3], [])


def test_what_a_store_forgot_is_answered_for_what_it_is(tmp_path: Path) -> None:
    """A branch that is rolled back leaves no row of its own; an upload that is gone may have been completed."""
    xa, multipart = a_session(XaServer(), tmp_path), a_session(Bucket(), tmp_path)
    for session in (xa, multipart):
        votes = session.prepare(0, TABLES)
        session.abort(*session.listed())
        assert {type(outcome) for outcome in session.commit(0, votes)} == {Lost if session is xa else Unknown}
        assert visible(session) == []
    vote = xa.prepare(1, TABLES[:1])[0]
    assert isinstance(xa.commit(1, [replace(vote, payload=b"another server")])[0], Unknown)


@pytest.mark.parametrize("long", [False, True])
def test_every_transaction_fits_an_xid_and_reads_back(long: bool) -> None:
    most = 2**63 - 1
    txn = Txn("j" * 40, most, "s" * 40, most, "f" * 12, 2**31 - 1, most) if long else Txn("o", 7, "t", 3, "ab", 0, 41)
    assert max(len(part) for part in xid_of(txn)) <= 64
    assert txn_of(xid_of(txn)) == txn


def test_the_strategies_are_typed_as_the_contract_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature that is none of the contract's is an error too, so its own are not of any type."""
    monkeypatch.chdir(ROOT)
    misfit = tmp_path / "misfit.py"
    text, right = (FOLDER / "memory.py").read_text(), "def pre_commit(self) -> Committable:"
    misfit.write_text(text.replace(right, "def pre_commit(self) -> bytes:"))
    arguments = ("--strict", "--config-file", "pyproject.toml", f"--cache-dir={tmp_path / 'cache'}")
    assert api.run([*arguments, str(FOLDER)])[0].startswith("Success: no issues found")
    assert api.run([*arguments, str(misfit)])[0].count("[override]") == 1


def test_a_missing_method_does_not_get_through() -> None:
    class Half(Writer):
        def write(self, batch: pa.RecordBatch) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]

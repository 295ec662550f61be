"""Opening an epoch: the table is made, widened, or refused before the first row, also by two drivers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from exactsink_postgres.load import Ticket
from exactsink_postgres.session import IDLE_SECONDS, KeptSession
from tests.integration.postgres.branches import ROWS, Branches

pytest_plugins = ["tests.servers.fixtures", "tests.integration.postgres.two_phase_fixtures"]

WIDER = ROWS.append(pa.field("more", pa.float64()))


def columns(branches: Branches) -> list[str]:
    of = f"attrelid = '\"{branches.job}\"'::regclass AND attnum > 0"
    return [name for (name,) in branches.run(f"SELECT attname FROM pg_attribute WHERE {of} ORDER BY attnum")]


def test_the_table_is_made_once_by_drivers_that_start_together(branches: Branches) -> None:
    making = branches.with_(create=True)
    with ThreadPoolExecutor(6) as pool:
        tickets = list(pool.map(lambda _: making.ticket(), range(6)))
    assert columns(branches) == ["id", "kind"]
    assert len(set(tickets)) == 1
    reported = Ticket.load(tickets[0])
    assert (reported.relation, [c.name for c in reported.columns]) == (f'"public"."{branches.job}"', ["id", "kind"])


def test_columns_are_added_by_drivers_that_start_together(branches: Branches) -> None:
    widening = branches.table().with_(on_schema_change="add_columns")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: widening.ticket(1, WIDER), range(6)))
    assert columns(branches) == ["id", "kind", "more"]


def test_a_column_that_the_table_lacks_is_refused_with_the_statement_that_adds_it(branches: Branches) -> None:
    branches.table()
    with pytest.raises(Fatal, match="has no column more") as refused:
        branches.ticket(1, WIDER)
    statement = f'ALTER TABLE "public"."{branches.job}" ADD COLUMN IF NOT EXISTS "more" double precision'
    assert statement in refused.value.next
    branches.run(statement)
    branches.ticket(1, WIDER)


def test_a_type_that_does_not_fit_is_refused(branches: Branches) -> None:
    branches.table("id date, kind text")
    with pytest.raises(Fatal, match="column id"):
        branches.ticket()


def test_a_table_that_is_not_there_is_refused_with_the_statement_that_makes_it(branches: Branches) -> None:
    with pytest.raises(Fatal, match=f"there is no table {branches.job}") as refused:
        branches.ticket()
    assert f'CREATE TABLE IF NOT EXISTS "{branches.job}"' in refused.value.next
    assert "create = true" in refused.value.next


def test_looking_before_the_start_waits_for_no_lock_for_ever(branches: Branches) -> None:
    branches.table()
    branches.foreign(f"their {branches.job}", f'LOCK TABLE "{branches.job}" IN ACCESS EXCLUSIVE MODE')
    committer = branches.with_(lock_timeout_seconds=0.2).committer()
    reported = [finding.message for finding in committer.check(ROWS, 4)]
    committer.close()
    assert any("lock timeout" in message for message in reported), reported


def test_a_session_is_kept_and_one_that_was_idle_for_long_is_replaced(branches: Branches) -> None:
    clock = [100.0]
    session = KeptSession(branches.options.server, "a test", now=lambda: clock[0])
    pids = []
    for passed in (0.0, IDLE_SECONDS - 1, IDLE_SECONDS + 1):
        clock[0] += passed
        with session.use("ask") as connection:
            pids.append(connection.info.backend_pid)
    session.close()
    assert pids[0] == pids[1] != pids[2]
    assert branches.run("SELECT 1 FROM pg_stat_activity WHERE application_name = 'a test' AND state <> 'idle'") == []

"""A decided epoch is committed, whatever became of its participants before; ids, and ends that a partition lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.admin import AbortTransactionSpec

from exactsink.contract import Committed, Fatal, Lost, Unknown, Writer
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.transactions import Ticket, prefix
from tests.integration.kafka.marked import SCHEMA, Driver, Site, rows
from tests.integration.kafka.participants import Participants, kinds, transaction_of


def test_what_became_of_a_participant_before_is_reported_whatever_it_was(participants: Participants) -> None:
    """Each slot has a history of its own; all are asked for in one call."""
    with ThreadPoolExecutor(8) as pool:
        producers = list(pool.map(lambda slot: participants.begin(slot, f"{slot}-a", f"{slot}-b"), range(1, 11)))
    producers.insert(0, participants.begin(0, "0-a", "0-b"))  # last: what stays open hides no other's end
    votes = [participants.committable(slot, 2) for slot in range(11)]

    def ended(slot: int, *, commit: bool) -> None:
        assert participants.end(votes[slot], commit=commit) == [0]
        states = ("PrepareCommit", "PrepareAbort")
        while participants.wire.describe([participants.id(slot)])[participants.id(slot)].state in states:
            pass

    lost, shown = {1, 2, 5, 6, 8, 9}, {0, 3, 4, 7, 10}
    ended(1, commit=False)
    producers[2].abort_transaction()  # by librdkafka: another version
    producers[3].commit_transaction()
    ended(4, commit=True)
    participants.begin(4)  # taken again
    ended(5, commit=False)
    participants.begin(5)
    participants.begin(6)  # taken again while it was open: the broker aborts
    ended(7, commit=True)
    later = participants.vote(7, "7-later", "7-later")  # and written with, and aborted
    assert participants.end(later, commit=False) == [0]
    ended(8, commit=False)
    assert participants.end(participants.vote(8, "8-later", "8-later"), commit=True) == [0]
    producers[9].abort_transaction()  # versions mixed on one id: a stale commit looks like a success
    participants.begin(9, "9-later", "9-later").commit_transaction()
    producers[10].commit_transaction()  # and a stale commit like a loss
    participants.begin(10, "10-later", "10-later").abort_transaction()

    outcomes = dict(enumerate(participants.outcomes(*votes)))
    assert outcomes.pop(0) == Committed()  # was open
    assert {slot for slot, outcome in outcomes.items() if isinstance(outcome, Lost)} == lost
    assert set(kinds([outcomes[slot] for slot in shown - {0}])) == {"AlreadyCommitted"}
    for slot in lost:
        assert transaction_of(votes[slot]).ref in outcomes[slot].evidence  # type: ignore[union-attr]
    rows = [f"{slot}-{row}" for slot in shown for row in "ab"]
    assert participants.values() == sorted(rows + ["8-later"] * 2 + ["9-later"] * 2)


def test_an_epoch_is_opened_with_another_round_of_ids_each_time_and_not_without_its_topic(
    participants: Participants,
) -> None:
    committer, schema = participants.committer(), pa.schema([])
    tickets = [Ticket.load(committer.open_epoch(epoch, schema, 3)) for epoch in range(4)]
    committer.close()
    assert [ticket.round for ticket in tickets] == [0, 1, 2, 0]
    assert {(ticket.ids, ticket.cluster) for ticket in tickets} == {(4, participants.wire.cluster().id)}
    assert {(ticket.marking.joins, ticket.marking.keeper) for ticket in tickets} == {
        (participants.wire.cluster().joins, 1)
    }

    nowhere = KafkaCommitter(participants.options.model_copy(update={"topic": "no-such-topic"}), participants.ctx)
    with pytest.raises(Fatal, match="there is no topic no-such-topic") as refused:
        nowhere.open_epoch(0, schema, 3)
    nowhere.close()
    server = f"--bootstrap-server {participants.kafka.bootstrap}"
    made = f"kafka-topics.sh {server} --create --topic no-such-topic --partitions 6 --replication-factor 1"
    assert refused.value.next == made, "as preflight says it"


def test_a_transaction_that_an_administrator_aborts_in_one_partition_is_not_committed_with_half_its_rows(
    participants: Participants,
) -> None:
    """`kafka-transactions.sh abort` goes past the coordinator, which would answer a commit with success."""
    lacking, whole = participants.votes(2)
    one = transaction_of(lacking)
    place = TopicPartition(participants.topic, 0)
    participants.wire.admin.abort_transaction(AbortTransactionSpec(place, one.producer_id, one.producer_epoch))

    reported = participants.outcomes(lacking, whole)
    assert isinstance(reported[0], Unknown)
    assert f"{participants.topic}-0" in reported[0].evidence
    assert reported[1] == Committed()
    assert participants.wire.describe([one.id])[one.id].state == "Ongoing"

    assert participants.end(lacking, commit=False) == [0]  # as its timeout would
    assert participants.commit(lacking) == ["Lost"]
    assert participants.values() == ["1-a", "1-b"]


class Shared(Driver):
    """Once the winner of epoch 1 has voted, another attempt of its partition begins under the same id."""

    late: int = 0  # rows that it writes
    writers: list[Writer] = []  # noqa: RUF012 - kept: a task that is alive

    def _writing(self, backend: KafkaBackend, epoch: int) -> Callable[[EpochPlan], Sequence[Vote]]:
        write = super()._writing(backend, epoch)

        def voted(plan: EpochPlan) -> Sequence[Vote]:
            votes = write(plan)
            if epoch == 1 and not self.writers:
                txn = plan.txn("out", 0, epoch + backend.options.ids_per_participant)
                self.writers.append(backend.writer(txn, SCHEMA, plan.sinks["out"].ticket))
                for _ in range(self.late):
                    self.writers[0].write(rows("late").to_batches()[0])
                assert votes[0].committable is not None
                assert votes[0].committable.store_ref.startswith(f"{Ticket.load(plan.sinks['out'].ticket).id(txn)}/")
            return votes

        return voted


@pytest.mark.parametrize("late", [0, 1])
def test_an_attempt_that_takes_the_winners_id_costs_a_rewrite_and_no_row(site: Site, tmp_path: Path, late: int) -> None:
    driver = Shared(site, tmp_path / "journal")
    driver.late, driver.writers = late, []
    driver.run(0, 1, 2)
    assert len(driver.writers) == 1
    assert site.values() == [b"0", b"1", b"2"]
    found = site.mark()
    assert found is not None
    assert found.epoch == 2
    assert '"kind": "redecide"' in "".join(path.read_text() for path in driver.folder.glob("*.json"))
    with site.wire() as wire:
        assert wire.ongoing(prefix(site.job, "out")) == []

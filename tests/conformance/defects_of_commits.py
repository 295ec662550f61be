"""Ledgers whose commit has a defect."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pyarrow as pa

from exactsink.contract import AlreadyCommitted, Committable, Committed, Lost, Outcome, Unknown
from tests.conformance.reference_store import NotingCommitter, ReferenceCommitter, transaction


class DoublesOnRepeat(ReferenceCommitter):
    """Applies the rows again when it commits again."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        self.again([c for c, o in zip(committables, outcomes, strict=True) if isinstance(o, AlreadyCommitted)])
        return outcomes

    def again(self, committables: Sequence[Committable]) -> None:
        with transaction(self.path) as connection:
            for committable in committables:
                query = "SELECT ids FROM work WHERE name = ?"
                self.enter(connection, connection.execute(query, (self.name(committable),)).fetchone()[0])


class DoublesInOneProcess(DoublesOnRepeat):
    """Applies the rows again when the very same committer commits again."""

    last = -1

    def again(self, committables: Sequence[Committable]) -> None:
        if committables and self.last == committables[0].txn.epoch:
            super().again(committables)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        self.last = epoch
        return outcomes


class CommitsFromMemory(ReferenceCommitter):
    """Knows only what its own process has opened, and says of everything else that it is committed."""

    opened = -1

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        self.opened = epoch
        return super().open_epoch(epoch, schema, participants)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return super().commit(epoch, committables) if epoch == self.opened else [Committed() for _ in committables]


class RemembersOneEpoch(NotingCommitter):
    """Knows the last applied epoch only: an older one, of a driver that was stalled, is applied again."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        name = f"last {self.ctx.job} {self.ctx.sink}"
        if self.note(name) == epoch:
            return [AlreadyCommitted() for _ in committables]
        with transaction(self.path) as connection:
            for committable in committables:
                connection.execute("UPDATE work SET state = 'prepared' WHERE name = ?", (self.name(committable),))
                self.resolve(connection, self.name(committable))
        self.take_note(name, epoch)
        return [Committed() for _ in committables]


class NoGaps(NotingCommitter):
    """Takes an epoch without rows for one that is missing."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        last = self.note(f"last {self.ctx.job} {self.ctx.sink}")
        if last is not None and epoch > last + 1:
            return [Unknown(f"epoch {last + 1} was never committed")] * len(committables)
        self.take_note(f"last {self.ctx.job} {self.ctx.sink}", epoch)
        return super().commit(epoch, committables)


class OneByOne(ReferenceCommitter):
    """Applies the participants one after another, though it claims one moment."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return [super(OneByOne, self).commit(epoch, [committable])[0] for committable in committables]


class ChecksThenActs(DoublesOnRepeat):
    """Looks first, and applies what it saw, whatever happened since: two processes at once apply twice."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        waiting = set(self.names())
        seen = [committable for committable in committables if self.name(committable) in waiting]
        time.sleep(0.02)  # the window that a slow store leaves
        outcomes = ReferenceCommitter.commit(self, epoch, committables)
        self.again([c for c, o in zip(committables, outcomes, strict=True) if c in seen and o == AlreadyCommitted()])
        return outcomes


class RowsThenMark(ReferenceCommitter):
    """Applies in one transaction, and notes in another that it did."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return [self.one(self.name(committable)) for committable in committables]

    def one(self, name: str) -> Outcome:
        with transaction(self.path) as connection:
            state, ids = connection.execute("SELECT state, ids FROM work WHERE name = ?", (name,)).fetchone()
            if state == "committed":
                return AlreadyCommitted()
            self.enter(connection, ids)
        with transaction(self.path) as connection:
            connection.execute("UPDATE work SET state = 'committed' WHERE name = ?", (name,))
        return Committed()


class CallsLostCommitted(ReferenceCommitter):
    """Takes work that the store dropped for committed work."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        return [AlreadyCommitted() if isinstance(outcome, Lost) else outcome for outcome in outcomes]


class CallsAllLost(ReferenceCommitter):
    """Says that all is lost when one is."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        lost = [outcome for outcome in outcomes if isinstance(outcome, Lost)]
        return [lost[0]] * len(committables) if lost else outcomes


class SwallowsUnknown(ReferenceCommitter):
    """Takes what it does not know for committed work, and marks it."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        with transaction(self.path) as connection:
            for committable in committables:
                self.set_mark(connection, self.name(committable))
        return [AlreadyCommitted() if isinstance(outcome, Unknown) else outcome for outcome in outcomes]


class CallsUnknownLost(ReferenceCommitter):
    """Takes expired evidence for a proof of loss."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        return [Lost(o.evidence) if isinstance(o, Unknown) else o for o in outcomes]


class ReadsItsVersionOnly(ReferenceCommitter):
    """Can't read the payload of its own first version."""

    def name(self, committable: Committable) -> str:
        name: str = json.loads(committable.payload)["name"]
        return name


class OneMarkerForAll(NotingCommitter):
    """Marks the target's last epoch, whoever's it was."""

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        last = self.note("last epoch")
        if last is not None and last >= epoch:
            return [AlreadyCommitted() for _ in committables]
        outcomes = super().commit(epoch, committables)
        self.take_note("last epoch", epoch)
        return outcomes

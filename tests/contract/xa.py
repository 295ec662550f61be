"""A strategy to come: one XA branch per participant, on MySQL or MariaDB.

An xid holds 64 + 64 bytes, `Txn.id` up to 199 characters: the branch's name is the txn's fields packed, which read
back. The server remembers no outcome: a row written in the branch itself proves that it was committed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tests.contract.memory import Rows, Store

from exactsink.contract import AlreadyCommitted, Committed, Lost, Outcome, Traits, Txn, Unknown

Xid = tuple[bytes, bytes]


def xid_of(txn: Txn) -> Xid:
    """Pack a transaction's fields into gtrid (job, epoch, generation) and bqual (sink, token, partition, attempt)."""
    gtrid = struct.pack("<qq", txn.epoch, txn.generation) + txn.job.encode()
    token = txn.token.encode().ljust(12, b" ")
    return gtrid, token + struct.pack("<iq", txn.partition, txn.attempt) + txn.sink.encode()


def txn_of(xid: Xid) -> Txn:
    """Read the packed name back."""
    gtrid, bqual = xid
    epoch, generation = struct.unpack("<qq", gtrid[:16])
    partition, attempt = struct.unpack("<iq", bqual[12:24])
    sink, token = bqual[24:].decode(), bqual[:12].decode().rstrip()
    return Txn(gtrid[16:].decode(), epoch, sink, generation, token, partition, attempt)


class XaServer(Store):
    strategy, traits = "xa", Traits()

    def __init__(self, uuid: str = "first") -> None:
        self.uuid = uuid
        self._prepared: dict[Xid, Rows] = {}
        self._committed: dict[Xid, Rows] = {}
        """By the branch's own row, which is written in it."""

    def prepare(self, txn: Txn, rows: Rows) -> bytes:
        self._prepared[xid_of(txn)] = rows
        return self.uuid.encode()

    def commit(self, txn: Txn, payload: bytes) -> Outcome:
        xid = xid_of(txn)
        if payload.decode() != self.uuid:
            return Unknown("another server can prove nothing")
        if xid in self._prepared:
            self._committed[xid] = self._prepared.pop(xid)
            return Committed()
        return AlreadyCommitted() if xid in self._committed else Lost("the server rolled the branch back")

    def abort(self, txn: Txn) -> None:
        self._prepared.pop(xid_of(txn), None)

    def listed(self) -> Iterable[Txn]:
        return [txn_of(xid) for xid in self._prepared]

    def rows(self) -> Rows:
        return [row for rows in self._committed.values() for row in rows]

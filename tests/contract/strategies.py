"""Strategies to come, each over a store in memory that keeps what the real one would.

`XaServer`: one XA branch per participant, on MySQL or MariaDB. An xid holds 64 + 64 bytes, `Txn.id` up to 199
characters: the branch's name is the txn's fields packed, which read back. The server remembers no outcome: a row
written in the branch itself proves that it was committed.

`Bucket`: a multipart upload per participant on S3, completed by the driver. The object's key holds `Txn.id`, so it
reads back. Not every server lists uploads well: their ids are kept in records of our own beside the data.
"""

from __future__ import annotations

import json
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


class Bucket(Store):
    strategy, traits = "multipart", Traits(can_lose_votes=True)

    def __init__(self) -> None:
        self._records: dict[str, str] = {}
        self._uploads: dict[str, Rows] = {}
        self._objects: dict[str, tuple[str, Rows]] = {}

    def prepare(self, txn: Txn, rows: Rows) -> bytes:
        upload = f"upload-{len(self._records)}"
        self._records[txn.id] = upload  # before the first part: an upload without a record is nobody's
        self._uploads[upload] = rows
        return json.dumps({"upload": upload, "etag": f"etag-of-{upload}"}).encode()

    def commit(self, txn: Txn, payload: bytes) -> Outcome:
        vote = json.loads(payload)
        rows = self._uploads.pop(vote["upload"], None)
        if rows is not None:
            self._objects[txn.id] = (vote["etag"], rows)
        self._records.pop(txn.id, None)
        if txn.id not in self._objects or self._objects[txn.id][0] != vote["etag"]:
            return Unknown(f"neither an upload nor our object stands at {txn.id}")  # completed, and deleted since?
        return AlreadyCommitted() if rows is None else Committed()

    def abort(self, txn: Txn) -> None:
        self._uploads.pop(self._records.pop(txn.id, ""), None)

    def listed(self) -> Iterable[Txn]:
        return [txn for name in self._records if (txn := Txn.parse(name)) is not None]

    def rows(self) -> Rows:
        return [row for _, rows in self._objects.values() for row in rows]

"""A strategy to come: a multipart upload per participant on S3, completed by the driver.

The object's key holds `Txn.id`, so it reads back. Not every server lists uploads well: their ids are kept in records of
our own beside the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.contract.memory import Rows, Store

from exactsink.contract import AlreadyCommitted, Committed, Outcome, Traits, Txn, Unknown


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

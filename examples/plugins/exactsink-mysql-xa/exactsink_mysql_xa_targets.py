"""How the conformance kit reaches a server: the one that MYSQL_URL names, in a database for each scenario."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from exactsink.contract import Backend, Committable, ConfigError
from exactsink.testing import ConformanceTarget

from exactsink_mysql_xa import XaBackend
from exactsink_mysql_xa_server import Branch, Session, XaOptions, end, listed

_TABLE = "CREATE TABLE flights (id BIGINT, kind TEXT, amount DOUBLE, n BIGINT AUTO_INCREMENT PRIMARY KEY)"
_FOREIGN = "'kit','{}',1"


@dataclass(frozen=True)
class XaTarget(ConformanceTarget):
    """A table without a key for ids: each row of it is one application."""

    url: str

    def backend(self, folder: Path) -> Backend:
        with self._session("information_schema") as session:
            session.rows(f"CREATE DATABASE {self._database(folder)} CHARACTER SET utf8mb4")
        with self._session(self._database(folder)) as session:
            session.rows(_TABLE)
        return XaBackend(self._options(self._database(folder)))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(id for ids in self.order(folder) for id in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        with self._session(self._database(folder)) as session:
            return [[id for (id,) in session.rows("SELECT id FROM flights ORDER BY n")]]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        with self._session(self._database(folder)) as session:
            for lost in committables:
                scope = Branch.scope_of(lost.txn.job, lost.txn.sink, session.database)
                branches = listed(session, scope, lost.txn.job, lost.txn.sink)
                end(session, "XA ROLLBACK", {ref: b for ref, b in branches.items() if ref == lost.ref}, seconds=30)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        self.lose_votes(folder, committables)
        with self._session(self._database(folder)) as session:
            session.rows("DELETE FROM exactsink_xa")

    def foreign(self, folder: Path) -> None:
        with self._session(self._database(folder)) as session:
            xid = _FOREIGN.format(self._database(folder))
            for statement in ("XA START {}", "INSERT INTO flights (id) VALUES (-1)", "XA END {}", "XA PREPARE {}"):
                session.rows(statement.format(xid))

    def foreign_stands(self, folder: Path) -> bool:
        with self._session(self._database(folder)) as session:
            return any(row[3] == f"kit{self._database(folder)}".encode() for row in session.rows("XA RECOVER"))

    def _options(self, database: str) -> XaOptions:
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))
        return XaOptions.model_validate({"url": url, "table": "flights", "lock_timeout_seconds": 10})

    def _database(self, folder: Path) -> str:
        return f"kit_{zlib.crc32(str(folder).encode()):08x}"

    @contextmanager
    def _session(self, database: str) -> Iterator[Session]:
        session = Session(self._options(database))
        try:
            yield session
        finally:
            session.close()


def targets() -> Mapping[str, ConformanceTarget]:
    url = os.environ.get("MYSQL_URL")
    if not url:
        raise ConfigError("MYSQL_URL is not set", next="MYSQL_URL=mysql://root@localhost:3306/mysql, one to play with")
    return {"mysql_xa": XaTarget(url)}

"""MariaDB and MySQL as a sink of exactsink, by their own two-phase commit: one XA branch a participant.

A task ends with XA PREPARE. The driver, or any later process, ends the branch with XA COMMIT. A row in `exactsink_xa`,
which each branch writes itself, proves the commit: `exactsink_mysql_xa_server` says why a proof is needed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Backend,
    BackendSpec,
    Committable,
    Committed,
    Committer,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
    Writer,
    hookimpl,
)

from exactsink_mysql_xa_server import Branch, Session, XaOptions, end, explained, listed
from exactsink_mysql_xa_table import MARKS, MARKS_TABLE, created, findings, quoted, read_columns, table_findings

__all__ = ["XaBackend", "XaOptions", "exactsink_backends"]

_MARK = f"INSERT INTO {MARKS} (job, sink, epoch, ref, lineage, token) VALUES (%s, %s, %s, %s, %s, %s)"
_OF_SINK = f"FROM {MARKS} WHERE job = %s AND sink = %s"
_BIRTH = -1  # the epoch of a birth's row
_STATEMENT_BYTES = 512 * 1024
_LEFT_SECONDS = 10  # how long a server keeps the session of a machine that vanished after its vote was prepared
_CUT = 1265
_UNDECIDED = "the epoch is not decided yet, and is written again"
_DECIDED = "the epoch is decided, and is committed again; no row is lost"


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            "mysql_xa",
            load="exactsink_mysql_xa:XaBackend",
            install="pip install exactsink-mysql-xa",
            strategies={"xa": "tasks prepare XA branches in the table itself, the driver commits them"},
            conformance="exactsink_mysql_xa_targets:targets",
        )
    ]


class XaBackend(Backend):
    """The part that the executors get: options, no connection. The journal keeps its strategy and target."""

    Options = XaOptions
    options: XaOptions

    @property
    def strategy(self) -> str:
        return "xa"

    @property
    def target(self) -> str:
        place = self.options.place
        server = place.get("unix_socket") or f"{place['host']}:{place['port']}"
        return f"mysql:{server}/{place['database']}/{self.options.table}"

    @property
    def servers(self) -> tuple[str, ...]:
        place = self.options.place
        return () if "unix_socket" in place else (f"{place['host']}:{place['port']}",)

    @property
    def traits(self) -> Traits:
        return Traits(can_lose_votes=True, marks=True, appends=True)  # an administrator may roll a branch back

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return XaWriter(self.options, txn, schema, ticket)

    def committer(self, ctx: JobContext) -> Committer:
        return XaCommitter(self.options, ctx)


class XaWriter(Writer):
    """A task attempt's branch, in a session of its own: unless it is prepared, it ends with the session."""

    def __init__(self, options: XaOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._given = json.loads(ticket)
        self._txn, self._rows = txn, 0
        self._doing = f"sink {txn.sink}: write epoch {txn.epoch} to table {options.table}"
        columns = ", ".join(quoted(name).replace("%", "%%") for name in schema.names)
        values = ", ".join("%s" for _ in schema.names)
        self._insert = f"INSERT INTO {quoted(options.table)} ({columns}) VALUES ({values})"
        with explained(self._doing, _UNDECIDED):
            self._session = Session(options)
            try:
                fed_by = self._given["fed_by"]
                if fed_by and not self._session.rows(
                    f"SELECT 1 {_OF_SINK} AND lineage = %s", txn.job, txn.sink, fed_by
                ):
                    raise Fatal(
                        f"{self._doing}: this executor reaches another database than the driver",
                        why=f"journal {fed_by} has left no mark there; {_UNDECIDED}",
                        next="give a host in url that is the same everywhere",
                    )
                scope = bytes.fromhex(self._given["scope"])
                self._branch = Branch(scope, txn, self._session.id, self._session.now)
                self._session.rows(f"XA START {self._branch}")
            except BaseException:
                self.abort()
                raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Insert a batch's rows. The strict session refuses most misfits; this refuses values it rounds silently."""
        with explained(self._doing, _UNDECIDED):
            ticks = self._given["ticks"]
            columns = [self._values(name, batch.column(name), ticks.get(name, 1)) for name in batch.schema.names]
            rows = list(zip(*columns, strict=True))
            step = max(1, len(rows) * _STATEMENT_BYTES // max(1, batch.nbytes))
            for first in range(0, len(rows), step):
                self._put(rows[first : first + step])

    def pre_commit(self) -> Committable:
        txn = self._txn
        try:
            with explained(self._doing, _UNDECIDED):
                values = txn.job, txn.sink, txn.epoch, txn.id, self._given["lineage"], txn.token
                self._session.rows(_MARK, *values)
                self._session.rows(f"SET SESSION wait_timeout = {_LEFT_SECONDS}")
                self._session.rows(f"XA END {self._branch}")
                self._session.rows(f"XA PREPARE {self._branch}")
        finally:
            self.abort()  # a branch is free for others when its session has ended
        return Committable(txn, self._rows, b"")

    def abort(self) -> None:
        self._session.close()

    def _values(self, name: str, column: pa.Array, tick: int) -> list[Any]:
        """Return a column's values as the driver takes them."""
        try:
            column.validate(full=True)
            if pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False:
                raise ValueError("the server has no NaN or infinity")
            if pa.types.is_timestamp(column.type):
                instants = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
                if pc.any(pc.not_equal(pc.multiply(pc.divide(instants, tick), tick), instants)).as_py():
                    raise ValueError(f"the column keeps times to {tick} microseconds, and a row's is finer")
                column = instants.cast(pa.timestamp("us"))
            return cast("list[Any]", column.to_pylist())
        except (ValueError, OverflowError) as error:
            what = f"{self._doing}: column {name}: {error}"
            raise Fatal(what, why=_UNDECIDED, next="cast or filter such values before this sink") from error

    def _put(self, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows by one statement, because SHOW WARNINGS is about the last statement only."""
        with self._session.connection.cursor() as cursor:
            cursor.max_stmt_length = 2**30
            count = cursor.executemany(self._insert, rows)
            notes = self._session.rows("SHOW WARNINGS") if cursor.warning_count else ()
        cut = [said for _, code, said in notes if code == _CUT]  # strict sessions cut these: digits, trailing spaces
        if cut or count != len(rows):
            what = cut[0] if cut else f"the server took {count} of {len(rows)} rows"
            raise Fatal(f"{self._doing}: {what}", why=_UNDECIDED, next="cast or filter such values before this sink")
        self._rows += len(rows)


class XaCommitter(Committer):
    """The driver's side. It keeps a session, and reads the mark in the session that commits."""

    def __init__(self, options: XaOptions, ctx: JobContext) -> None:
        self._options, self._ctx, self._mine = options, ctx, (ctx.job, ctx.sink)
        self._session: Session | None = None
        self._read: Session | None = None  # the session that has read the mark last

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._using(f"check table {self._options.table}") as session:
            return list(findings(session, self._options.table, schema, create=self._options.create))

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        with self._using(f"check table {self._options.table}") as session:
            return list(findings(session, self._options.table, None, create=self._options.create))

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        table = self._options.table
        with self._using(f"prepare table {table} for epoch {epoch}") as session:
            if self._options.create and not read_columns(session, table):
                session.rows(created(table, schema))
            for found in table_findings(session, table, schema, create=False):
                if found.severity == "error":
                    raise Fatal(f"sink {self._ctx.sink}: {found.message}", next=found.fix)
            mark = self._stands(session)
            if mark is None:
                session.rows(MARKS_TABLE)
            columns = read_columns(session, table)
            given = {
                "scope": self._scope(session).hex(),
                "lineage": self._ctx.lineage,
                "fed_by": None if mark is None else mark.lineage,
                "ticks": {name: 10 ** (6 - (columns[name.lower()].precision or 0)) for name in schema.names},
            }
            return json.dumps(given).encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        doing = f"commit epoch {epoch} in table {self._options.table}"
        with self._using(doing, _DECIDED) as session:
            seen = self._seen(session, doing)
            branches = self._branches(session, committables)
            done = end(session, "XA COMMIT", branches, self._options.lock_timeout_seconds)
            proven = self._proven(session, epoch, committables)  # when the branches are gone, in a new statement
        return [Committed() if c.ref in done & proven else _resolved(c.ref, proven, done, seen) for c in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        doing = f"check how epoch {epoch} ended in table {self._options.table}"
        with self._using(doing) as session:
            seen = self._seen(session, doing)
            held = self._branches(session, committables)  # in this order, as in `commit`
            proven = self._proven(session, epoch, committables)
        return [Prepared() if c.ref in held else _resolved(c.ref, proven, (), seen) for c in committables]

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        if (column := self._ctx.epoch_column) is None:
            return {}
        name, table = quoted(column), quoted(self._options.table)
        with self._using("count its rows") as session:
            counted = f"SELECT {name}, COUNT(*) FROM {table} WHERE {name} >= %s OR {name} IS NULL GROUP BY {name}"
            return Audit.by_column(column, dict(session.rows(counted, min(epochs))), epochs)

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        with self._using("look up a prepared branch") as session:
            if participant.ref not in self._listed(session):
                return []
        table = self._options.table
        return [
            f"sessions that write the same key into table {table}: they wait for innodb_lock_wait_timeout",
            f"ALTER, DROP, TRUNCATE and CREATE INDEX of table {table} and of {MARKS}",
            "purge: rows deleted or updated since the branch began stay in the server's undo logs",
        ]

    def abort(self, undecided: Undecided) -> None:
        refs = {participant.ref for participant in undecided}
        with self._using(f"roll back {len(refs)} undecided participants", _UNDECIDED) as session:
            branches = {ref: branch for ref, branch in self._listed(session).items() if ref in refs}
            end(session, "XA ROLLBACK", branches, self._options.lock_timeout_seconds)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._using("list prepared branches") as session:
            [(now,)] = session.rows("SELECT UNIX_TIMESTAMP()")
            branches = self._listed(session).values()
            return [InDoubt.of(branch.txn, age_seconds=max(0.0, now - branch.begun)) for branch in branches]

    def mark(self) -> Mark | None:
        with self._using("read its mark") as session:
            mark, self._read = self._stands(session), session
            return mark

    def put_birth(self) -> Mark:
        with self._using("bind its target to this journal") as session:
            mark = self._stands(session)
            if mark is None:
                session.rows(MARKS_TABLE)
                birth = *self._mine, _BIRTH, "", self._ctx.lineage, ""
                session.rows(f"{_MARK} ON DUPLICATE KEY UPDATE epoch = epoch", *birth)  # an existing birth stays
                mark = self._stands(session)
        assert mark is not None
        return mark

    def trim_marks(self) -> None:
        with self._using("trim its marks") as session:
            below = f"AND epoch < (SELECT MAX(epoch) {_OF_SINK})"
            old = session.rows_if_there(f"SELECT epoch, ref {_OF_SINK} {below}", *self._mine, *self._mine)
            session.rows("START TRANSACTION")
            for epoch, ref in old:  # by its key: a DELETE of a range waits for the rows of prepared branches beside it
                session.rows(f"DELETE {_OF_SINK} AND epoch = %s AND ref = %s", *self._mine, epoch, ref)
            session.rows("COMMIT")

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _scope(self, session: Session) -> bytes:
        return Branch.scope_of(*self._mine, session.database)

    def _listed(self, session: Session) -> dict[str, Branch]:
        return listed(session, self._scope(session), *self._mine)

    def _branches(self, session: Session, committables: Sequence[Committable]) -> dict[str, Branch]:
        branches = self._listed(session)
        return {c.ref: branches[c.ref] for c in committables if c.ref in branches}

    def _seen(self, session: Session, doing: str) -> Mark | None:
        """Return the present mark, before a change. Raises Retryable if another session has read it before."""
        if self._read is not None and self._read is not session:
            what = f"sink {self._ctx.sink}: {doing}: the session that had read the mark is lost"
            why = "a new session may reach another server, so exactsink compares the mark there first"
            raise Retryable(what, why=why, next="wait: exactsink tries the commit again")
        return self._stands(session)

    def _proven(self, session: Session, epoch: int, committables: Sequence[Committable]) -> set[str]:
        """Return the participants with a mark; all of them if a later epoch has one."""
        query = f"SELECT epoch, ref {_OF_SINK} AND lineage = %s AND epoch >= %s"
        marks = session.rows_if_there(query, *self._mine, self._ctx.lineage, epoch)
        refs = {committable.ref for committable in committables}
        return refs if any(stored > epoch for stored, _ in marks) else refs.intersection(ref for _, ref in marks)

    def _stands(self, session: Session) -> Mark | None:
        """Read the mark: the rows of the highest epoch, another journal's first; without an epoch, the birth."""
        newest = f"AND epoch = (SELECT MAX(epoch) {_OF_SINK})"
        query = f"SELECT lineage, epoch, ref, token {_OF_SINK} {newest} ORDER BY lineage = %s"
        rows = session.rows_if_there(query, *self._mine, *self._mine, self._ctx.lineage)
        if not rows:
            return None
        lineage, epoch, _, _ = rows[0]
        if epoch == _BIRTH:
            return Mark(lineage)
        tokens = [token for of, _, _, token in rows if of == lineage]
        return Mark(lineage, epoch, frozenset(tokens), len(tokens))

    @contextmanager
    def _using(self, doing: str, safe: str = "") -> Iterator[Session]:
        """Return the kept session, or a new one if it is lost. An error closes the session."""
        with explained(f"sink {self._ctx.sink}: {doing}", safe):
            if self._session is not None and not self._session.is_alive():
                self.close()
            if self._session is None:
                self._session = Session(self._options)
            try:
                yield self._session
            except BaseException:
                self.close()
                raise


def _resolved(
    ref: str, proven: Collection[str], done: Collection[str], seen: Mark | None
) -> AlreadyCommitted | Lost | Unknown:
    """Return the outcome of a participant that is not prepared, given the mark that was read before."""
    if ref in proven:
        return AlreadyCommitted()
    if ref in done:  # see the top of this module
        return Unknown(
            f"the server answered OK to XA COMMIT of {ref}, but its rows don't show: restart the server, and it"
            " lists the branch again"
        )
    if seen is not None:
        return Lost(f"{ref} is not prepared, and left no mark; the target's mark is {seen}")
    return Unknown(f"{ref} is not prepared, and nothing in the target shows its outcome")

"""Random plays of an upsert sink against a plain dictionary: the same play on every database.

A play draws kinds of keys, version and sum, the table's columns, the options, and a few epochs of rows. Each epoch is
written twice and committed three times. Then the table has to hold what the dictionary does; or exactsink has refused
the rows before the decision, in `check` or in the task, and the table is unchanged.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import localcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from exactsink.contract import AlreadyCommitted, Committed, ExactsinkError, JobContext
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.table import DELETED, GUARD
from tests.differential.kinds import KINDS, canonical
from tests.differential.places import Place

ENDS = ("equal", "refused by check", "refused by a task")
Row = dict[str, Any]
_EPOCHS, _ROWS = 3, 14
_SUMS = ("whole", "whole", "price", "fine")
_CARELESS = ("TEXT COLLATE NOCASE", "text COLLATE plays.careless", "VARCHAR COLLATE NOCASE")
"""Columns for which `a` is `A`, as MariaDB's VARCHAR is: plays of texts in odd columns have few texts only."""
_FEW_TEXTS = ["a", "A", "b"]
_SURROGATE = {
    "sqlite": "INTEGER PRIMARY KEY",
    "postgres": "bigserial PRIMARY KEY",
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "duckdb": "BIGINT PRIMARY KEY DEFAULT nextval('numbers')",
}


class PlayError(AssertionError):
    """A table that differs from the dictionary, or a decided epoch that was not applied."""


@dataclass(frozen=True)
class Play:
    """What is played, drawn from a seed; `declared` is None where the sink makes the table."""

    seed: int
    database: str
    options: Mapping[str, Any]
    kinds: Mapping[str, str]
    declared: Mapping[str, str] | None
    surrogate: bool
    narrow: str | None

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.options["keys"])

    @property
    def table(self) -> str:
        """A name of its own: of a database that all plays share, none is dropped."""
        return f"t{self.seed}"

    @property
    def columns(self) -> list[str]:
        """The table's columns that a play looks at."""
        more = [] if self.declared is None else ["d", *(["sid"] if self.surrogate else [])]
        return [*self.kinds, *more]

    def schema(self, epoch: int) -> pa.Schema:
        """Return the rows' columns; before epoch 2 one may have another type."""
        arrow = {name: KINDS[kind].arrow for name, kind in self.kinds.items()}
        if epoch == 1 and self.narrow is not None:
            arrow[self.narrow] = KINDS[self.kinds[self.narrow]].narrow
        return pa.schema([*arrow.items(), *([(DELETED, pa.bool_())] if "delete_when" in self.options else [])])

    def values(self, name: str) -> Sequence[Any]:
        kind = self.kinds[name]
        if kind == "text" and name != "v" and (self.declared or {}).get(name) not in (None, "TEXT", "text", "VARCHAR"):
            return _FEW_TEXTS
        return KINDS[kind].values

    def epochs(self) -> Iterator[list[pa.Table]]:
        """Draw epochs of partitions; strategy direct gets all rows of an epoch in one."""
        chance = random.Random(f"rows {self.seed}")
        pool = {name: chance.sample(list(self.values(name)), min(4, len(self.values(name)))) for name in self.kinds}
        for epoch in range(1, _EPOCHS + 1):
            schema = self.schema(epoch)
            rows = [self._row(chance, pool, schema, f"{epoch}-{number}") for number in range(_ROWS)]
            cut = _ROWS if self.options["strategy"] == "direct" else chance.randrange(_ROWS + 1)
            parts = [part for part in (rows[:cut], rows[cut:]) if part]
            yield [pa.Table.from_pylist(part, schema=schema) for part in parts]

    def _row(self, chance: random.Random, pool: Mapping[str, Sequence[Any]], schema: pa.Schema, value: str) -> Row:
        row: Row = {}
        for name in self.kinds:
            some = [one for one in pool[name] if _fits(one, schema.field(name).type)] or [None]
            row[name] = chance.choice(some)
        row["v"] = value
        if chance.random() < 0.15:
            ordered = self.kinds["o"] == "float" and not {"order_by", "version"}.isdisjoint(self.options)
            row["o"] = float("nan") if ordered and chance.random() < 0.05 else None
        return {**row, DELETED: chance.random() < 0.3} if DELETED in schema.names else row

    def identity(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what is equal where the table's keys are."""
        return tuple(self._folded(name, canonical(self.kinds[name], row[name])) for name in self.keys)

    def _folded(self, name: str, value: Any) -> Any:
        declared = (self.declared or {}).get(name, "")
        careless = declared in _CARELESS or (self.database, declared) == ("mariadb", "VARCHAR(9)")
        return value.lower() if careless and isinstance(value, str) else value

    def __str__(self) -> str:
        said = {**self.options, **{f"{name}:": kind for name, kind in self.kinds.items() if name != "v"}}
        table = "made by the sink" if self.declared is None else f"{dict(self.declared)}"
        table += " with sid" if self.surrogate else ""
        more = f", {self.narrow} was narrower" if self.narrow else ""
        return f"seed {self.seed} on {self.database}: {said}, table {table}{more}"


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        return bool(pa.array([value], kind).cast(kind)[0].as_py() == value or kind in (pa.float64(), pa.float32()))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False


def drawn(seed: int, database: str) -> Play:
    """Draw a play; of one seed it differs between databases in the columns' declarations only."""
    chance = random.Random(f"play {seed}")
    keys = tuple(f"k{number}" for number in range(1, 1 + chance.choice((1, 1, 2))))
    kinds = {name: chance.choice(list(KINDS)) for name in keys}
    kinds |= {"v": "text", "n": chance.choice(_SUMS), "o": chance.choice([kind for kind in KINDS if kind != "flag"])}
    options = _options(chance, keys, f"t{seed}")
    if database == "duckdb":  # portable SQL has this strategy only
        options = {**options, "strategy": "staged"}
    places = {name: chance.random() for name in kinds}
    declared = (
        None if chance.random() < 0.3 else {name: _declared(kinds[name], database, places[name]) for name in kinds}
    )
    widens = [name for name in (*keys, "n", "o") if KINDS[kinds[name]].narrow is not None]
    narrow = chance.choice(widens) if widens and chance.random() < 0.2 else None
    surrogate = chance.random() < 0.3 and declared is not None
    return Play(seed, database, options, kinds, declared, surrogate, narrow)


def _declared(kind: str, database: str, place: float) -> str:
    """Choose the natural type mostly, else another one."""
    natural, *odd = KINDS[kind].declared[database]
    return natural if place < 0.8 or not odd else odd[int(place * 1000) % len(odd)]


def _options(chance: random.Random, keys: Sequence[str], table: str) -> Mapping[str, Any]:
    while True:
        some: list[dict[str, Any]] = [
            {"strategy": chance.choice(("staged", "staged", "direct"))},
            chance.choice(({}, {"mode": "insert_if_absent"}, {"mode": "replace"})),
            chance.choice(({}, {}, {"update_columns": ("n",)}, {"update_columns": ()})),
            chance.choice(({}, {}, {"set": {"n": f"{table}.n + excluded.n"}})),
            chance.choice(({}, {"order_by": "o"}, {"version": "o"})),
            chance.choice(({}, {"delete_when": "v = ''"})),
        ]
        options = {name: value for part in some for name, value in part.items()} | {"keys": tuple(keys)}
        try:
            UpsertOptions.model_validate({"url": "sqlite:////x.db", "table": "t", **options})
        except ValidationError:
            continue
        return options


def applied(
    options: Mapping[str, Any], identity: Callable[[Row], Any], stands: dict[Any, Row], rows: Sequence[Row]
) -> None:
    """Apply an epoch's rows to a dictionary of rows by the identity of their keys."""
    order: str | None = options.get("order_by") or options.get("version")
    if order is not None:
        if any(row[order] != row[order] for row in rows):
            raise PlayError(f"{options}\na NaN, which has no order, was taken as `{order}`")
        rows = sorted(rows, key=lambda row: (row[order] is not None, 0 if row[order] is None else row[order]))
    for row in rows:
        key = identity(row)
        held, mode = stands.get(key), options.get("mode")
        if held is not None and "version" in options and _is_older(row[options["version"]], held[options["version"]]):
            continue
        if row.get(DELETED):
            stands.pop(key, None)
        elif held is None:
            stands[key] = {"d": 7, "sid": None, **row}
        elif mode == "replace":
            stands[key] = {**held, "d": 7, **row}
        elif mode != "insert_if_absent":
            _updated(options, held, row)


def _is_older(version: Any, held: Any) -> bool:
    return held is not None and (version is None or version < held)


def _updated(options: Mapping[str, Any], held: Row, row: Row) -> None:
    some, version = options.get("update_columns"), options.get("version")
    keys = options["keys"]
    names = row if some is None else [*some, *([version] if version else [])]
    with localcontext() as exact:
        exact.prec = 100
        total = held["n"] + row["n"]
    held.update({name: row[name] for name in names if name not in keys and name != DELETED})
    if "set" in options:
        held["n"] = total


def play(given: Play, place: Place, folder: Path) -> tuple[str, str]:
    """Play it; return how it ended, and why. Raises PlayError."""
    _make(given, place)
    session = _session(given, place, folder)
    stands: dict[Any, Row] = {}
    for epoch, partitions in enumerate(given.epochs(), start=1):
        try:
            votes, abandoned, session = _written(session, epoch, partitions)
        except ExactsinkError as error:
            _compare(given, place, stands, f"after a refusal in epoch {epoch}: {error}")
            return ENDS[1] if isinstance(error, _Checked) else ENDS[2], error.what
        outcomes = [_committed(given, session, epoch, some) for some in (votes, votes, abandoned)]
        wanted = [[kind()] * len(votes) for kind in (Committed, AlreadyCommitted, AlreadyCommitted)]
        if outcomes != wanted:
            raise PlayError(f"{given}\nepoch {epoch}: outcomes {outcomes}")
        applied(given.options, given.identity, stands, [row for part in partitions for row in part.to_pylist()])
        _compare(given, place, stands, f"after epoch {epoch}")
        if given.declared is not None:
            place.run(f"UPDATE {given.table} SET d = 8")
            for row in stands.values():
                row["d"] = 8
    natural = KINDS["whole"].declared[place.database][0]
    if given.kinds["o"] == "whole" and (given.declared or {}).get("o", natural) == natural:
        _audit(given, session, Counter(row["o"] for row in stands.values()))
    return ENDS[0], ""


def _audit(given: Play, session: Session, held: Counter[int | None]) -> None:
    """Let the database count its rows by a whole column, as if that held epochs: from 2 on; of 9 there is none."""
    with closing(session.backend.committer(replace(session.ctx, epoch_column="o"))) as committer:
        found = committer.audit({2: (), 9: ()}, deep=False)
    none = None if held[None] else 0  # rows without an epoch may be any epoch's
    wanted = {epoch: held[epoch] or none for epoch in (2, 9)}
    wanted |= {epoch: rows for epoch, rows in held.items() if epoch is not None and epoch > 2}
    if {epoch: audit.rows for epoch, audit in found.items()} != wanted:
        raise PlayError(f"{given}\nthe audit found {found}, the dictionary has {wanted}")
    if not all(audit.at_most or audit.rows is None for audit in found.values()):
        raise PlayError(f"{given}\nthe audit counts as all rows what others may have added to: {found}")


class _Checked(ExactsinkError):
    """A finding of `check`."""


def _written(session: Session, epoch: int, partitions: Sequence[pa.Table]) -> tuple[Any, Any, Session]:
    """Write the epoch as a driver that dies, then as the next one. Raises what refuses it."""
    found = session.with_committer(lambda committer: list(committer.check(partitions[0].schema, None)))
    for finding in found:
        if finding.severity == "error":
            raise _Checked(finding.message, next=finding.fix)
    abandoned = session.prepare(epoch, partitions)
    session = replace(session, ctx=replace(session.ctx, generation=epoch + 1))
    return session.prepare(epoch, partitions), abandoned, session


def _committed(given: Play, session: Session, epoch: int, votes: Any) -> Any:
    try:
        return session.commit(epoch, votes)
    except Exception as error:
        raise PlayError(f"{given}\nepoch {epoch} is decided, and not applied: {error!r}") from error


def _make(given: Play, place: Place) -> None:
    if given.declared is None:
        return
    if place.database == "duckdb":
        place.run("CREATE SEQUENCE IF NOT EXISTS numbers")
    guard = [f"{name} BIGINT" for name in GUARD if given.options["strategy"] == "direct"]
    keyed = ", ".join(given.keys)
    own = [f"{name} {kind}{' NOT NULL' if name in given.keys else ''}" for name, kind in given.declared.items()]
    unique = f"{'UNIQUE' if given.surrogate else 'PRIMARY KEY'} ({keyed})"
    surrogate = [f"sid {_SURROGATE[place.database]}"] if given.surrogate else []
    place.run(f"CREATE TABLE {given.table} ({', '.join([*own, 'd BIGINT DEFAULT 7', *guard, *surrogate, unique])})")


def _session(given: Play, place: Place, folder: Path) -> Session:
    options = {"url": place.url, "table": place.prefix + given.table, "create": given.declared is None, **given.options}
    backend = UpsertBackend(UpsertOptions.model_validate({**options, "busy_timeout_seconds": 5}))
    context = JobContext(f"p{given.seed}", "out", str(folder / f"staging-{given.seed}"), 1, "l1")
    session = Session(backend, context, "0123456789abcdef")
    session.put_birth()
    return session


def _compare(given: Play, place: Place, stands: dict[Any, Row], when: str) -> None:
    rows = _read(given, place)
    found = {given.identity(row): row for row in rows}
    if len(found) != len(rows):
        raise PlayError(f"{given}\n{when}: keys that are equal have {len(rows)} rows of {len(found)} keys: {rows}")
    for key in itertools.chain(found, stands.keys() - found.keys()):
        differs = _difference(given, found.get(key), stands.get(key))
        if differs:
            raise PlayError(f"{given}\n{when}: key {key}: {differs}")
    for key, row in stands.items():
        row["sid"] = found[key].get("sid")


def _difference(given: Play, row: Row | None, wanted: Row | None) -> str:
    if row is None or wanted is None:
        return f"the table has {row}, the dictionary {wanted}"
    names = [name for name in given.columns if name not in given.keys and not (name == "sid" and wanted[name] is None)]
    kinds = given.kinds
    for name in names:
        have, want = (canonical(kinds[name], one[name]) if name in kinds else one[name] for one in (row, wanted))
        if have != want:
            return f"{name} is {row[name]!r}, the dictionary has {wanted[name]!r}"
    return ""


def _read(given: Play, place: Place) -> list[Row]:
    if given.declared is None and not _there(place, given.table):
        return []
    columns = [_exactly(place.database, given.kinds.get(name)).format(name) for name in given.columns]
    found = place.run(f"SELECT {', '.join(columns)} FROM {given.table}")
    return [dict(zip(given.columns, row, strict=True)) for row in found]


def _exactly(database: str, kind: str | None) -> str:
    """Return the expression that reads all of a value: of floats MariaDB and PostgreSQL show fewer digits."""
    if database == "duckdb" and kind in ("local", "instant"):
        return "CAST({} AS VARCHAR)"
    return {"mariadb": "{} + 0e0", "postgres": "{}::float8"}.get(database, "{}") if kind == "float" else "{}"


def _there(place: Place, table: str) -> bool:
    if place.database == "sqlite":
        return bool(place.run(f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"))
    return bool(place.run(f"SELECT 1 FROM information_schema.tables WHERE table_name = '{table}'"))

"""The SQL that the backend runs, and that its findings print: tables, indexes, the upsert. Driver only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import BigInteger, Boolean, Column, Double, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from exactsink_idempotent_upsert.values import Storage, storage

__all__ = ["MARKER_TABLE", "add_column", "create_marker_table", "create_table", "quoted", "unique_index", "upsert"]

MARKER_TABLE = "exactsink_epochs"

_TYPES: dict[Storage, type[TypeEngine[Any]]] = {
    "INTEGER": BigInteger,
    "REAL": Double,
    "TEXT": Text,
    "BLOB": LargeBinary,
}


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def create_table(table: str, keys: Sequence[str], schema: pa.Schema) -> str:
    """Give the CREATE TABLE IF NOT EXISTS for a frame: its columns, with the keys as primary key."""
    columns: list[Column[Any]] = [
        Column(field.name, _type(field.type), primary_key=field.name in keys) for field in schema
    ]
    return _text(Table(table, MetaData(), *columns))


def create_marker_table() -> str:
    """Give the CREATE TABLE IF NOT EXISTS for the markers: the last applied epoch of every (job, sink)."""
    columns: list[Column[Any]] = [
        Column("job", Text, primary_key=True),
        Column("sink", Text, primary_key=True),
        Column("lineage", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("generation", BigInteger, nullable=False),
    ]
    return _text(Table(MARKER_TABLE, MetaData(), *columns))


def add_column(table: str, field: pa.Field) -> str:
    """Give the statement that adds a frame's column to the table."""
    declared = _type(field.type).compile(sqlite.dialect())
    return f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(field.name)} {declared};"


def unique_index(table: str, keys: Sequence[str]) -> str:
    """Give the statement that makes the keys an upsert's conflict target."""
    name = quoted("_".join(("exactsink", table, *keys)))
    return f"CREATE UNIQUE INDEX {name} ON {quoted(table)} ({_names(keys)});"


def upsert(table: str, keys: Sequence[str], columns: Sequence[str], rows: str = "") -> str:
    """Give the INSERT .. ON CONFLICT for rows bound one by one, or for those of a SELECT.

    The table is named with its schema: a temporary table of the same name must not take its place.
    """
    rows = rows or f"VALUES ({', '.join('?' * len(columns))})"
    others = [name for name in columns if name not in keys]
    assignments = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
    action = f"DO UPDATE SET {assignments}" if others else "DO NOTHING"
    return f"INSERT INTO main.{quoted(table)} ({_names(columns)}) {rows} ON CONFLICT ({_names(keys)}) {action}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _type(type: pa.DataType) -> TypeEngine[Any]:
    if pa.types.is_boolean(type):
        return Boolean()
    stored = storage(type)
    if stored is None:
        raise ValueError(f"SQLite can't hold {type}")
    return _TYPES[stored]()


def _text(table: Table) -> str:
    return str(CreateTable(table, if_not_exists=True).compile(dialect=sqlite.dialect())).strip()

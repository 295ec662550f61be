"""Skeleton: a keyed store with conditional writes but without transactions (a document or wide-column store).

Fits IdempotentBackend as is: the framework stages, proves and replays; the store compares versions, row by row. That
guard is also why only one job and sink may own the keys: see docs/decisions/0002. `tests/unit/keyed_sink.py` is one
that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import pyarrow as pa
from pydantic import SecretStr

from exactsink.contract import Backend, BackendOptions, Finding, IdempotentBackend, Version


class KeyedOptions(BackendOptions):
    endpoint: str
    password: SecretStr
    collection: str
    keys: tuple[str, ...]
    strategy: Literal["keyed"] = "keyed"


class KeyedBackend(IdempotentBackend):
    Options = KeyedOptions
    options: KeyedOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"keyed:{self.options.endpoint}/{self.options.collection}"

    @property
    def keys(self) -> Sequence[str]:
        return self.options.keys

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        return ()  # the collection exists, or may be made; a conditional put is honoured

    def prepare(self, schema: pa.Schema) -> None:
        return None  # make the collection

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        # for each of version.rows(batches): put it with its version's text, if the key is absent or holds a lower text;
        # where that is refused, read the stored text: replaces(Version.parse(it)) reports rows of another journal
        raise NotImplementedError


SAMPLE: Backend = KeyedBackend(
    KeyedOptions.model_validate(
        {"endpoint": "localhost:8000", "password": "not a secret", "collection": "orders", "keys": ["id"]}
    )
)

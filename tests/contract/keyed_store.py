"""Skeleton: a keyed store with conditional writes but without transactions (a document or wide-column store).

StagedBackend fits better than the plain contract: nothing may show before the decision, so the rows must wait
somewhere, and the staging, votes and sweep would be the same again. One sentence of `Applier.apply` does not fit:
"in ONE transaction". Here a row is put with the version (epoch, place in the epoch) and only over a lower version; the
marker is put last. A second process may put the same rows again, which changes nothing, and a stalled one is refused
row by row. That per-row guard is also why only one job and sink may own the keys: see docs/decisions/0002.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import SecretStr

from exactsink.backend import Backend, BackendOptions
from exactsink.model import Finding, Traits
from exactsink.staged import Applier, Marker, StagedBackend


class KeyedOptions(BackendOptions):
    endpoint: str
    password: SecretStr
    collection: str
    keys: tuple[str, ...]
    strategy: Literal["keyed"] = "keyed"


@dataclass(frozen=True, order=True)
class Version:
    """What a row is put with: batches come in a fixed order, so a row's place is the same in every process."""

    epoch: int
    place: int


class KeyedApplier(Applier):
    def __init__(self, options: KeyedOptions) -> None:
        self._options = options

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        raise NotImplementedError  # the collection exists; a conditional put is honoured; no other job owns it

    def open_epoch(self, schema: pa.Schema) -> None:
        raise NotImplementedError  # put the owner (job, sink) if absent

    def last_applied(self, job: str, sink: str) -> Marker | None:
        raise NotImplementedError  # get the marker, a consistent read

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        # get the marker, must_apply; put each row if absent or of a lower Version; then put the marker if it is still
        # the one that was read, else look again: another process was first, and put the same rows
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError  # the client


class KeyedBackend(StagedBackend):
    Options = KeyedOptions
    options: KeyedOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"keyed:{self.options.endpoint}/{self.options.collection}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=False, needs_shared_staging=True)

    def applier(self) -> Applier:
        return KeyedApplier(self.options)


SAMPLE: Backend = KeyedBackend(
    KeyedOptions.model_validate(
        {"endpoint": "localhost:8000", "password": "not a secret", "collection": "orders", "keys": ["id"]}
    )
)

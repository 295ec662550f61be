"""A vote: the data by which the driver names a task attempt's files in a manifest, as validated JSON."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from exactsink.contract import Committable, Fatal

__all__ = ["BOUNDS", "NUMBERS", "VotedFile", "data_file", "vote", "votes_of"]

NUMBERS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
BOUNDS = ("lower_bounds", "upper_bounds")


class VotedFile(BaseModel):
    """A data file in a vote."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    path: str
    size: int
    rows: int
    sha256: str
    spec: int
    partition: list[bool | int | str | None]
    numbers: dict[str, dict[str, int]]
    bounds: dict[str, dict[str, str]]
    offsets: list[int]


_VOTES = TypeAdapter(list[VotedFile])


def vote(files: Sequence[VotedFile]) -> bytes:
    """Return a vote's payload."""
    return _VOTES.dump_json([*files])


def votes_of(committable: Committable) -> list[VotedFile]:
    """Read a vote's files. Raises Fatal if it can't be read, or names a file of another participant."""
    try:
        voted = _VOTES.validate_json(committable.payload)
    except ValueError as error:
        what = f"the vote of {committable.ref} can't be read"
        raise Fatal(what, why=f"{type(error).__name__}", next="start the job with the release that wrote it") from None
    for file in voted:
        if f"{committable.ref}." not in file.path.rpartition("/")[2]:  # a hash may precede it
            what = f"the vote of {committable.ref} names {file.path}, which is not a file of its own"
            fix = "restore the journal from a copy, then start the job again"
            raise Fatal(what, why="somebody changed the journal; no file was changed", next=fix)
    return voted


def data_file(voted: VotedFile) -> DataFile:
    """Return a manifest's entry for a file."""
    numbers = {name: {int(place): n for place, n in voted.numbers[name].items()} for name in NUMBERS}
    bounds = {name: {int(place): base64.b64decode(b) for place, b in voted.bounds[name].items()} for name in BOUNDS}
    known: dict[str, Any] = {**numbers, **bounds}
    made: DataFile = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=voted.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*voted.partition),
        record_count=voted.rows,
        file_size_in_bytes=voted.size,
        split_offsets=voted.offsets or None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        spec_id=voted.spec,
        **known,
    )
    return made

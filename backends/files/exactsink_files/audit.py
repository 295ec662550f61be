"""Compare the files in the target with the votes, for `exactsink verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import Audit
from exactsink.toolkit.storage import AnyPath, ObjectPath, file_sha256
from exactsink_files.manifests import bytes_of
from exactsink_files.votes import VotedFile

__all__ = ["audited"]


def audited(root: AnyPath, voted: Mapping[int, Sequence[VotedFile]], *, deep: bool) -> dict[int, Audit]:
    """Count the rows of each epoch's files that equal their votes, by size and by Parquet's own count of rows.

    Reads only. `deep` reads every file whole, and compares its SHA-256.
    """
    found = {}
    for epoch, files in voted.items():
        rows, wrong = 0, []
        for file in files:
            why = _damage(root / file.final, file, deep=deep)
            rows += 0 if why else file.rows
            wrong += [why] if why else []
        said = "; ".join(wrong[:3]) or ("files whole by SHA-256" if deep else "files by size and rows")
        found[epoch] = Audit(rows, said)
    return found


def _damage(path: AnyPath, file: VotedFile, *, deep: bool) -> str:
    """Return how a file differs from its vote; empty if it does not."""
    try:
        if (size := bytes_of(path)) != file.size:
            return f"{path} has {size} bytes instead of {file.size}"
        if deep:
            return "" if file_sha256(path) == file.sha256 else f"{path} has another SHA-256"
        if path.name.endswith(".parquet"):
            with path.fs.open(path.url, "rb") if isinstance(path, ObjectPath) else open(path, "rb") as opened:
                rows = pq.ParquetFile(opened).metadata.num_rows
            return "" if file.rows == rows else f"{path} has {rows} rows instead of {file.rows}"
    except FileNotFoundError:
        return f"{path} is gone"
    except pa.ArrowInvalid as error:
        return f"{path} can't be read: {error}"
    return ""

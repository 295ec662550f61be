"""What Spark has staged, sealed by the driver: counted in the files, and refused where a line is not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.files_sink import EPOCH, SCHEMA, files

from exactsink.contract import ConfigError, Retryable
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.spark_files import seal_staged
from exactsink_files.votes import Vote


def _sealed(root: Path, **staged: bytes) -> Any:
    sink = files(root, format="json")
    sink.open(EPOCH, SCHEMA)
    folder = Path(sink.backend.spark_staging(sink.txn(EPOCH, 0, 8), str(root).encode()))
    for name, data in {"_temporary/0/part-9": b"late", "._SUCCESS.crc": b"x", **staged}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    committable = seal_staged(sink.backend.options, str(root), sink.txn(EPOCH, 0, 9), sink.txn(EPOCH, 0, 8))
    assert not folder.exists()
    return sink, committable


def test_lines_are_counted_and_files_without_any_are_left_out(tmp_path: Path) -> None:
    sink, committable = _sealed(tmp_path, **{"k=1/part-0": b"{}\n{}\n", "k=1/part-1": b"{}\n", "part-2": b""})
    assert committable.rows == 3
    assert [file.size for file in Vote.load(committable).files] == [6, 3]
    sink.end(committable)
    assert sorted(path.read_bytes() for path in tmp_path.glob("k=1/*.json")) == [b"{}\n", b"{}\n{}\n"]
    assert _sealed(tmp_path / "none", **{"part-0": b""})[1] is None


@pytest.mark.parametrize("data", [b"{}\n{", b"{}\n\0\0\n"], ids=["cut off", "a page that was lost"])
def test_a_line_that_is_not_whole_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Retryable, match="incomplete"):
        _sealed(tmp_path, **{"part-0": data})


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (SCHEMA, {"target_file_size": "1 MB"}),
        (SCHEMA, {"format": "csv"}),
        (pa.schema({"a": pa.int64(), "A": pa.int64()}), {}),
        (pa.schema({"a": pa.list_(pa.duration("us"))}), {}),
        (pa.schema({"v": pa.struct([pa.field("metadata", pa.binary(), metadata={"variant": "true"})])}), {}),
    ],
)
def test_what_sparks_writers_spell_otherwise_is_left_to_ours(schema: pa.Schema, options: Any) -> None:
    def backend(writer: str) -> FilesBackend:
        return FilesBackend(FilesOptions.model_validate({"path": "/lake", "writer": writer, **options}))

    assert backend("auto").spark_write(schema) is None
    with pytest.raises(ConfigError, match="writer = 'spark'"):
        backend("spark").spark_write(schema)

"""The contract's gate: a backend that does not fit it must not get through."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from mypy import api

from exactsink.contract import Writer

ROOT = Path(__file__).parent.parent.parent
RIGHT = ROOT / "tests/unit/fakes.py"


def test_a_backend_is_typed_as_the_contract_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature that is none of the contract's is an error too, so its own are not of any type."""
    monkeypatch.chdir(ROOT)
    misfit = tmp_path / "misfit.py"
    text, right = RIGHT.read_text(), "def abort(self, undecided: Undecided) -> None:"
    misfit.write_text(text.replace(right, "def abort(self, undecided: Undecided) -> bytes:"))
    arguments = ("--strict", "--config-file", "pyproject.toml", f"--cache-dir={tmp_path / 'cache'}")
    assert api.run([*arguments, str(RIGHT)])[0].startswith("Success: no issues found")
    assert api.run([*arguments, str(misfit)])[0].count("[override]") == 1


def test_a_missing_method_does_not_get_through() -> None:
    class Half(Writer):
        def write(self, batch: pa.RecordBatch) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]

"""The notebook of examples/: a cell run twice, a kernel that is killed in an epoch, and one that is started again."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from tests.e2e.processes import QUICK_JAVA, ROOT

NOTEBOOK = nbformat.read(ROOT / "examples/notebook/orders.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def kernel(folder: Path) -> NotebookClient:
    return NotebookClient(NOTEBOOK, resources={"metadata": {"path": str(folder)}}, timeout=300)


def shown(client: NotebookClient, tag: str) -> str:
    """Run the cells of a tag, as a front end does; return the text of what the last one shows."""
    tagged = [(cell, index) for index, cell in enumerate(NOTEBOOK.cells) if tag in cell.metadata.get("tags", ())]
    outputs = [client.execute_cell(*each).outputs for each in tagged]
    return "".join(out["data"]["text/plain"] for out in outputs[-1] if "data" in out)


@pytest.mark.proof
def test_a_notebook_whose_kernel_is_killed_in_an_epoch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    first = kernel(tmp_path)
    with first.setup_kernel():
        assert shown(first, "again").startswith("<Query of job orders: running")
        assert shown(first, "count") == "((2000, 2000), (2000, 2000))"
        with pytest.raises(CellExecutionError, match="a query of job orders runs in this program already"):
            shown(first, "start")
        with pytest.raises(DeadKernelError):
            shown(first, "kill")
    with sqlite3.connect(tmp_path / "shop/orders.db") as table:
        assert table.execute("SELECT count(*) FROM orders").fetchone() < (12_000,)
    second = kernel(tmp_path)
    with second.setup_kernel():
        shown(second, "again")
        assert shown(second, "recount") == "((12000, 12000), (12000, 12000))"
        shown(second, "end")

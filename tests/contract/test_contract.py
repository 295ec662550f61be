"""The contract's gate: backends that nobody has written yet must fit it, and a misfit must not get through.

Each skeleton beside this file is types only. It is made, compared with the contract name by name, and type-checked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from mypy import api

from exactsink.contract import (
    Applier,
    Backend,
    Committer,
    ConfigError,
    IdempotentBackend,
    JobContext,
    StagedBackend,
    Traits,
    Txn,
    Writer,
)

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
SKELETONS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "test_contract"))
PARTS: tuple[type, ...] = (
    IdempotentBackend,
    StagedBackend,
    Backend,
    Writer,
    Committer,
    Applier,
)  # the nearest one first
ROADS: list[set[type]] = [{Backend, Writer, Committer}, {StagedBackend, Applier}, {IdempotentBackend}]
SCHEMA = pa.schema([("id", pa.int64())])
TXN = Txn("orders", 7, "table", 3, "ab12", 0, 41)

Mypy = Callable[[Path], tuple[str, int]]


def skeleton(name: str) -> ModuleType:
    return import_module(f"tests.contract.{name}")


def parts_of(module: ModuleType) -> Iterator[tuple[type, type]]:
    """Return each class of a skeleton that plays a part of the contract, with that part."""
    for found in vars(module).values():
        if inspect.isclass(found) and found.__module__ == module.__name__:
            part = next((part for part in PARTS if issubclass(found, part)), None)
            if part is not None:
                yield found, part


def additions(found: type, part: type) -> set[str]:
    """Return the public names that a class has and its part of the contract lacks."""
    declared = {name for base in part.__mro__ for name in inspect.get_annotations(base)}  # Options has no value there
    return {name for name in set(dir(found)) - set(dir(part)) - declared if not name.startswith("_")}


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mypy]:
    cache = tmp_path_factory.mktemp("mypy")

    def run(path: Path) -> tuple[str, int]:
        out, errors, status = api.run(
            ["--strict", "--config-file", "pyproject.toml", f"--cache-dir={cache}", str(path)]
        )
        return out + errors, status

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield run


def test_there_are_skeletons_of_every_kind_of_store() -> None:
    expected = ["keyed_store", "mysql_xa", "s3_multipart", "staged_sql"]
    assert expected == SKELETONS


@pytest.mark.parametrize("name", SKELETONS)
def test_no_abstract_method_is_missing(name: str, tmp_path: Path) -> None:
    backend: Backend = skeleton(name).SAMPLE
    context = JobContext("orders", "table", str(tmp_path), generation=3, lineage="ab12")
    assert isinstance(backend.committer(context), Committer)
    assert isinstance(backend.writer(TXN, SCHEMA, str(tmp_path).encode()), Writer)
    assert isinstance(backend.traits, Traits)
    assert backend.strategy
    assert backend.target
    assert "not a secret" not in repr(backend.options)


@pytest.mark.parametrize("name", SKELETONS)
def test_no_skeleton_needs_a_method_that_the_contract_lacks(name: str) -> None:
    found = list(parts_of(skeleton(name)))
    assert {part for _, part in found} in ROADS
    assert {played.__name__: additions(played, part) for played, part in found if additions(played, part)} == {}


def test_the_skeletons_are_typed_as_the_contract_is(mypy: Mypy) -> None:
    assert mypy(FOLDER) == (f"Success: no issues found in {len(SKELETONS) + 1} source files\n", 0)


MISFITS = {
    "another argument": (
        "    def write(self, batch: pa.RecordBatch) -> None:",
        "    def write(self, batch: pa.Table, more: int) -> None:",
    ),
    "another result": ("    def pre_commit(self) -> Committable:", "    def pre_commit(self) -> bytes:"),
    "not a property": ("    @property\n    def traits", "    def traits"),
}


@pytest.mark.parametrize("misfit", list(MISFITS))
def test_a_wrong_signature_does_not_get_through(misfit: str, mypy: Mypy, tmp_path: Path) -> None:
    right, wrong = MISFITS[misfit]
    text = (FOLDER / "mysql_xa.py").read_text()
    assert text.count(right) == 1
    planted = tmp_path / "planted.py"
    planted.write_text(text)
    assert mypy(planted) == ("Success: no issues found in 1 source file\n", 0)
    planted.write_text(text.replace(right, wrong))
    said, status = mypy(planted)
    assert status == 1
    assert "[override]" in said


def test_a_missing_method_does_not_get_through() -> None:
    class Half(Writer):
        def write(self, batch: pa.RecordBatch) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_a_keyed_store_without_keys_is_refused() -> None:
    sample = skeleton("keyed_store").SAMPLE
    keyless = sample.options.model_copy(update={"keys": ()})
    with pytest.raises(ConfigError, match="not exactly once without keys"):
        type(sample)(keyless)


def test_an_added_method_does_not_get_through() -> None:
    class More(skeleton("mysql_xa").MysqlCommitter):  # type: ignore[misc]
        def heuristic_commit(self) -> None: ...

    assert additions(More, Committer) == {"heuristic_commit"}

"""The reference pages are what the code says now, and the pages' links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, pages

_LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#\s]+)(?P<anchor>#[^)]*)?\)")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exactsink_docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says(generate: ModuleType) -> None:
    assert generate.stale() == [], "run: python docs/generate.py"


def test_a_page_that_was_edited_or_is_missing_is_stale(generate: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "reference", tmp_path, dirs_exist_ok=True)
    events = tmp_path / "events.md"
    events.write_text(events.read_text().replace("`sink`", "`sinks`", 1))
    (tmp_path / "errors.md").unlink()
    assert generate.stale(tmp_path) == ["errors.md", "events.md"]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_links_of_a_page_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    gone = [found["path"] for found in _LINK.finditer(text) if not ((ROOT / page).parent / found["path"]).exists()]
    assert gone == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {found["path"] for found in _LINK.finditer(index)}
    known = {str(page.relative_to(ROOT / "docs")) for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert known - linked == {"README.md"}

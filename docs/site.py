"""What makes these pages a site: hooks of mkdocs, which `make docs` calls.

The pages are written for a reader of the repository. So the site has the order of docs/README.md, the words behind
a fence's language, which say how a block is run, become a file's title or nothing, and pages beside docs/ come in.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pathspec import GitIgnoreSpec

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown"]

ROOT = Path(__file__).parents[1]
BESIDE = {
    "../README.md": "at-a-glance.md",
    "../ARCHITECTURE.md": "architecture.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
}
DECISIONS = "decisions/README.md"

_HEADING = re.compile(r"(?P<level>#+) (?P<text>.+)")
_ENTRY = re.compile(r"- .*?\[(?P<title>[^\]]+)\]\((?P<path>[^)#\s]+)\)")
_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<path>[^)#\s]+\.md)\)")
_FENCE = re.compile(r"^(?P<fence> *```\w+) (?:file=(?P<file>\S+)|\S.*)$", re.MULTILINE)
_BLOCK = re.compile(
    r'<div class="highlight">(?:<span class="filename">[^<]*</span>)?<pre.*?<code>(?P<text>.*?)</code>', re.S
)
_TAG = re.compile(r"<[^>]+>")


def on_config(config: Any) -> Any:
    """Take the order of the pages from the start page: a heading is a section, a line its pages."""
    nav: list[Any] = [{"Contents": "README.md"}]
    path = [nav]
    for line in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").splitlines():
        if (heading := _HEADING.fullmatch(line)) and len(heading["level"]) > 1:
            section: list[Any] = []
            del path[len(heading["level"]) - 1 :]
            path[-1].append({heading["text"]: section})
            path.append(section)
        elif line.startswith("- "):
            path[-1] += [{_title(found["title"]): _in_site(found["path"])} for found in _LINK.finditer(line)]
    config.nav = [entry for entry in nav if all(entry.values())]  # a heading without pages is text for the start page
    config.not_in_nav = GitIgnoreSpec.from_lines(["/decisions/[0-9]*.md"])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Bring in the pages beside docs/."""
    for source, target in BESIDE.items():
        text = (ROOT / "docs" / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=_without_docs(text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the words behind a fence's language into a title, and links out of docs/ into links of the site."""
    text = _FENCE.sub(lambda found: found["fence"] + (f' title="{found["file"]}"' if found["file"] else ""), markdown)
    up = "../" * page.file.src_uri.count("/")
    for source, target in BESIDE.items():
        text = text.replace(f"]({up}{source}", f"]({up}{target}")
    if page.file.src_uri == DECISIONS:
        text += _not_listed(text)
    return re.sub(r"\]\(((?:\.\./)?)decisions\)", rf"](\1{DECISIONS})", text)


def on_page_content(html: str, **_: Any) -> str:
    """Let a copy button take a console block's commands, without the `$` before them and the output below them."""

    def copied(block: re.Match[str]) -> str:
        lines = unescape(_TAG.sub("", block["text"])).splitlines()
        commands = [line[2:] for line in lines if line.startswith(("$ ", "> "))]
        if not lines or not lines[0].startswith("$ "):
            return block[0]
        copy = escape("\n".join(commands), quote=True).replace("\n", "&#10;")
        return block[0].replace('<div class="highlight"', f'<div class="highlight" data-copy="{copy}"', 1)

    return _BLOCK.sub(copied, html)


def _without_docs(text: str) -> str:
    """Let a page's links lead where they lead once it is in docs/."""
    for source, target in BESIDE.items():
        text = text.replace(f"]({source.removeprefix('../')}", f"]({target}")
    return text.replace("](docs/README.md)", "](README.md)").replace("](docs/", "](")


def _title(text: str) -> str:
    return text.replace("`", "")


def _in_site(path: str) -> str:
    return BESIDE.get(path, path)


def _not_listed(index: str) -> str:
    """Return the decisions that the index does not list yet, as a section of their own."""
    pages = [page for page in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")) if f"({page.name})" not in index]
    return "\n\n## Newest\n\n" + "".join(f"- [{_h1(page)}]({page.name})\n" for page in pages) if pages else ""


def _h1(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")

"""A TOML file as text: which line a key stands on, and `${NAME}` from the environment."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exactsink.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Document", "KeyPath", "read_document"]

KeyPath = tuple[str | int, ...]
_HEADER = re.compile(r"\s*\[+(?P<keys>[^\]]+)\]+\s*(#.*)?$")
_KEY = re.compile(
    r"""\s*(?P<keys>(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_VARIABLE = re.compile(r"\$\{(?P<name>[^}:]*)(?P<rest>:[^}]*)?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its values with the environment put in, and what of them came from there and must not be shown."""

    name: str
    text: str = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)
    hidden: frozenset[str] = field(repr=False)

    def line_of(self, path: KeyPath) -> int:
        """Give the line (from 1) where a key or table first stands, or the nearest table or key above it."""
        table: KeyPath = ()
        best, best_line = 0, 1
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _HEADER.match(line):
                here = table = _split(header["keys"])
            elif key := _KEY.match(line):
                here = (*table, *_split(key["keys"]))
            else:
                continue
            shared = min(len(here), len(path))  # `[a.b]` is also where `a` stands
            if here[:shared] == path[:shared] and shared > best:
                best, best_line = shared, number
        return best_line

    def place(self, path: KeyPath) -> str:
        """Say where a key is, `job.toml line 3`."""
        return f"{self.name} line {self.line_of(path)}"

    def scrubbed(self, text: str) -> str:
        """Take what came from the environment out of a message."""
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Read and parse a file. Raises ConfigError with the file and line of what can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be read", why=str(error.strerror), next="exactsink run JOB.toml") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name} line {line} is not UTF-8", why=error.reason, next="mend that line") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML", why=str(error), next="mend that line") from None
    hidden: set[str] = set()
    document = Document(path.name, text, raw, frozenset())
    values = {key: _filled(value, (key,), document, environ, hidden) for key, value in raw.items()}
    return Document(path.name, text, values, frozenset(hidden))


def _split(keys: str) -> KeyPath:
    """Read a dotted key as TOML does."""
    try:
        value: Any = tomllib.loads(f"{keys} = 0")
    except tomllib.TOMLDecodeError:
        return ("",)
    path: list[str] = []
    while isinstance(value, dict):
        key = next(iter(value))
        path.append(key)
        value = value[key]
    return tuple(path)


def _filled(value: Any, path: KeyPath, document: Document, environ: Mapping[str, str], hidden: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, (*path, key), document, environ, hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, (*path, index), document, environ, hidden) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        name, rest = found["name"], found["rest"]
        if not _NAME.fullmatch(name) or (rest is not None and not rest.startswith(":-")):
            raise ConfigError(
                f"{document.place(path)}: {found[0]} is no variable",
                why="variables are written ${NAME} or ${NAME:-default}",
                next="mend that line",
            )
        if environ.get(name) or (name in environ and rest is None):  # as in a shell, ":-" stands in for empty too
            if len(environ[name]) > 3:  # a shorter one is no secret, and would blot out words of the message
                hidden.add(environ[name])
            return environ[name]
        if rest is not None:
            return rest[2:]
        raise ConfigError(
            f"{document.place(path)}: the environment has no {name}",
            next=f"export {name}=..., or write ${{{name}:-...}}",
        )

    if "${" in _VARIABLE.sub("", value):
        raise ConfigError(f"{document.place(path)}: ${{ without its }}", next="mend that line")
    return _VARIABLE.sub(fill, value)

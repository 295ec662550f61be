"""A job's tables, from a TOML file or from Python: the line of each key, and `${NAME}` from the environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exactsink.contract import ConfigError
from exactsink.protocol.sinks import EXECUTOR_VARIABLE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Document", "KeyPath", "document_of", "read_document"]

KeyPath = tuple[str | int, ...]
_HEADER = re.compile(r"\s*\[+(?P<keys>[^\]]+)\]+\s*(#.*)?$")
_KEY = re.compile(
    r"""\s*(?P<keys>(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_VARIABLE = re.compile(r"\$\{(?P<name>[^}:]*)(?P<rest>:[^}]*)?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 3
_AT = re.compile(r"\(at line (\d+), column (\d+)\)")
_HINTS = {
    r"\n(True|False)\b": "TOML writes true and false",
    r"\n(None|null|nil)\b": "TOML has no such value, leave the key out",
    r"escape": "a backslash begins an escape, so write / between folders",
    r"Invalid value.*\n[A-Za-z_/.~]": "text needs quotes",
    r"Invalid value.*\n[\u2018-\u201f\u00ab]": "TOML takes straight quotes only",
    r"Illegal character '\\n'": "the quote at its end is missing",
    r"Cannot overwrite": "the key is in the table twice",
    r"Cannot declare": "the table is there twice: merge the two, or rename one",
    r"Expected '='.*\n\s*:": "TOML writes `key = value` below a `[table]`",
    r"Invalid statement.*\n\{": "this is JSON, and TOML writes `key = value` below a `[table]`",
}
"""The fix, by a pattern of the parser's message and the text at its place."""


@dataclass(frozen=True, slots=True)
class Document:
    """A job's tables: their values with the environment filled in. `hidden` are values from there, never to be shown.

    In `task_values`, `${executor:NAME}` stays as it is written, because tasks resolve it. `written` are the tables as
    they were given.
    """

    name: str
    text: str | None = field(repr=False)
    """The file's text; None if the tables came from Python."""
    values: Mapping[str, Any] = field(repr=False)
    hidden: frozenset[str] = field(repr=False)
    task_values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: str = ""
    """The file's folder. Relative paths in the file begin here, wherever the job is started."""
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def line_of(self, path: KeyPath) -> int:
        """Return the first line (from 1) of a key or table, or of the nearest table or key above it."""
        table: KeyPath = ()
        best, best_line = 0, 1
        for number, line in enumerate((self.text or "").splitlines(), start=1):
            if header := _HEADER.match(line):
                here = table = _split(header["keys"])
            elif key := _KEY.match(line):
                here = (*table, *_split(key["keys"]))
            else:
                continue
            shared = min(len(here), len(path))  # `[a.b]` is also the place of `a`
            if here[:shared] == path[:shared] and shared > best:
                best, best_line = shared, number
        return best_line

    def place(self, path: KeyPath) -> str:
        """Return a key's place: `job.toml line 3`, or `sinks.lake.path` in a job that was made in Python."""
        return ".".join(map(str, path)) if self.text is None else f"{self.name} line {self.line_of(path)}"

    @property
    def fix(self) -> str:
        """The next step after a mistake in these tables."""
        if self.text is None:
            return "correct that argument, and make the Job again"
        return f"fix {self.name}, then `exactsink check JOB.toml`"

    def scrubbed(self, text: str) -> str:
        """Replace the environment's values in a message by ***."""
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Read and parse a file. Raises ConfigError with the file, and the line that can't be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark before the first line
    except OSError as error:
        raise ConfigError(f"{path} can't be read", why=str(error.strerror), next=_instead_of(path)) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name} line {line} is not UTF-8", why=error.reason, next="save it as UTF-8") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = f"fix that line{_hint(text, str(error))}"
        raise ConfigError(f"{path} is not TOML", why=str(error), next=fix) from None
    return _filled(Document(path.name, text, raw, frozenset(), folder=str(path.absolute().parent)), environ)


def _hint(text: str, error: str) -> str:
    """Return TOML's form of a line in the style of Python, YAML or JSON; empty if it is not known."""
    found = _AT.search(error)
    rest = text.splitlines()[int(found[1]) - 1 :] if found else []
    at = rest[0][int(found[2]) - 1 :] if found and rest else ""
    return next((f": {hint}" for pattern, hint in _HINTS.items() if re.search(pattern, f"{error}\n{at}")), "")


def document_of(tables: Mapping[str, Any], environ: Mapping[str, str]) -> Document:
    """Take a job's tables from Python, where a path may be a Path. Relative paths begin at the current folder."""
    written = {key: _plain(value) for key, value in tables.items()}
    return _filled(Document("the job", None, written, frozenset(), folder=str(Path.cwd())), environ)


def _plain(value: Any) -> Any:
    """Return a value in TOML's types, which have no None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):  # its order differs from run to run
        return [_plain(item) for item in sorted(value, key=str)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _filled(document: Document, environ: Mapping[str, str]) -> Document:
    """Fill in the environment's values."""
    driver, tasks, written = _Filling(document, environ), _Filling(document, environ, for_tasks=True), document.values
    values = {key: driver.filled(value, (key,)) for key, value in written.items()}
    task_values = {key: tasks.filled(value, (key,)) for key, value in written.items()}
    return replace(document, values=values, hidden=frozenset(driver.hidden), task_values=task_values, written=written)


def _instead_of(path: Path) -> str:
    """Return the next step if a job's file can't be read."""
    with suppress(OSError):
        folder = path if path.is_dir() else path.parent
        if others := sorted(str(file) for file in folder.glob("*.toml") if file.is_file())[:_SHOWN]:
            return f"name the job's file ({', '.join(others)}?); or write a new job: exactsink init FOLDER"
    return "name the job's file; or write a new job: exactsink init FOLDER"


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


class _Filling:
    """Fill the environment's values into a file's strings, and remember the values that must not be shown."""

    def __init__(self, document: Document, environ: Mapping[str, str], *, for_tasks: bool = False) -> None:
        self._document = document
        self._environ = environ
        self._for_tasks = for_tasks
        self.hidden: set[str] = set()

    def filled(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: self.filled(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        if "${" in _VARIABLE.sub("", value):
            raise ConfigError(f"{self._document.place(path)}: ${{ without its }}", next="fix that line")
        return _VARIABLE.sub(lambda found: self._value(found, path), value)

    def _value(self, found: re.Match[str], path: KeyPath) -> str:
        name, rest = found["name"], found["rest"]
        if (executor := EXECUTOR_VARIABLE.fullmatch(found[0])) is not None:
            if path[0] != "sinks" or len(path) < 3:
                raise ConfigError(
                    f"{self._document.place(path)}: {found[0]} works only in a sink's own options",
                    why="tasks see nothing else of the file",
                    next=f"write ${{{executor['name']}}}",
                )
            if self._for_tasks:
                return found[0]
            name, rest = executor["name"], executor["default"]
        if not _NAME.fullmatch(name) or (rest is not None and not rest.startswith(":-")):
            raise ConfigError(
                f"{self._document.place(path)}: {found[0]} is not a variable",
                why="variables are written ${NAME} or ${NAME:-default}, in a sink's options also ${executor:NAME}",
                next="fix that line",
            )
        environ = self._environ
        if environ.get(name):
            if len(environ[name]) > 3:  # a shorter value is not a secret, and would mask words of the message
                self.hidden.add(environ[name])
            return environ[name]
        if rest is not None:
            return rest[2:]  # as in a shell, ":-" also replaces an empty value
        said = f"the environment's {name} is empty" if name in environ else f"the environment has no {name}"
        raise ConfigError(
            f"{self._document.place(path)}: {said}",
            why="the driver commits, so it needs the executors' variables" if executor else "",
            next=f"export {name}=..., or write {found[0].rstrip('}')}:-...}} with a default, which may be empty",
        )

"""A job's tables, out of a TOML file or out of Python: where a key stands, and `${NAME}` from the environment."""

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
"""By the parser's message and the text at its place."""


@dataclass(frozen=True, slots=True)
class Document:
    """A job's tables: their values with the environment put in, and what of them came from there and must not be shown.

    `task_values` are the same but for `${executor:NAME}`, which stands there as it is written: tasks resolve it.
    `written` are the tables as they were given.
    """

    name: str
    text: str | None = field(repr=False)
    """The file's; None where the tables came from Python."""
    values: Mapping[str, Any] = field(repr=False)
    hidden: frozenset[str] = field(repr=False)
    task_values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: str = ""
    """Where the file is: relative paths in it are taken from here, wherever the job is started."""
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def line_of(self, path: KeyPath) -> int:
        """Return the line (from 1) where a key or table first stands, or the nearest table or key above it."""
        table: KeyPath = ()
        best, best_line = 0, 1
        for number, line in enumerate((self.text or "").splitlines(), start=1):
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
        """Return where a key is: `job.toml line 3`, or `sinks.lake.path` of a job that was made in Python."""
        return ".".join(map(str, path)) if self.text is None else f"{self.name} line {self.line_of(path)}"

    @property
    def fix(self) -> str:
        """What to do about a mistake in it."""
        if self.text is None:
            return "correct that, and make the Job again"
        return f"fix {self.name}, then `exactsink check JOB.toml`"

    def scrubbed(self, text: str) -> str:
        """Take what came from the environment out of a message."""
        for value in sorted(self.hidden, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def read_document(path: Path, environ: Mapping[str, str]) -> Document:
    """Read and parse a file. Raises ConfigError with the file and line of what can't be read."""
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
    """Return what people write there who come from Python, YAML or JSON, and what TOML has for it."""
    found = _AT.search(error)
    rest = text.splitlines()[int(found[1]) - 1 :] if found else []
    at = rest[0][int(found[2]) - 1 :] if found and rest else ""
    return next((f": {hint}" for pattern, hint in _HINTS.items() if re.search(pattern, f"{error}\n{at}")), "")


def document_of(tables: Mapping[str, Any], environ: Mapping[str, str]) -> Document:
    """Take a job's tables out of Python, where a path may be a Path; relative ones mean the current folder."""
    written = {key: _plain(value) for key, value in tables.items()}
    return _filled(Document("the job", None, written, frozenset(), folder=str(Path.cwd())), environ)


def _plain(value: Any) -> Any:
    """Return a value as TOML has it, of which None is no part."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):  # its order differs from run to run
        return [_plain(item) for item in sorted(value, key=str)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _filled(document: Document, environ: Mapping[str, str]) -> Document:
    """Put the environment in."""
    driver, tasks, written = _Filling(document, environ), _Filling(document, environ, for_tasks=True), document.values
    values = {key: driver.filled(value, (key,)) for key, value in written.items()}
    task_values = {key: tasks.filled(value, (key,)) for key, value in written.items()}
    return replace(document, values=values, hidden=frozenset(driver.hidden), task_values=task_values, written=written)


def _instead_of(path: Path) -> str:
    """Return what to do where a job's file should be and can't be read."""
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
    """Put the environment into a file's strings, and remember what must not be shown."""

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
            if len(environ[name]) > 3:  # a shorter one is no secret, and would blot out words of the message
                self.hidden.add(environ[name])
            return environ[name]
        if rest is not None:
            return rest[2:]  # as in a shell, ":-" stands in for empty too
        said = f"the environment's {name} is empty" if name in environ else f"the environment has no {name}"
        raise ConfigError(
            f"{self._document.place(path)}: {said}",
            why="the driver commits, so it needs what the executors have" if executor else "",
            next=f"export {name}=..., or write {found[0].rstrip('}')}:-...}} with a default, which may be empty",
        )

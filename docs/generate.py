"""Write the reference pages from the code: `python docs/generate.py`; with `--check`, say which are stale.

The text is the code's own docstrings. A new config key, command, error, event or metric appears by itself.
What was measured is added by `docs/measured.py`: `--figures FOLDER` takes newer figures from there.
"""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cli_texts
import click
import report_texts
from answers import ANSWERS
from authors import class_section, contract_page, kit_page
from config_texts import HEAD, NOTES
from json_texts import FIELDS, REPORTS
from measured import PAGES_WITH_FIGURES, take, with_figures
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from supported_versions import versions_page
from tables import events_table, markdown_table, metrics_table, points_table
from typed_sinks import STUBS, stub

from exactsink import Job, Query, RunResult
from exactsink.cli.main import EXIT_INTERRUPTED, cli
from exactsink.contract import errors
from exactsink.job.config.described import attribute_docstrings, prose, sections
from exactsink.job.registry import Registry, installed_plugins
from exactsink.observe.metrics import BUCKETS
from exactsink.starters.plugin import ROADS, backend_text

__all__ = ["PAGES", "main", "stale"]

FOLDER = Path(__file__).parent / "reference"
_HEAD = "<!-- Made by docs/generate.py. Edit the docstrings in the code, not this page. -->\n\n"
_KILLED = "ended the command at once, as a crash does. Nothing decided is lost."
_AGAIN = "Run the same command again. It continues."
_CODES = {  # the meaning and the next step, beside those of errors
    0: ("The command has done its work. Or `run` was stopped, and ended after its epoch.", "Nothing."),
    EXIT_INTERRUPTED: ("Ctrl-C interrupted the command. Nothing decided is lost.", _AGAIN),
    128 + signal.SIGHUP: (f"A second signal, SIGHUP, {_KILLED}", _AGAIN),
    128 + signal.SIGTERM: (f"A second signal, SIGTERM, {_KILLED}", _AGAIN),
    errors.EXIT_BUG: (
        "A bug in exactsink or a plugin. Nothing decided is lost.",
        "You can run the same command again. Report the bug.",
    ),
}


def config_page() -> str:
    """Return every key of a job's file, and of every installed backend."""
    parts = [HEAD]
    parts += [_section(f"`[{title}]`", model) for title, model in sections().items()]
    parts.append(
        "## Options of the backends\n\nWrite them into the sink's own table, `[sinks.NAME]`, beside the keys above.\n"
    )
    registry = Registry(installed_plugins())
    for listing in registry.listings():
        options = registry.load(listing.name, listing.name).Options
        parts.append(_section(f'`backend = "{listing.name}"`', options, level="###"))
        parts.append(
            markdown_table(("strategy", "effect"), ((f"`{s}`", line) for s, line in listing.strategies.items()))
        )
    return "\n".join(parts)


def cli_page() -> str:
    """Return every command with its options."""
    words = "Words such as [participant](../explanation/glossary.md), mark, token and settle are in the glossary."
    parts = [f"# The command line\n\n{words}\n"]
    found = dict(sorted(_commands(cli)))
    groups = {
        title: [name for word in names for name in found if name.split()[0] == word]
        for title, names in cli.sections.items()
    }
    *_, last = groups
    groups[last] = [name for name in found if not any(name in names for names in groups.values())]
    links = (
        (title, ", ".join(f"[{n}](#exactsink-{n.replace(' ', '-')})" for n in names)) for title, names in groups.items()
    )
    parts += [markdown_table(("you want to", "commands"), links), _options(cli, "exactsink [OPTIONS] COMMAND")]
    for title, names in groups.items():
        parts.append(f"## {title}\n")
        parts += [_command(name, found[name]) for name in names]
    parts.append("See also: [exit codes](exit-codes.md), and the fields of [`--json`](json.md).\n")
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    usage = " ".join(["exactsink", name, *(p.make_metavar(click.Context(command)) for p in _arguments(command))])
    parts = [f"### `exactsink {name}`\n\n{prose(command.help or '')}\n", _options(command, f"{usage} [OPTIONS]")]
    if name in cli_texts.NOTES:
        parts.append(cli_texts.NOTES[name])
    if name in cli_texts.EXAMPLES:
        parts.append(f"Example:\n\n```text no-run: an example\n{cli_texts.EXAMPLES[name]}\n```\n")
    return "\n".join(parts)


def _commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands. A command of a backend's group has both words as its name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", each) for below, each in _commands(command))
        elif command is not None:
            yield name, command


def exit_codes_page() -> str:
    """Return every exit code of the commands."""
    rows = [(code, "-", *texts) for code, texts in _CODES.items()]
    for kind in _tree(errors.ExactsinkError):
        if kind not in (errors.ExactsinkError, errors.ForeignError):
            rows.append((kind.exit_code, f"`{kind.__name__}`", *_meaning_and_step(kind)))
    rows.append((errors.ConfigError.exit_code, "-", "The command line has a mistake.", "Correct it."))
    table = markdown_table(
        ("code", "error", "meaning", "do this"),
        ((str(code), *texts) for code, *texts in sorted(rows, key=lambda row: row[0])),
    )
    return f"{report_texts.EXIT_CODES}{table}{report_texts.OF_STATUS}"


def errors_page() -> str:
    """Return the tree of errors."""
    rows = (
        (f"`{kind.__name__}`", f"`{kind.__bases__[0].__name__}`", str(kind.exit_code), *_meaning_and_step(kind))
        for kind in _tree(errors.ExactsinkError)
    )
    return report_texts.ERRORS + markdown_table(("error", "is a", "exit code", "meaning", "do this"), rows)


def events_page() -> str:
    """Return the events and the protocol's points."""
    texts = report_texts
    return f"{texts.EVENTS}{texts.POINTS}{points_table()}{texts.OTHER_EVENTS}{events_table()}{texts.EVENT_FIELDS}"


def metrics_page() -> str:
    """Return the metrics."""
    bounds = ", ".join(f"{bound:g}" for bound in BUCKETS)
    return f"{report_texts.METRICS}{metrics_table()}{report_texts.PHASES.replace('BOUNDS', bounds)}"


def json_page() -> str:
    """Return the output of commands with `--json`, in the order of the index."""
    made = {name: _answer(name, model) for name, model in ANSWERS.items()}
    written = {part.partition("\n")[0]: f"## {part}" for part in re.split(r"(?m)^## ", REPORTS) if part}
    parts = {name.lower().replace(" ", "-"): text for name, text in {**made, **written}.items()}
    parts["check"] += f"\n{FIELDS}"
    order = re.findall(r"\]\(#([\w-]+)\)", report_texts.JSON[report_texts.JSON.index("you want") :])
    page = "\n".join([report_texts.JSON, *(f"{parts.pop(link).rstrip()}\n" for link in order)])
    assert not parts, f"the index lacks {', '.join(parts)}"
    return page


def _answer(name: str, model: type[BaseModel]) -> str:
    meanings = attribute_docstrings(model)
    rows = [
        (f"`{key}`", _spelled(field.annotation), f"{meanings[key][0].lower()}{meanings[key][1:].removesuffix('.')}")
        for key, field in model.model_fields.items()
    ]
    table = markdown_table(("field", "type", "meaning"), rows)
    return f"## {name}\n\n{prose(inspect.getdoc(model) or '')}\n\n{table}"


def _spelled(annotation: object) -> str:
    """Spell a type as JSON has it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_spelled(kind) for kind in inner)
    if origin is tuple:
        return "pair"
    if origin is not None:
        return "object" if origin is dict else f"list of {_spelled(inner[0])}s"
    plain = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
    return plain.get(typing.cast(type, annotation), "object")


def roads_page() -> str:
    """Return the backend that `exactsink init --plugin` writes for each road, in a project that plays it."""
    parts = [report_texts.ROADS]
    for road, (_, summary) in ROADS.items():
        parts.append(f"## {road}\n\n{summary[0].upper()}{summary[1:]}.\n")
        parts.append(f"```console run\n$ exactsink init {road} --plugin ledger --from {road}\n...\n```\n")
        parts.append(f"```python file={road}/exactsink_ledger/backend.py\n{backend_text('ledger', road)}```\n")
        played = f'$ (cd {road} && python -m pytest -q -k "killed-inside-commit or loser-swept")\n...\n2 passed, ...'
        parts.append(f"```console run\n{played}\n```\n")
    return "\n".join(parts)


def python_page() -> str:
    """Return the classes that a program uses: the job, its query, and the result of a batch run."""
    return "\n".join([report_texts.PYTHON, *(class_section(kind) for kind in (Job, Query, RunResult))])


PAGES: Mapping[str, Callable[[], str]] = {
    "contract.md": contract_page,
    "conformance-kit.md": kit_page,
    "plugin-roads.md": roads_page,
    "python.md": python_page,
    "supported-versions.md": versions_page,
    "json.md": json_page,
    "config.md": config_page,
    "cli.md": cli_page,
    "exit-codes.md": exit_codes_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "metrics.md": metrics_page,
}


def stale(folder: Path = FOLDER) -> list[str]:
    """Name the pages that differ from the code and the figures of now."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES_WITH_FIGURES}
    figures = [page.name for page, text in texts.items() if with_figures(text) != text]
    stubs = [f"{path.parent.name}/{path.name}" for path, backend in STUBS.items() if not _is(path, stub(backend))]
    return [name for name, page in PAGES.items() if not _is(folder / name, _HEAD + page())] + figures + stubs


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Write nothing; end with 1 when a page is stale.")
@click.option(
    "--figures", type=click.Path(path_type=Path, exists=True), help="A folder of results to take figures from."
)
def main(check: bool, figures: Path | None) -> None:
    """Write the pages from the code, and their figures from measurements."""
    if check:
        found = stale()
        for name in found:
            sys.stderr.write(f"{name} is stale\n  next: python docs/generate.py\n")
        sys.exit(1 if found else 0)
    if figures is not None:
        take(figures)
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(_HEAD + page(), encoding="utf-8")
    for path, backend in STUBS.items():
        path.write_text(stub(backend), encoding="utf-8")
    for path in PAGES_WITH_FIGURES:
        path.write_text(with_figures(path.read_text(encoding="utf-8")), encoding="utf-8")


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def _section(title: str, model: type[BaseModel], level: str = "##") -> str:
    reported = attribute_docstrings(model)
    rows = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        text = reported.get(name)
        if text is None:
            raise LookupError(f"{model.__name__}.{key} has no docstring")
        rows.append((f"`{key}`", _kind(field.annotation), *_default(field, text)))
    table = markdown_table(("key", "type", "default", "meaning"), rows)
    note = f"\n{NOTES[title]}" if title in NOTES else ""
    return f"{level} {title}\n\n{prose(inspect.getdoc(model) or '')}\n\n{table}{note}"


def _kind(annotation: object) -> str:
    """Spell a type as the file's reader knows it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inner[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(kind) for kind in inner if kind is not type(None)))
    if origin is tuple:
        return "list of strings"
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    plain = {str: "string", SecretStr: "string", int: "whole number", float: "number", bool: "true or false"}
    return plain[typing.cast(type, annotation)]


def _default(field: FieldInfo, text: str) -> tuple[str, str]:
    """Return a key's default, and its text. A default that only the text names is taken out of it."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required", text
    if value is None or value in ((), {}) or not str(value):  # an empty SecretStr is no string
        meaning, _, named = text.partition(" Default: ")
        return named.removesuffix(".") or "none", meaning
    return f"`{json.dumps(value) if isinstance(value, bool | tuple) else value}`", text


def _options(command: click.Command, usage: str) -> str:
    options = [p for p in command.params if isinstance(p, click.Option)]
    rows = [(", ".join(f"`{name}`" for name in _spellings(o)), _option_text(o)) for o in options]
    return f"```text no-run: usage\n{usage if rows else usage.removesuffix(' [OPTIONS]')}\n```\n" + (
        "\n" + markdown_table(("option", "effect"), rows) if rows else ""
    )


def _spellings(option: click.Option) -> list[str]:
    """Return an option as it is typed: each of its names, the last with its value."""
    *others, last = [*option.opts, *option.secondary_opts]
    return [*others, f"{last} {option.metavar}" if option.metavar else last]


def _option_text(option: click.Option) -> str:
    choices = ", ".join(f"`{each}`" for each in option.type.choices) if isinstance(option.type, click.Choice) else ""
    default = f" Default: `{option.default}`." if option.show_default else ""
    return f"{option.help or ''}{f' One of {choices}.' if choices else ''}{default}"


def _arguments(command: click.Command) -> list[click.Argument]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Argument)]


def _tree(kind: type[errors.ExactsinkError]) -> Iterator[type[errors.ExactsinkError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below)


def _meaning_and_step(kind: type[errors.ExactsinkError]) -> tuple[str, str]:
    meaning, _, step = (inspect.getdoc(kind) or "").partition("\n\n")
    return prose(meaning), prose(step)


if __name__ == "__main__":
    main()

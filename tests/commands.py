"""Find the commands of exactsink in texts, and hold each against the command line: could it be typed as it stands?

A command in a message stands in backticks, or goes to the end of its clause: a remark may follow it in brackets, or
behind a comma, a semicolon or a colon.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import click

from exactsink.cli.main import cli

_COMMAND = re.compile(r"(?<![\w./'-])exactsink (?:-v+ |--log-format \w+ )*(?P<rest>[a-z][^`\n]*)(?P<tick>`?)")
_REMARK = re.compile(r" \(|[;,:] |[;,:.]?$|: ")


def commands_in(text: str) -> Iterator[str]:
    """Yield each command that a text names: `exactsink`, and a word that is one of its commands."""
    context = click.Context(cli)
    for found in _COMMAND.finditer(text):
        if cli.get_command(context, re.split(r"[^\w-]", found["rest"])[0]) is not None:
            yield "exactsink " + (found["rest"] if found["tick"] else _REMARK.split(found["rest"])[0])


def problem_of(command: str, *, named: bool = False, values: bool = True) -> str:
    """Return why a command could not be typed as it stands; one that is only `named` may leave out what it needs.

    Without `values` those in it are not what they will be, and may be wrong.
    """
    try:
        words = shlex.split(command)[1:]
    except ValueError as error:
        return f"`{command}`: {error}"
    step: click.Command = cli
    while isinstance(step, click.Group):
        name = words.pop(0) if words else ""
        found = step.get_command(click.Context(step), name)
        if found is None:
            return "" if named and not name else f"`{command}`: no command {name!r}"
        step = found
    try:
        step.make_context(command, words)
    except click.MissingParameter as error:
        return "" if named else f"`{command}`: {error.format_message()}"
    except click.BadOptionUsage as error:
        return "" if named else f"`{command}`: {error.format_message()}"
    except click.UsageError as error:
        wrong = values or not isinstance(error, click.BadParameter)
        return f"`{command}`: {error.format_message()}" if wrong else ""
    return ""


def texts_in(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each string of a module that is no docstring, with its line, and something plausible for values in it."""
    if isinstance(node, ast.expr) and (text := _text(node)) is not None:
        yield node.lineno, text
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from texts_in(child)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or _value(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = _text(node.left), _text(node.right)
        return None if sides == (None, None) else "".join(side or "" for side in sides)
    return None


def _value(part: ast.expr) -> str:
    """Return what a value in a text could be: `commands.of("status")` is a command, a constant an outcome."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "of":
        return f"exactsink {_text(value.args[0])} job.toml"
    if isinstance(value, ast.Name) and value.id in ("sweep", "words"):  # options, each with its value
        return ""
    return "given-up" if isinstance(value, ast.Name) and value.id.isupper() else "1"

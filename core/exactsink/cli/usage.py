"""The next command after a command line that could not be parsed."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import click

__all__ = ["next_command"]

_BEFORE = {"-v": "-v", "--verbose": "-v", "--log-format": "--log-format json"}
"""Options of `exactsink` itself, which belong before the command."""


def next_command(error: click.UsageError, arguments: Sequence[str]) -> str:
    """Return a command that is ready to type, with the job's file if it is known; otherwise the command for help."""
    files = [str(Path(w, "job.toml")) if not w.endswith(".toml") or Path(w).is_dir() else w for w in arguments]
    context, given = error.ctx, next((file for file in files if file in arguments or Path(file).is_file()), "")
    if context is None:
        return "exactsink --help"
    wrong = next((word for word in arguments if f"command '{word}'" in error.message), "")
    if isinstance(context.command, click.Group) and wrong:
        for near in difflib.get_close_matches(wrong, context.command.list_commands(context), n=1):
            return shlex.join(["exactsink", *(near if word == wrong else word for word in arguments)])
    known = given or ("job.toml" if Path("job.toml").exists() else "")
    path, job = context.command_path, shlex.quote(known or "JOB.toml")
    unknown = error.option_name if isinstance(error, click.NoSuchOption) else ""
    if unknown in _BEFORE:
        return f"exactsink {_BEFORE[unknown]}{path.removeprefix('exactsink')} {job}"
    if context.parent is None:  # the flag of a command, before the command
        words = [word for word in arguments if word != unknown]
        command = reduce(lambda group, word: getattr(group, "commands", {}).get(word, group), words, context.command)
        if any(unknown in option.opts and getattr(option, "is_flag", False) for option in command.params):
            named = f" {job}" * (not given and _job_of(command) == "argument")
            return f"exactsink {shlex.join(words)}{named} {unknown}"
    if (path.removeprefix("exactsink "), unknown) == ("run", "--dry-run"):
        return f"exactsink check {job}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.param.name == "job":
        return f"{path} {job}" if known else "write a job, then name its file: exactsink init FOLDER"
    if given and isinstance(context.command, click.Group) and context.parent is not None:
        takes = [name for name, command in context.command.commands.items() if _job_of(command) == "argument"]
        return ", or ".join(f"{path} {name} {job}" for name in takes) or f"{path} --help"
    return f"{path} --job {job}" if given and _job_of(context.command) == "option" else f"{path} --help"


def _job_of(command: click.Command) -> str | None:
    return next((parameter.param_type_name for parameter in command.params if parameter.name == "job"), None)

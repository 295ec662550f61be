"""The groups of commands that backends bring, looked up if a command is not one of exactsink's own."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from exactsink.cli.opened import Opened
from exactsink.contract import ConfigError, ExactsinkError, Fatal, JobSinks, Retryable
from exactsink.job.commands import Commands
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["CommandGroup", "JobCommand", "PluginCommands", "commands_now"]

_RIGHTS = "let this user, or its keys and credentials (AWS_*, a profile, a role), list and read there"
_FIXES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENODEV: "make the bucket, or correct its name",
    errno.ENOENT: "correct the path",
    errno.ENOTDIR: "correct the path: a folder is wanted",
}
_NOW = "exactsink.commands"
_A_JOB = "JOB.toml"
_IN_ORDER_OF_USE = {
    "Write a job": ("init", "schema", "backends", "bench"),
    "Run it": ("check", "run", "script", "watch", "status", "stop", "history", "runs"),
    "Read its output": ("barrier", "verify"),
    "Settle work in doubt": ("indoubt", "recover", "rebase", "adopt", "journal"),
    "Backends, and tools for their authors": (),
}
_UNCUT = 1000  # characters; click takes 45, or the rest of the line


class JobCommand(click.Command):
    """A command that remembers its job, and its batch run, for the commands that messages name."""

    def invoke(self, context: click.Context) -> Any:
        context.meta[_NOW] = Commands(context.params.get("job") or _A_JOB, context.params.get("run"))
        return super().invoke(context)


class CommandGroup(click.Group):
    """A group that shows the whole first sentence of each command in its help, because click would cut it."""

    command_class = JobCommand

    sections: Mapping[str, Sequence[str]] = MappingProxyType({"Commands": ()})

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section. The last section has the commands that no section names."""
        found = {name: self.get_command(context, name) for name in self.list_commands(context)}
        rows = {name: command.get_short_help_str(_UNCUT) for name, command in found.items() if command is not None}
        sections = [[(name, rows.pop(name)) for name in names if name in rows] for names in self.sections.values()]
        sections[-1] += rows.items()
        for title, listed in zip(self.sections, sections, strict=True):
            with formatter.section(title):
                formatter.write_dl(listed)


class PluginCommands(CommandGroup):
    """Own commands, and a group for each backend that brings one. A group never replaces an own command."""

    group_class = CommandGroup
    sections = MappingProxyType(_IN_ORDER_OF_USE)

    def invoke(self, context: click.Context) -> Any:
        """Run a command. Commands in its error are ready to type.

        It is not a bug if a disk or store refuses a backend's command.
        """
        try:
            return super().invoke(context)
        except ExactsinkError as error:
            commands_now().name(error)
            raise
        except OSError as error:
            name = context.invoked_subcommand or ""
            if name in self.commands or error.errno == errno.EPIPE:  # the reader of stdout has gone
                raise
            raise _refused(name, error) from error

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *Registry(installed_plugins()).with_commands()})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        own = super().get_command(context, name)
        if own is not None:
            return own
        spec = Registry(installed_plugins()).with_commands().get(name)
        if spec is None:
            return None
        module, _, function = spec.commands.partition(":")
        try:
            group: click.Group = getattr(importlib.import_module(module), function)(_open_job)
        except ExactsinkError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"the commands of backend {spec.name} can't be loaded", why=why, next=spec.install
            ) from error
        return group


def _refused(name: str, error: OSError) -> ExactsinkError:
    """Return the error for a disk or store that refused a command: a person must act, or it may work later."""
    what = f"the command {name} can't read or write {error.filename or 'a file that it was given'}"
    why = error.strerror or str(error)
    if fix := _FIXES.get(error.errno or 0):
        return Fatal(what, why=why, next=f"{fix}, then run the same command again")
    return Retryable(what, why=why, next="check that the disk or server answers, then run the same command again")


def commands_now() -> Commands:
    """Return the commands for the job of the running command."""
    context = click.get_current_context(silent=True)
    return Commands(_A_JOB) if context is None else context.meta.get(_NOW, Commands(_A_JOB))


def _open_job(path: str, run: str | None) -> JobSinks:
    click.get_current_context().meta[_NOW] = Commands(path, run)
    opened = Opened.of(path, run)
    return JobSinks(opened.history.job, {name: sink.backend for name, sink in opened.sinks.items()})

"""The groups of commands that backends bring: looked up when a command is not one of exactsink's own."""

from __future__ import annotations

import importlib

import click

from exactsink.cli.opened import Opened
from exactsink.contract import ConfigError, ExactsinkError, JobSinks
from exactsink.job.registry import Registry, installed_plugins

__all__ = ["Commands", "PluginCommands"]

_UNCUT = 1000  # characters; click takes 45 or what the line has left


class Commands(click.Group):
    """A group whose help shows the whole first sentence of each command: click cuts it."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(context, name) for name in self.list_commands(context)}
        rows = [(name, command.get_short_help_str(_UNCUT)) for name, command in found.items() if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class PluginCommands(Commands):
    """Own commands, and a group for each backend that brings one; none of these stands for an own one."""

    group_class = Commands

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
                f"the commands of backend {spec.name} can't be had", why=why, next=spec.install
            ) from error
        return group


def _open_job(path: str, run: str | None) -> JobSinks:
    opened = Opened.of(path, run)
    return JobSinks(opened.history.job, {name: sink.backend for name, sink in opened.sinks.items()})

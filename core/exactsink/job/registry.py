"""Find the installed backends by entry point, lazily: a broken plugin stops only the job that uses it."""

from __future__ import annotations

import importlib
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from exactsink.contract import CONTRACT_VERSION, ENTRY_POINT_GROUP, Backend, BackendSpec, ConfigError, Event, HookSpecs
from exactsink.toolkit.drivers import missing
from exactsink.toolkit.nearest import nearest

__all__ = ["BackendListing", "Registry", "installed_plugins"]


_BACKENDS_ELSEWHERE = {
    **dict.fromkeys(("s3", "s3a", "parquet", "csv", "json"), '; it is backend = "files" here, with path and format'),
    **dict.fromkeys(("sqlite", "mysql", "mariadb", "duckdb"), '; it is backend = "idempotent_upsert" here, with url'),
    "jdbc": '; it is backend = "postgres" here (appends), or "idempotent_upsert" with url (keyed rows)',
    "postgresql": '; it is backend = "postgres" here',
}
"""By names that users of Spark and of other sinks may type: the backend's name here."""

_LOG = logging.getLogger("exactsink")


@dataclass(frozen=True, slots=True)
class BackendListing:
    """One line of `exactsink backends`. `problem` is empty if the backend can be used.

    `source` is the plugin's entry point. `package` is the installed package that brings it, with its version.
    """

    name: str
    source: str
    package: str
    contract: int
    strategies: Mapping[str, str]
    problem: str = ""


def installed_plugins() -> Iterable[EntryPoint]:
    """List the entry points of exactsink's group."""
    return entry_points(group=ENTRY_POINT_GROUP)


class Registry:
    """The plugins of this installation. The constructor imports the plugin modules, not the backends."""

    def __init__(self, plugins: Iterable[EntryPoint]) -> None:
        self._manager = pluggy.PluginManager("exactsink")
        self._manager.add_hookspecs(HookSpecs)
        self._specs: dict[str, tuple[str, BackendSpec]] = {}
        self._packages: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._disputed: dict[str, str] = {}
        for plugin in sorted(plugins, key=lambda p: p.name):
            self._packages[plugin.name] = _package_of(plugin)
            try:
                self._add(plugin)
            except Exception as error:  # a plugin's bug must not stop the jobs that don't use it
                self._broken[plugin.name] = f"{type(error).__name__}: {error}"
        listening = self._manager.hook.exactsink_event.get_hookimpls()
        self._listeners = {found.plugin_name: self._hook_of("exactsink_event", found.plugin) for found in listening}

    def listings(self) -> list[BackendListing]:
        """List every backend. Tries to import each, and lists a broken one with its problem."""
        unusable = {**self._broken, **self._disputed}
        rows = [
            BackendListing(name, name, self._packages.get(name, ""), 0, {}, problem)
            for name, problem in unusable.items()
        ]
        for name, (source, spec) in self._specs.items():
            problem = missing(spec.drivers) and f"{missing(spec.drivers)}; next: {spec.install}"
            try:
                self.load(name, name)
            except ConfigError as error:
                problem = problem or error.why or error.what
            package = self._packages[source]
            rows.append(BackendListing(name, source, package, spec.contract, spec.strategies, problem))
        return sorted(rows, key=lambda row: row.name)

    def load(self, name: str, place: str) -> type[Backend]:
        """Import a backend by its name in the config. `place` is the config's line that has it. Raises ConfigError."""
        spec = self.spec(name, place)
        if spec.contract != CONTRACT_VERSION:
            what = f"{place}: backend {name} ({self.package(name)}) was written for contract {spec.contract}"
            old = spec.contract < CONTRACT_VERSION
            fix = f"{spec.install} --upgrade" if old else "pip install --upgrade exactsink"
            raise ConfigError(what, why=f"this release has contract {CONTRACT_VERSION}", next=fix)
        module, _, attribute = spec.load.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            why = missing(spec.drivers) or f"{type(error).__name__}: {error}"
            what = f"{place}: backend {name} ({self.package(name)}) can't be imported"
            raise ConfigError(what, why=why, next=spec.install) from error
        if not (isinstance(found, type) and issubclass(found, Backend)):
            what = f"{place}: backend {name} ({self.package(name)}): {spec.load} is not a Backend"
            raise ConfigError(what, next=spec.install)
        return found

    def package(self, name: str) -> str:
        """Return the package that brings a backend, with its version, or the plugin's name if no package is known."""
        source = self._specs[name][0]
        return self._packages[source] or f"plugin {source}"

    def strategies(self, name: str) -> Mapping[str, str]:
        """Return a backend's strategies, with a line for each; empty if the backend is not installed."""
        return self._specs[name][1].strategies if name in self._specs else {}

    def with_commands(self) -> Mapping[str, BackendSpec]:
        """Return the backends that bring commands, by the names of their command groups."""
        return {name.replace("_", "-"): spec for name, (_, spec) in self._specs.items() if spec.commands}

    def spec(self, name: str, place: str) -> BackendSpec:
        """Return a plugin's spec of a backend. `place` names the caller. Raises ConfigError for an unknown backend."""
        if name not in self._specs:
            raise self._unknown(name, place)
        return self._specs[name][1]

    def send(self, event: Event) -> None:
        """Report an event to every plugin that listens. One plugin's error does not keep the event from the others."""
        for name, hook in self._listeners.items():
            try:
                hook(event=event)
            except Exception:
                _LOG.exception("plugin %s failed on %s", name, event)

    def _add(self, entry_point: EntryPoint) -> None:
        plugin = entry_point.load()
        name = entry_point.name
        self._manager.register(plugin, name=name)
        brought: list[Sequence[BackendSpec]] = self._hook_of("exactsink_backends", plugin)()
        for spec in itertools.chain(*brought):
            if spec.name in self._specs:
                _LOG.warning("backend %s is brought by two plugins", spec.name)
                self._disputed[spec.name] = f"both {self._specs.pop(spec.name)[0]} and {name} bring it"
            elif spec.name not in self._disputed:
                self._specs[spec.name] = (name, spec)

    def _hook_of(self, hook: str, plugin: object) -> pluggy.HookCaller:
        """Return a hook's caller for one plugin alone, so that an error can be attributed to it."""
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        return self._manager.subset_hook_caller(hook, remove_plugins=others)

    def _unknown(self, name: str, place: str) -> ConfigError:
        if name in self._disputed:
            why = self._disputed[name]
            return ConfigError(f"{place}: backend {name} is broken", why=why, next="`exactsink backends` lists them")
        broken = "; ".join(
            f"plugin {' of '.join(filter(None, (plugin, self._packages[plugin])))} is broken: {problem}"
            for plugin, problem in self._broken.items()
        )
        return ConfigError(
            f"{place}: no backend {name} is installed{_BACKENDS_ELSEWHERE.get(name) or nearest(name, self._specs)}",
            why=broken,
            next=f"name one of {', '.join(sorted(self._specs))}; or pip install the plugin that brings it",
        )


def _package_of(plugin: EntryPoint) -> str:
    found = plugin.dist  # None if an entry point was made by hand
    return "" if found is None else f"{found.name} {found.version}"

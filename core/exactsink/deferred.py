"""Options that a task resolves from its executor's own environment, so that no secret travels with the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exactsink.backend import Backend
from exactsink.errors import ConfigError

__all__ = ["EXECUTOR_VARIABLE", "DeferredBackend", "resolved"]

EXECUTOR_VARIABLE = re.compile(r"\$\{executor:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}")
"""`${executor:NAME}` or `${executor:NAME:-default}` in a sink's own options."""


@dataclass(frozen=True, slots=True)
class DeferredBackend:
    """A backend whose options still hold `${executor:NAME}`: a value that pickles without what stands behind them."""

    backend: type[Backend]
    options: Mapping[str, Any] = field(repr=False)

    def resolve(self, environ: Mapping[str, str]) -> Backend:
        """Make the backend from this process's environment. Raises ConfigError for a variable that is not there."""
        options = {key: _filled(value, environ) for key, value in self.options.items()}
        return self.backend(self.backend.Options.model_validate(options))


def resolved(backend: Backend | DeferredBackend, environ: Mapping[str, str]) -> Backend:
    """Give a task's backend, ready to write."""
    return backend.resolve(environ) if isinstance(backend, DeferredBackend) else backend


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, environ) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, environ) for item in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        if environ.get(name) or (name in environ and default is None):
            return environ[name]
        if default is not None:
            return default[2:]
        raise ConfigError(
            f"an executor's environment has no {name}",
            why=f"a sink's option says {found[0]}",
            next=f"set it there (spark.executorEnv.{name} in [spark] conf, or on the machine)",
        )

    return EXECUTOR_VARIABLE.sub(fill, value)

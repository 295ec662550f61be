"""A backend's options as a call that editors complete: `Kafka(topic="orders", ...)`, for `Job(sinks={...})`.

The call checks nothing: `Job` does, with the environment put in, as it checks a file's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, getdoc
from typing import Any, Literal, TypedDict, get_type_hints

from exactsink.contract.errors import ConfigError

__all__ = ["SinkKeys", "sink_calls"]


class SinkKeys(TypedDict, total=False):
    """The keys of every sink, whatever its backend, as `[sinks.NAME]` of a job's file has them."""

    columns: list[str] | tuple[str, ...]
    where: str
    distribution: int | str
    max_participants: int
    after: str | list[str] | tuple[str, ...]
    epoch_column: str
    on_bad_row: Literal["stop", "quarantine"]
    quarantine: str
    quarantine_at_most: int


def sink_calls(backend: str, **options: str) -> Callable[[str], Any]:
    """Return a backend package's `__getattr__`, which makes the calls: `Kafka="exactsink_kafka.options:KafkaOptions"`.

    The package stays light: options are imported when a program takes the call. Its result is a sink's table, a dict.
    For type checkers the package has a stub: `__init__.pyi`.
    """
    package = next(iter(options.values())).partition(":")[0].partition(".")[0]

    @cache
    def call(name: str) -> Any:
        if name not in options:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return _call(package, backend, name, options[name])

    return call


def _call(package: str, backend: str, name: str, options: str) -> Callable[..., dict[str, Any]]:
    module, _, attribute = options.partition(":")
    model = getattr(import_module(module), attribute)

    required = {key: Parameter.empty for key, field in model.model_fields.items() if field.is_required()}

    def table(*unnamed: Any, **given: Any) -> dict[str, Any]:
        if unnamed:
            fix = f"{name}({', '.join(f'{key}=...' for key in required)})"
            raise ConfigError(f"{name} takes its options by name, and got {unnamed[0]!r:.40}", next=fix)
        return {"backend": backend, **given}

    kinds = {key: field.annotation for key, field in model.model_fields.items()} | get_type_hints(SinkKeys)
    named = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=required.get(key), annotation=kind)
        for key, kind in kinds.items()
    ]
    table.__name__ = table.__qualname__ = name
    table.__module__, table.__doc__ = package, getdoc(model)
    table.__dict__["__signature__"] = Signature(named)  # notebooks complete and show it
    return table

"""Let editors complete a backend's options in a call: `Kafka(topic="orders", ...)`, for `Job(sinks={...})`.

The call validates nothing. `Job` validates the options once it has replaced references to the environment, exactly as
for the tables of a job's file.
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
    """The keys of every sink, whatever its backend. `[sinks.NAME]` in a job's file has the same keys."""

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
    """Return the `__getattr__` of a backend's package, which makes such calls.

    `options` maps the name of a call to its options, for example `Kafka="exactsink_kafka.options:KafkaOptions"`. A call
    returns a sink's table, a dict. The package stays light, because the options are imported only when a program uses
    the call. Type checkers read its stub, `__init__.pyi`.
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
    table.__dict__["__signature__"] = Signature(named)  # notebooks complete and show the signature
    return table

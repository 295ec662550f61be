"""Bind a config's sinks to their backends: load each backend, and let it check its own options."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from exactsink.contract import Backend, BackendOptions, ConfigError, Traits
from exactsink.job.config.load import config_error, flags_checked
from exactsink.job.config.model import JobConfig, SinkSection
from exactsink.job.config.toml import Document
from exactsink.job.registry import Registry
from exactsink.protocol.checked import broken, calling
from exactsink.protocol.quarantine import quarantine_schema
from exactsink.protocol.sinks import DeferredBackend, Sink

__all__ = ["bind_sinks"]


def bind_sinks(config: JobConfig, document: Document, registry: Registry) -> dict[str, Sink]:
    """Make the job's sinks. Raises ConfigError for an unknown or broken backend, or options that it refuses."""
    try:
        sinks = {name: _bound(name, section, config, document, registry) for name, section in config.sinks.items()}
        _check_quarantines(sinks, document)
    except ConfigError as error:  # a backend's own message may show a value from the environment
        what, why, fix = map(document.scrubbed, (error.what, error.why, error.next))
        raise ConfigError(what, why=why, next=fix) from error.__cause__
    return sinks


def _check_quarantines(sinks: Mapping[str, Sink], document: Document) -> None:
    """Refuse sinks that can't judge rows one by one, and quarantines that show rows early. Raises ConfigError."""
    for name, sink in sinks.items():
        if sink.quarantine is None:
            continue
        place, quarantine = document.place(("sinks", name, "quarantine")), sinks[sink.quarantine]
        if not sink.backend.traits.validates_rows:
            raise ConfigError(
                f"{place}: backend {sink.kind} ({sink.backend.strategy}) can't judge rows one by one",
                why="this backend detects bad rows only while it writes them",
                next=f'set on_bad_row = "stop" in [sinks.{name}], and filter such rows before it; or choose another '
                "strategy or backend",
            )
        if quarantine.backend.traits.visible_early:
            raise ConfigError(
                f"{place}: sink {sink.quarantine} ({quarantine.backend.strategy}) can't be a quarantine",
                why="its rows show before the decision, and an abort keeps them: a row could be in both sinks",
                next="choose a strategy that waits for the decision (`exactsink backends`)",
            )
        quarantine_schema(quarantine.backend)


def _bound(name: str, section: SinkSection, config: JobConfig, document: Document, registry: Registry) -> Sink:
    backend_class = registry.load(section.backend, document.place(("sinks", name, "backend")))
    core = SinkSection.model_fields
    try:
        given = flags_checked(config.options[name], backend_class.Options)
        options = backend_class.Options.model_validate(given, context={"folder": document.folder})
    except ValidationError as error:
        raise config_error(error, document, ("sinks", name), backend_class.Options, core) from None
    deferred = None
    written = document.task_values["sinks"][name]
    for key in core:
        if key in written and written[key] != document.values["sinks"][name][key]:
            raise ConfigError(
                f"{document.place(('sinks', name, key))}: {key} is not an option of the backend",
                why="tasks don't see it, so an executor's environment can't fill it",
                next="write ${NAME}",
            )
    backend = _made(name, backend_class, options)
    if section.epoch_column is not None:
        backend.check_epoch_column(section.epoch_column)
    task_options = {key: value for key, value in written.items() if key not in core}
    if task_options != config.options[name]:
        deferred = DeferredBackend(backend_class, task_options, document.folder)
    return Sink(
        name=name,
        kind=section.backend,
        backend=backend,
        deferred=deferred,
        staging=str(config.staging / name),
        columns=section.columns,
        where=section.where,
        distribution=section.distribution,
        max_participants=section.max_participants,
        after=section.after,
        longest_pause_seconds=config.job.longest_pause_seconds,
        epoch_budget_seconds=config.job.epoch_budget_seconds,
        file_mode=config.job.file_mode,
        epoch_column=section.epoch_column,
        quarantine=section.quarantine,
        quarantine_at_most=section.quarantine_at_most,
    )


def _made(name: str, backend_class: type[Backend], options: BackendOptions) -> Backend:
    """Make the backend, and check the values that the journal keeps of it. Raises ContractError if one is wrong."""
    with calling(name, backend_class, backend_class.__name__):
        backend = backend_class(options)
        says: dict[str, tuple[object, type]] = {
            "strategy": (backend.strategy, str),
            "target": (backend.target, str),
            "traits": (backend.traits, Traits),
        }
    for what, (value, kind) in says.items():
        if not isinstance(value, kind) or value == "":
            raise broken(name, backend, f"its {what} is {value!r:.80}, and must be a {kind.__name__}, not empty")
    return backend

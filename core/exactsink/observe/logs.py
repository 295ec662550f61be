"""A command's log: lines for people or in JSON, each with the job, its generation and its epoch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Literal

from exactsink.contract import Event

__all__ = ["JsonLines", "LogContext", "LogFormat", "TextLines", "in_context", "logs_json", "start_log"]

LogFormat = Literal["text", "json"]
_EPOCHS = logging.getLogger("exactsink.epoch")
_CONTEXT = "exactsink_context"


class LogContext(logging.Filter):
    """Add the job, its generation and its epoch to every record.

    It receives events as a subscriber, and refuses no record.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._context: Mapping[str, Any] = {"job": job}

    def __call__(self, event: Event) -> None:
        """Follow a new claim or epoch."""
        if event.name == "claimed":
            self._context = {"job": event.job, "generation": event.fields["generation"]}
        elif event.epoch is not None and event.epoch != self._context.get("epoch"):
            self._context = {**self._context, "epoch": event.epoch}

    def filter(self, record: logging.LogRecord) -> bool:
        """Put the context on the record, for the formatters below."""
        setattr(record, _CONTEXT, self._context)
        return True


class TextLines(logging.Formatter):
    """Lines for people. The part of the context that the message lacks follows it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        said = _event(record)
        context = getattr(record, _CONTEXT, {})
        rest = (f" {name}={value}" for name, value in context.items() if said.get(name) is None)
        return super().formatMessage(record) + "".join(rest)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, job, generation, epoch, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        said = {name: value for name, value in _event(record).items() if value not in (None, "")}
        line = {
            **said,
            **{name: said.get(name, value) for name, value in getattr(record, _CONTEXT, {}).items()},
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def start_log(wanted: LogFormat, verbosity: int) -> None:
    """Log to stderr, unless this process has a log already: warnings; from 1 on also events; from 2 on also points."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if wanted == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbosity, 2)]
    logging.getLogger("exactsink").setLevel(level)


def logs_json() -> bool:
    """Return whether this process logs in JSON: then every report on stderr must be a record."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


@contextmanager
def in_context(context: LogContext) -> Iterator[None]:
    """Add this context to all lines, including Python's own warnings, and log the lines of `EpochLines`."""
    handlers = list(logging.getLogger().handlers)
    before = _EPOCHS.level
    _EPOCHS.setLevel(min(logging.INFO, logging.getLogger("exactsink").getEffectiveLevel()))
    for handler in handlers:
        handler.addFilter(context)
    logging.captureWarnings(logs_json())
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for handler in handlers:
            handler.removeFilter(context)
        _EPOCHS.setLevel(before)


def _event(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, "exactsink", None) or {}

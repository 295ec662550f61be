"""Which of the writers a sink's tasks use."""

from __future__ import annotations

import logging

import pyarrow as pa

from exactsink.contract import ConfigError
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.producers.base import RowProducer
from exactsink_kafka.producers.plain import PlainProducer
from exactsink_kafka.producers.settings import settings
from exactsink_kafka.shapes import plain_only

__all__ = ["row_producer"]

_LOG = logging.getLogger(__name__)


def row_producer(
    options: KafkaOptions, schema: pa.Schema, transactional_id: str, client_id: str, doing: str
) -> RowProducer:
    """Make the producer that the options ask for. `auto` takes the fast one where it loads and the rows allow it."""
    given = settings(options, transactional_id, client_id)
    why = _against_fast(options, schema)
    if why is None:
        try:
            return _fast(options, given, doing)
        except ImportError as error:
            why = str(error)
    if options.writer == "fast":
        raise ConfigError(
            f'{doing}: writer = "fast" can\'t be used here',
            why=why,
            next='set writer = "auto", or give executors wheels: pip install --only-binary :all: confluent-kafka numpy',
        )
    _LOG.debug("%s: the plain writer: %s", doing, why)
    return PlainProducer(given, options.topic, doing)


def _fast(options: KafkaOptions, given: dict[str, str], doing: str) -> RowProducer:
    from exactsink_kafka.producers.fast import FastProducer  # numpy and the library may be missing
    from exactsink_kafka.producers.library import Library

    assert options.topic is not None
    library = Library()
    _LOG.debug("%s: the fast writer", doing)
    return FastProducer(library, given, options.topic, doing)


def _against_fast(options: KafkaOptions, schema: pa.Schema) -> str | None:
    if options.writer == "plain":
        return "asked for"
    if slow := plain_only(options, schema):
        return f"rows have a column {slow[0]}"
    return None

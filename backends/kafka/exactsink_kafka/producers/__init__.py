"""Two ways to hand rows to librdkafka within one transaction: a call per row, or one per Arrow batch."""

from exactsink_kafka.producers.base import RowProducer
from exactsink_kafka.producers.choice import row_producer

__all__ = ["RowProducer", "row_producer"]

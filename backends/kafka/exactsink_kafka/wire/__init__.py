"""Raw requests to a cluster: `requests` says what can be asked, `asking` asks until brokers answer, `channel` sends."""

from exactsink_kafka.wire.answers import Cluster, Described, OpenProducer, Seen, Topic
from exactsink_kafka.wire.requests import END_TXN_VERSION, Wire

__all__ = ["END_TXN_VERSION", "Cluster", "Described", "OpenProducer", "Seen", "Topic", "Wire"]

"""The backend `kafka`, in the order that a row takes, and then a vote.

plugin        announces the backend without importing it
options       the sink's options, and the same in the words of the two clients
backend       what the backend promises; makes writers and committers
records       a row's columns: what the JVM makes of them, and a batch as records
writer        a task attempt: one transaction, left open, the choice of its client, and the vote that names it
producer      the transaction's producer; the plain client, a call per row, through librdkafka
columns_client  the fast client: gathers Arrow batches, and sends them as record batches of our own
columns       Arrow columns as record batches, by kernels: no step per row
sender        sends them to the leaders until each is acknowledged
transactions  transactional ids, a task's ticket, and the vote's payload
committer     the driver's side: opens epochs, ends transactions, lists and sweeps them
outcomes      what became of a transaction, by its partitions; writes markers that got lost
wire          requests that no public client makes: end another process's transaction, and what became of it
messages      what those requests and their answers hold, as values
channel       sends them until brokers answer: all private calls of kafka-python
group         the sink's mark in a consumer group; the source's offsets in another, for tools that show lag
preflight     what is asked of a cluster before the first row
connect       reaches it, and probes TLS and the login where that fails
errors        Kafka's error codes, and what follows from each
remedies      the commands that are printed to fix a cluster
conformance   the targets of the conformance kit
"""

from exactsink.contract import sink_calls

__all__ = ["Kafka"]

__getattr__ = sink_calls("kafka", Kafka="exactsink_kafka.options:KafkaOptions")

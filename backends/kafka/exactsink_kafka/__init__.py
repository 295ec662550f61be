"""The backend `kafka`. Its modules are listed in the order in which a row, and then its vote, passes them.

plugin        announces the backend without importing it
options       the sink's options, and the settings that they become for the two clients
backend       the backend's traits; makes writers and committers
records       the columns of a record: Spark's expressions for the JVM, and a task's batches as records
writer        a task attempt: chooses its client, writes in one transaction, leaves it open, and votes with its name
producer      the transaction's producer; the plain client, a call per row, through librdkafka
columns_client  the fast client: gathers Arrow batches, encodes record batches of them, and sends those
columns       Arrow columns as record batches, by kernels: no step per row
sender        sends them to the leaders until each is acknowledged
transactions  transactional ids, a task's ticket, and the vote's payload
committer     the driver's side: opens epochs, ends transactions, lists and sweeps them
outcomes      how a transaction ended, read from its partitions; writes markers that got lost
wire          requests that no public client makes: end another process's transaction, and read how it ended
messages      makes those requests, and reads their answers as values
channel       sends requests until brokers answer: all private calls of kafka-python
group         the sink's mark in a consumer group; the source's offsets in another, for tools that show lag
preflight     checks of a cluster before the first row
connect       connects to a cluster; if that fails, probes TLS and the login
errors        Kafka's error codes, and the reaction to each
remedies      the commands that are printed to fix a cluster
conformance   the targets of the conformance kit
"""

from exactsink.contract import sink_calls

__all__ = ["Kafka"]

__getattr__ = sink_calls("kafka", Kafka="exactsink_kafka.options:KafkaOptions")

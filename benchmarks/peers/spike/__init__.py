"""No product: our Kafka writer as it would be inside Spark's JVM, to see what the way through Arrow and Python costs."""

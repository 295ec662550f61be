"""No product: our Kafka writer inside Spark's JVM, to see what the way through Arrow and Python costs."""

"""Apache Flink as a peer: `Peer.java` is the JVM that stays warm, `session` starts it and gives it jobs."""

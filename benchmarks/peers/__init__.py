"""Ours beside its peers: the same rows through exactsink, Flink, Spark's own sinks and the servers' own tools."""

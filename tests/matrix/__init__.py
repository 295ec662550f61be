"""exactsink on every version of Spark and Python that it supports: `make matrix`, or `python -m tests.matrix`."""

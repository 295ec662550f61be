"""What would stop a job, or weaken it, looked for before its first row; each finding with what fixes it."""

from exactsink_kafka.preflight.entry import findings

__all__ = ["findings"]

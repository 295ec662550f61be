"""What would stop a job, or weaken it, looked for before its first row; each finding with what fixes it."""

from exactsink_postgres.preflight.entry import findings

__all__ = ["findings"]

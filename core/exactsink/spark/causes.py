"""What lies behind an error of Spark's, in a line."""

from __future__ import annotations

__all__ = ["first_line", "task_error"]


def first_line(error: Exception) -> str:
    """Return what Spark says, without the plan and the stack below it."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def task_error(error: Exception) -> str:
    """Find a Python task's own error in what Spark reports of it."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception", "Retryable")) and ":" in line]
    named = [line for line in found if not line.startswith(("org.apache.spark", "pyspark."))]
    return (named or found or lines[:1])[-1][:500]

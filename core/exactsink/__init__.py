"""Exactly-once output from PySpark to several stores, committed together. Light to import: executors do so."""

__all__ = ["__version__"]

__version__ = "0.1.0"

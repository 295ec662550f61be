"""Measure the strategies that a job could choose, with the same rows for each, and report the figures."""

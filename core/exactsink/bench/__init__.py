"""Measure what a job could choose from: the same rows through every strategy; and the report of it."""

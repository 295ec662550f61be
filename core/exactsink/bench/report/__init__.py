"""A report of measurements: its values, and its two forms, JSON and one HTML page."""

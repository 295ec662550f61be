"""A report of measurements: values, and the three forms they are read in: JSON, Markdown, one HTML page."""

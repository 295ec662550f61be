"""A report of measurements: values, and the two forms they are read in: JSON and one HTML page."""

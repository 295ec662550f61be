"""Look at a job while it runs, without a metrics server. `recent` runs in the driver; the other modules only read.

`recent` keeps the last hours beside the journal, `seen` queries the job once, `terminal` and `web` show the result.
"""

"""Look at a job while it runs, without a server for metrics. Only `recent` runs in the driver; all else only reads.

`recent` keeps the last hours beside the journal, `seen` is one look, `terminal` and `web` show it.
"""

"""SQLite: one file, one writer; rows by many values a statement."""

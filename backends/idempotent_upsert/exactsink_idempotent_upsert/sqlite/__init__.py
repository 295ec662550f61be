"""SQLite: one file, one writer, and rows in statements with many values."""

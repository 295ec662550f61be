"""PostgreSQL: rows wait in the postgres backend's staging tables."""

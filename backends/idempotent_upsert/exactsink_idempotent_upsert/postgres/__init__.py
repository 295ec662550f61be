"""PostgreSQL: rows wait in the postgres backend's staging tables, or in a temporary one of their task."""

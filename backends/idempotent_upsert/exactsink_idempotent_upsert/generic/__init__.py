"""Any other SQLAlchemy dialect, by portable SQL."""

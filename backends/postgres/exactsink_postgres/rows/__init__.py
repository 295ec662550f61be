"""Rows on their way to a server: which Arrow type goes into which column, and the bytes of a binary COPY."""

from exactsink_postgres.rows.encoder import RowEncoder
from exactsink_postgres.rows.fits import Column, column_type, misfit

__all__ = ["Column", "RowEncoder", "column_type", "misfit"]

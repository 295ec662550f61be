"""The `kafka` backend of exactsink."""

__all__: list[str] = []

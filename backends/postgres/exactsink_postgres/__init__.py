"""The `postgres` backend of exactsink."""

__all__: list[str] = []

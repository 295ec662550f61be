"""A target in a bucket of its own, and what a client without a proxy sees of it."""

from __future__ import annotations

from tests.integration.clouds.cloud import Cloud


class Lake(Cloud):
    """A target on S3, with its unfinished uploads. The environment leads to the server, not to the proxy."""

    def uploads(self) -> int:
        return len(list(self.store.uploads("")))

    def records(self) -> list[str]:
        return [name for name in self.names() if name.endswith(".uploads")]

    def is_clean(self) -> bool:
        return self.uploads() == 0 and self.records() == []

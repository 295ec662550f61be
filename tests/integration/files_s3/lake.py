"""A target in a bucket of its own, and what a client without a proxy sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactsink.contract import Committable
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.s3 import S3 as Calls
from exactsink_files.s3 import open_s3
from exactsink_files.votes import VotedFiles
from tests.servers.s3 import S3
from tests.unit.files_sink import DAYS, TEXT, Files, files, rows


@dataclass(frozen=True)
class Lake:
    """A target in a bucket of its own, below a prefix, as a client without a proxy sees it."""

    url: str
    server: S3

    @property
    def s3(self) -> Calls:
        return Calls(open_s3(self.url, self.server.endpoint, None))

    def sink(self, job: str = "job", sink: str = "sink", **options: Any) -> Files:
        return files(self.url, job, sink, **options)  # type: ignore[arg-type]

    def two_files(self, participants: int = 1, **options: Any) -> tuple[Files, list[Committable]]:
        sink = self.sink(partition_by=["day"], **TEXT, **options)
        sink.put_birth()
        return sink, sink.vote(*[rows((f"{n}", 1), (f"{n}", 2), schema=DAYS) for n in range(participants)])

    def names(self) -> list[str]:
        root = ObjectPath.of(self.url, endpoint_url=self.server.endpoint)
        return [name.partition("/lake/")[2] for name in root.fs.find(self.url)]

    def visible(self) -> dict[str, bytes]:
        found = {name: self.s3.get(self.s3.key(name)) for name in self.names() if not name.startswith("_exactsink")}
        return {name: data for name, data in found.items() if data is not None}

    def lines(self) -> list[str]:
        return sorted(line for data in self.visible().values() for line in data.decode().splitlines())

    def uploads(self) -> int:
        return len(list(self.s3.uploads("")))

    def records(self) -> list[str]:
        return [name for name in self.names() if name.endswith(".uploads")]

    def remove_uploads(self, *votes: Committable) -> None:
        """Abort, as a lifecycle rule does."""
        for vote in votes:
            for file in VotedFiles.load(vote).files:
                self.s3.abort(self.s3.key(file.final), file.temp)

    def is_clean(self) -> bool:
        return self.uploads() == 0 and self.records() == []

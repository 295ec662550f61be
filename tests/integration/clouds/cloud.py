"""A target in a cloud's emulator, what a client without a proxy sees of it, and the requests that come by the proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from exactsink.contract import Committable
from exactsink.protocol.journal.stores.objects import ObjectStore
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.backend import store_of
from exactsink_files.stores import Store
from exactsink_files.votes import VotedFiles
from tests.servers.azurite import Azurite
from tests.servers.fake_gcs import FakeGcs
from tests.servers.hdfs import Hdfs
from tests.servers.s3 import S3 as S3Server
from tests.servers.s3_rules import COMPLETE, Answer, Ask
from tests.unit.files_sink import DAYS, TEXT, Files, files, rows


@dataclass(frozen=True)
class Kind:
    """A cloud, and what its requests look like."""

    scheme: str
    server: type[Any]
    complete: str
    part: str
    create: str
    listing: str


AZURE = Kind("az", Azurite, r"^PUT .*comp=blocklist", r"^PUT .*comp=block&", r"^PUT [^?]*$", r"^GET .*comp=list")
GCS = Kind(
    "gs",
    FakeGcs,
    r"^POST .*/compose",
    r"^POST /upload/.*ifGenerationMatch=0",
    r"^POST /upload/",
    r"^GET /storage/v1/b/[^/]+/o\?",
)
S3 = Kind("s3", S3Server, COMPLETE, r"^PUT .*partNumber=", r"^PUT [^?]*$", r"^GET .*list-type=2")
_NAMED = r"^PUT .*op=RENAME.*destination=(?!\S*_exactsink)"
HDFS = Kind("webhdfs", Hdfs, _NAMED, "^PUT .*op=CREATE", "^PUT .*op=RENAME", "^GET .*op=LISTSTATUS")

everywhere = pytest.mark.parametrize("emulator", ["azure", "gcs", "s3", "hdfs"], indirect=True)
buckets = pytest.mark.parametrize("emulator", ["azure", "gcs"], indirect=True)


class Counted:
    """Counts requests by their methods, and hands them on."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def concerns(self, request: str) -> bool:
        self.sent.append(request)
        return False

    def answer(self, request: str, ask: Ask) -> Answer | None:
        raise AssertionError


class Gives:
    """Answers the requests that a pattern is found in, in the store's place; cuts their connections without one."""

    def __init__(self, given: Answer | None, pattern: str = "") -> None:
        self.given = given
        self.pattern = pattern

    def concerns(self, request: str) -> bool:
        return re.search(self.pattern, request) is not None

    def answer(self, request: str, ask: Ask) -> Answer | None:
        return self.given


ENDED = {"az": (403, "AuthenticationFailed"), "gs": (401, ""), "s3": (400, "ExpiredToken"), "webhdfs": (401, "")}
"""The answers to credentials that ended."""


class Ends(Gives):
    """Answers as if credentials had ended, from the first request on that the pattern is found in."""

    def concerns(self, request: str) -> bool:
        if super().concerns(request):
            self.pattern = ""
        return not self.pattern


@dataclass
class Cloud:
    """A target of the test's own, below a prefix. The environment leads to the emulator `direct` by the proxy."""

    kind: Kind
    url: str
    direct: Any
    proxy: Any
    aside: ObjectPath = field(repr=False)

    def __post_init__(self) -> None:
        self.kept = len(self.proxy.rules)

    @property
    def store(self) -> Store:
        """The store, as this test's environment leads there."""
        return store_of(ObjectPath.of(self.url, skip_instance_cache=True))

    @property
    def entries(self) -> ObjectStore:
        """Those of a journal beside the target."""
        return ObjectStore(ObjectPath.of(f"{self.url}.journal", skip_instance_cache=True))

    def ends_faults(self) -> None:
        """Take the rules away that the test has set."""
        del self.proxy.rules[: len(self.proxy.rules) - self.kept]

    def set(self, rule: Any) -> Any:
        """Set a rule nearer to the client than those that are there."""
        self.proxy.rules.insert(0, rule)
        return rule

    def end_credentials(self, at: str = "") -> Any:
        return self.set(Ends(Answer.error(*ENDED[self.kind.scheme]), at))

    def sink(self, job: str = "job", sink: str = "sink", **options: Any) -> Files:
        return files(self.url, job, sink, **options)  # type: ignore[arg-type]

    def two_files(self, participants: int = 1, **options: Any) -> tuple[Files, list[Committable]]:
        sink = self.sink(partition_by=["day"], **TEXT, **options)
        sink.put_birth()
        return sink, sink.vote(*[rows((f"{n}", 1), (f"{n}", 2), schema=DAYS) for n in range(participants)])

    def names(self) -> list[str]:
        """List all objects below the target."""
        return sorted(self.aside.listed(deep=True))

    def visible(self) -> list[str]:
        return [name for name in self.names() if not name.startswith("_exactsink/")]

    def lines(self) -> list[str]:
        return sorted(line for name in self.visible() for line in (self.aside / name).read_text().splitlines())

    def left(self) -> list[str]:
        """List what is below `_exactsink` and is no mark."""
        return [name for name in self.names() if name.startswith("_exactsink/") and "/job.sink/" not in name]

    def remove_uploads(self, *votes: Committable) -> None:
        """Take away what waits, as the service does, or a person."""
        for vote in map(VotedFiles.load, votes):
            for file in vote.files:
                if self.aside.renames:
                    (self.aside / vote.folder / file.temp).unlink(missing_ok=True)
                    continue
                self.store.abort(self.store.key(file.final), file.temp)

"""Rules of an S3 proxy: each waits for a pattern in `METHOD target`, such as `COMPLETE`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

COMPLETE = r"^POST .*[?&]uploadId="
ABORT = r"^DELETE .*[?&]uploadId="
CREATE_UPLOAD = r"^POST .*[?&]uploads\b"
_LISTING = re.compile(r"^GET /[^/?]*/?\?(.*&)?uploads\b")


class Answer:
    """A whole answer of a server, or in its place."""

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    @classmethod
    def error(cls, status: int, code: str) -> Answer:
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        return cls(status, body.encode(), [("Content-Type", "application/xml")])


Ask: TypeAlias = Callable[[], "Answer | None"]


class Rule(Protocol):
    """A rule between a request and its answer. An earlier rule is nearer to the client than a later one."""

    def concerns(self, request: str) -> bool:
        """Return whether this rule applies to a request."""

    def answer(self, request: str, ask: Ask) -> Answer | None:
        """Answer a request. `ask` returns the answer of the next rule, or of the server. None cuts the connection."""


class _Counting:
    """Count the requests in which `pattern` is found. `sprung` is set once a rule has done its part."""

    def __init__(self, pattern: str) -> None:
        self.sprung = threading.Event()
        self._pattern = re.compile(pattern)
        self._seen = 0
        self._lock = threading.Lock()

    def _count(self, request: str) -> int:
        """Return the number of this request among them, from 1 on; 0 if it does not match."""
        if self._pattern.search(request) is None:
            return 0
        with self._lock:
            self._seen += 1
            return self._seen


class Trap(_Counting):
    """Wait for the `nth` request in which `pattern` is found, and spring once.

    `before` is called before the server gets that request. Without it, the connection is cut, and the answer is lost;
    `done` says whether the server gets the request.
    """

    def __init__(self, pattern: str, nth: int = 1, before: Callable[[], object] | None = None, done: bool = True):
        super().__init__(pattern)
        self.before = before
        self._nth = nth
        self._done = done

    def concerns(self, request: str) -> bool:
        return self._count(request) == self._nth

    def answer(self, request: str, ask: Ask) -> Answer | None:
        if self.before is None:
            if self._done:
                ask()
            self.sprung.set()
            return None
        self.before()
        self.sprung.set()
        return ask()


class OneByOne(_Counting):
    """Pass on one matching request at a time. Call `then` before the `nth`, while none is under way."""

    def __init__(self, pattern: str, nth: int, then: Callable[[], object]) -> None:
        super().__init__(pattern)
        self._nth = nth
        self._then = then
        self._turn = threading.Lock()

    def concerns(self, request: str) -> bool:
        return self._pattern.search(request) is not None

    def answer(self, request: str, ask: Ask) -> Answer | None:
        with self._turn:
            if self._count(request) == self._nth:
                self._then()
                self.sprung.set()
            return ask()


class SlowDown(_Counting):
    """Answer SlowDown to the next `times` matching requests; sprung once it has done so."""

    def __init__(self, pattern: str, times: int, status: int = 503) -> None:
        super().__init__(pattern)
        self._times = times
        self._status = status

    def concerns(self, request: str) -> bool:
        return 0 < self._count(request) <= self._times

    def answer(self, request: str, ask: Ask) -> Answer:
        if self._seen >= self._times:
            self.sprung.set()
        return Answer.error(self._status, "SlowDown")


class Cuts(_Counting):
    """Pass on the next `times` matching requests, and `keep` bytes of their answers' bodies.

    `done` says whether the server gets them. Headers of its answers are lost if their names begin with `without`.
    """

    def __init__(
        self,
        pattern: str,
        times: int = 10**6,
        *,
        keep: int = 0,
        done: bool = True,
        without: str | tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(pattern)
        self._times = times
        self._keep = keep
        self._done = done
        self._without = without

    def concerns(self, request: str) -> bool:
        return 0 < self._count(request) <= self._times

    def answer(self, request: str, ask: Ask) -> Answer | None:
        self.sprung.set()
        given, lost = ask() if self._done else Answer(200, b""), self._without
        if given is None:
            return None
        left = [(name, value) for name, value in given.headers if lost is None or not name.lower().startswith(lost)]
        return Answer(given.status, given.body[: self._keep], left)


class ForgetsUploads:
    """Answer NoSuchUpload to the repetition of a Complete that was done; sprung once it has done so."""

    def __init__(self) -> None:
        self.sprung = threading.Event()
        self._done: set[str] = set()

    def concerns(self, request: str) -> bool:
        return re.search(COMPLETE, request) is not None

    def answer(self, request: str, ask: Ask) -> Answer | None:
        upload = request.partition("uploadId=")[2].partition("&")[0]
        if upload in self._done:
            self.sprung.set()
            return Answer.error(404, "NoSuchUpload")
        given = ask()
        if given is None or (given.status == 200 and b"<Error>" not in given.body):  # None: done; cut it
            self._done.add(upload)
        return given


class ListsWholeKeys:
    """Find unfinished uploads by a prefix only if it is the whole key of one; sprung once it has hidden some."""

    def __init__(self) -> None:
        self.sprung = threading.Event()

    def concerns(self, request: str) -> bool:
        return _LISTING.search(request) is not None and "prefix=" in request

    def answer(self, request: str, ask: Ask) -> Answer | None:
        given = ask()
        if given is None or given.status != 200:
            return given
        [prefix] = parse_qs(urlsplit(request.partition(" ")[2]).query).get("prefix", [""])
        listing = ElementTree.fromstring(given.body)
        for upload in listing.findall("{*}Upload"):
            if prefix and upload.findtext("{*}Key") != prefix:
                listing.remove(upload)
                self.sprung.set()
        return Answer(200, ElementTree.tostring(listing), given.headers)

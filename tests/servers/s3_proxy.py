"""A proxy before an S3 server. By its rules (`s3_rules`), it breaks, or answers as other S3 servers do.

It reads HTTP request by request, and passes each on unchanged: the clients sign for the proxy's own address, and the
server checks the signature.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO, TypeVar

from tests.servers.s3 import S3
from tests.servers.s3_rules import Answer, Rule

_BLOCK = 1 << 18
BODY: ContextVar[_Body] = ContextVar("body")
"""The body of the request that a rule answers."""
_HOP = ("connection", "keep-alive", "transfer-encoding")  # of one direction only, because bodies get new frames
_AnyRule = TypeVar("_AnyRule", bound=Rule)


class S3Proxy(S3):
    """A proxy before a server, for many connections, even while the server is down. Clients take it for the server."""

    def __init__(self, server: S3) -> None:
        self.rules: list[Rule] = []
        self._listening = _Listening(("127.0.0.1", 0), _Connection)
        self._listening.server = server
        self._listening.rules = self.rules
        super().__init__(server.folder, self._listening.server_port)
        threading.Thread(target=self._listening.serve_forever, args=(0.05,), name="s3-proxy", daemon=True).start()

    def set(self, rule: _AnyRule) -> _AnyRule:
        """Add a rule, for the requests that come from now on."""
        self.rules.append(rule)
        return rule

    def close(self) -> None:
        """Take no more connections. Open connections end with their clients."""
        self._listening.shutdown()
        self._listening.server_close()


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    server: S3
    rules: Sequence[Rule]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a broken connection, which its client sees by itself."""


class _Connection(BaseHTTPRequestHandler):
    """One client's connection, with its own connection to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listening

    def setup(self) -> None:
        super().setup()
        self._way = http.client.HTTPConnection("127.0.0.1", self.server.server.port)

    def finish(self) -> None:
        self._way.close()
        with suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        """Request the body, because the server gets the request only after the body."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _one(self) -> None:
        request = f"{self.command} {self.path}"
        BODY.set(body := _Body(self))
        rules = iter(list(self.server.rules))
        try:
            rule = next((rule for rule in rules if rule.concerns(request)), None)
            if rule is None:
                self._hand_on(self._asked(body))
            elif (given := rule.answer(request, lambda: self._answered(request, rules, body))) is not None:
                body.drain()
                self._give(given)
            else:
                self._cut()
        except (OSError, http.client.HTTPException):  # a side is down: the client sees a lost connection
            self._cut()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _one  # the names that the library looks for

    def _asked(self, body: _Body) -> http.client.HTTPResponse:
        """Pass the request on, and return the beginning of its answer. An ended connection is replaced by a new one."""
        if self._way.sock is not None and _is_over(self._way.sock):
            self._way.close()
        self._way.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                self._way.putheader(name, value)
        self._way.endheaders()
        for block in body.framed():
            self._way.send(block)
        return self._way.getresponse()

    def _answered(self, request: str, rules: Iterator[Rule], body: _Body) -> Answer | None:
        """Return the answer of the next rule that applies to the request, or of the server."""
        for rule in rules:
            if rule.concerns(request):
                return rule.answer(request, lambda: self._answered(request, rules, body))
        with self._asked(body) as response:
            return Answer(response.status, response.read(), response.getheaders())

    def _hand_on(self, response: http.client.HTTPResponse) -> None:
        with response:
            self.send_response_only(response.status, response.reason)
            chunked = response.chunked
            for name, value in response.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while block := response.read(_BLOCK):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _give(self, given: Answer) -> None:
        self.send_response_only(given.status)
        for name, value in given.headers:
            if name.lower() not in (*_HOP, "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(given.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(given.body)
        self.wfile.flush()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class _Body:
    """A request's body as it comes in, chunked or not. It can be read once."""

    def __init__(self, connection: _Connection) -> None:
        self._read: BinaryIO | io.BufferedIOBase = connection.rfile
        self._chunked = "chunked" in connection.headers.get("Transfer-Encoding", "").lower()
        self._left = 0 if self._chunked else int(connection.headers.get("Content-Length", 0))

    def framed(self) -> Iterator[bytes]:
        """Return the body block by block, chunks with their frames and trailers."""
        while self._chunked:
            head = self._read.readline()
            yield head
            if int(head.partition(b";")[0] or b"0", 16) == 0:
                self._chunked = False
                while (trailer := self._read.readline()) not in (b"\r\n", b""):
                    yield trailer
                yield b"\r\n"
                return
            yield self._read.read(int(head.partition(b";")[0], 16) + 2)
        while self._left and (block := self._read.read(min(self._left, _BLOCK))):
            self._left -= len(block)
            yield block

    def whole(self) -> bytes:
        """Read a body that is not chunked. It can be passed on all the same."""
        self._read = io.BytesIO(data := self._read.read(self._left))
        return data

    def drain(self) -> None:
        """Read the rest of the body."""
        for _ in self.framed():
            pass


def _is_over(kept: socket.socket) -> bool:
    """Return whether the server has ended an idle connection."""
    kept.setblocking(False)
    try:
        return kept.recv(1, socket.MSG_PEEK) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        kept.setblocking(True)


@contextmanager
def cutting_s3(server: S3) -> Iterator[S3Proxy]:
    """Run a proxy before a server. It is removed at the end."""
    proxy = S3Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()

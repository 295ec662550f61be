"""Serve a job's state as a web page: a small server that only reads, for this machine unless an address is given."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

from exactsink.contract import ConfigError
from exactsink.watch.seen import Seen

__all__ = ["PageServer", "place_of"]

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
}


def place_of(text: str) -> tuple[str, int]:
    """Return host and port of `PORT` or `HOST:PORT`. Without a host: this machine only. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and port.isascii() and int(port) < 65536):
        raise ConfigError(
            f"{text!r} is not a port", why="--web takes PORT or HOST:PORT", next="exactsink watch JOB.toml --web 8080"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


class PageServer(ThreadingHTTPServer):
    """Serves `/` and `/seen.json`. Queries the job once in `every` seconds, however many browsers there are.

    Bound to this machine it answers only requests for this machine's names: no page of another site can read it.
    """

    daemon_threads = True

    def __init__(self, place: tuple[str, int], look: Callable[[], Seen], every: float) -> None:
        self._look, self._every = look, every
        self._lock = threading.Lock()
        self._body, self._until = b"", 0.0
        self.page = files("exactsink.watch").joinpath("page.html").read_bytes()
        try:
            super().__init__(place, _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"no page can be served at {place[0]}:{place[1]}", why=why, next="exactsink watch JOB.toml --web 0"
            ) from None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/"

    def answers_to(self, host: str) -> bool:
        """Return whether a request for this host is answered."""
        own = str(self.server_address[0])
        name = host.rpartition(":")[0] or host
        return not ipaddress.ip_address(own).is_loopback or name in ("localhost", own)

    def seen(self) -> bytes:
        """Return the state as JSON; it is at most `every` seconds old."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._body = json.dumps(asdict(self._look())).encode()
                self._until = time.monotonic() + self._every
            return self._body


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        if not self.server.answers_to(self.headers.get("Host", "")):
            self._answer(403, "text/plain", b"open localhost, or bind to the name that you use\n")
        elif self.path == "/":
            self._answer(200, "text/html; charset=utf-8", self.server.page)
        elif self.path == "/seen.json":
            self._answer(200, "application/json", self.server.seen())
        else:
            self._answer(404, "text/plain", b"there are / and /seen.json\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page that sends a request every few seconds would fill the terminal."""

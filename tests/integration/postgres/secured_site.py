"""A server that talks TLS and wants passwords, and a process of another environment, for the tests of connections."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exactsink_postgres.options import PostgresOptions
from tests.servers.certificates import make_authority, make_certificate
from tests.servers.postgres import PostgresServer

__all__ = ["SECRET", "Site", "Task", "open_site"]

SECRET = "s3cr3t-Pa55"
HBA = """
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""
TASK = """
import base64, json, os, pickle, sys
for line in sys.stdin:
    options, environment = pickle.loads(base64.b64decode(line))
    os.environ.clear()
    os.environ.update(environment)
    with options.server.connect("task") as session:
        row = session.execute("SELECT current_database(), current_user, ssl FROM pg_stat_ssl "
            "WHERE pid = pg_backend_pid()").fetchone()
    print(json.dumps(row), flush=True)
"""


class Task:
    """Another process: it connects with pickled options, and an environment that is given to it whole."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def at(self, options: PostgresOptions, environment: Mapping[str, str]) -> tuple[str, str, bool]:
        """Return database, user, and whether by TLS."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(base64.b64encode(pickle.dumps((options, dict(environment)))) + b"\n")
        self._process.stdin.flush()
        database, user, tls = json.loads(self._process.stdout.readline())
        return database, user, tls

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Site:
    """A server that talks TLS on 127.0.0.1 and wants a password there; `ca` signed its certificate, not `wrong_ca`."""

    server: PostgresServer
    ca: Path
    wrong_ca: Path

    @property
    def port(self) -> str:
        return self.server.port

    def options(self, conninfo: str) -> PostgresOptions:
        return PostgresOptions.model_validate({"conninfo": conninfo, "table": "flights"})


@contextmanager
def open_site(keys: Path) -> Iterator[Site]:
    """Return a started server; its authorities are made in the folder `keys`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"port": port, "listen_addresses": "127.0.0.1", "ssl": "on", "ssl_cert_file": "tls.crt"}
    server = PostgresServer({**settings, "ssl_key_file": "tls.key", "password_encryption": "scram-sha-256"})
    try:
        ca = make_authority(keys / "ca")
        make_certificate(ca, server.folder / "data" / "tls")
        key = server.folder / "data" / "tls.key"
        key.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(key, "postgres", "postgres")
        (server.folder / "data" / "pg_hba.conf").write_text(HBA)
        server.start()
        server.execute("CREATE ROLE sales LOGIN PASSWORD '" + SECRET + "'")
        server.create_database("shop")
        yield Site(server, ca, make_authority(keys / "wrong"))
    finally:
        server.remove()

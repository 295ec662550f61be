"""A server that talks TLS and wants passwords, and another environment, for the tests of connections."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from exactsink_postgres.options import PostgresOptions
from tests.servers.certificates import make_authority, make_certificate
from tests.servers.postgres import PostgresServer

SECRET = "s3cr3t-Pa55"
HBA = """
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""


@contextmanager
def elsewhere(environment: Mapping[str, str]) -> Iterator[None]:
    """Be a process of another environment, of which libpq knows nothing but this."""
    around = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(around)


@dataclass(frozen=True)
class Site:
    """A server that talks TLS on 127.0.0.1 and wants a password there; `ca` signed its certificate."""

    server: PostgresServer
    ca: Path

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
        yield Site(server, ca)
    finally:
        server.remove()

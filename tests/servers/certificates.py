"""Certificates for servers of tests that talk TLS, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def make_authority(base: Path) -> Path:
    """Make an authority, `base`.crt with `base`.key, and return its certificate."""
    _request(base, f"/CN={base.name}")
    return base.with_suffix(".crt")


def make_certificate(authority: Path, base: Path) -> Path:
    """Make a server's certificate for 127.0.0.1 and localhost: `base`.crt with `base`.key."""
    names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    _request(base, "/CN=server", "-CA", authority, "-CAkey", authority.with_suffix(".key"), *names)
    return base.with_suffix(".crt")


def _request(base: Path, subject: str, *words: str | Path) -> None:
    written = ("-keyout", base.with_suffix(".key"), "-out", base.with_suffix(".crt"))
    command = ["openssl", "req", "-x509", *_NEW_KEY, *written, "-days", "2", "-subj", subject, *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl made no {base.with_suffix('.crt')}:\n{done.stderr}")

"""Every server in more than one version: `make matrix-servers`, or `python -m tests.matrix.servers`.

Each plays its backend's kit and tests, and a Spark job whose drivers are killed. `docs/figures/servers.json` has the
last result of each version; `docs/generate.py` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from tests.matrix.cells import ROOT
from tests.matrix.playing import played, tests
from tests.servers.mariadb import program
from tests.servers.packages import unpacked
from tests.servers.postgres import programs
from tests.servers.s3 import MINIO, VERSITYGW

RESULT = ROOT / "docs" / "figures" / "servers.json"
_KIT, _KILLS = "tests/conformance/test_backends.py", "tests/e2e/test_kills.py"
_KIT_ON_S3, _UPSERTS, _INIT = "tests/conformance/test_s3.py", "tests/integration/upserts", "tests/e2e/test_starter.py"
_NOT_TESTED = {
    "MySQL": "exactsink needs 8.0, and no registry that the tests use has it",
    "MariaDB 10.6": "no package registry has it",
    "PostgreSQL 14": "exactsink refuses it, because the PostgreSQL project no longer supports it",
    "rclone serve s3": "1.76.0 passes the preflight. The kit was not run to its end. A restart loses uploads",
    "s3proxy": "no test starts it. exactsink refuses an S3 server that ignores If-None-Match",
    "moto: a server that is killed": "moto keeps all objects in memory",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A server: its releases (the first is what most people have), and the tests that each plays, as pytest has them.

    `variable` of the environment chooses a release; "" is the one that the machine has. `version` returns its number.
    """

    variable: str
    releases: tuple[str, ...]
    version: Callable[[str], str]
    parts: Mapping[str, tuple[str, ...]]


def _of_program(find: Callable[[str], Path | str]) -> Callable[[str], str]:
    def version(release: str) -> str:
        said = subprocess.run([find(release), "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\d+\.\d+(\.\d+)?", said)
        assert found is not None, said
        return found[0]

    return version


SERVERS: Mapping[str, Server] = {
    "PostgreSQL": Server(
        "EXACTSINK_TESTS_POSTGRES",
        ("18", "17", "16", ""),
        _of_program(lambda release: programs(release) / "postgres"),
        {
            "kit": (_KIT, "-k", "Postgres and not Pooler"),
            "backend": ("tests/integration/postgres", "--deselect", "tests/integration/postgres/test_poolers.py"),
            "upserts": (f"{_UPSERTS}/test_postgres.py", f"{_UPSERTS}/test_postgres_questions.py"),
            "job": (_KILLS, "tests/e2e/test_postgres_server.py", "-k", "slot or server"),
        },
    ),
    "PgBouncer": Server(
        "",
        ("",),
        _of_program(lambda _: unpacked("pgbouncer") / "usr/sbin/pgbouncer"),
        {
            "kit": (_KIT, "-k", "Pooler"),
            "backend": ("tests/integration/postgres/test_poolers.py",),
            "job": (_KILLS, "-k", "PgBouncer"),
        },
    ),
    "MariaDB": Server(
        "EXACTSINK_TESTS_MARIADB",
        ("11.4", ""),
        _of_program(lambda release: program("mariadbd", release)),
        {
            "kit": (_KIT, "-k", "MariaDB"),
            "upserts": (f"{_UPSERTS}/test_mariadb.py", f"{_UPSERTS}/test_mariadb_questions.py"),
            "job": (_KILLS, "-k", "mariadb"),
        },
    ),
    "Apache Kafka": Server(
        "EXACTSINK_TESTS_KAFKA",
        ("4.3.1", "4.1.2", "4.0.0", "3.9.1", "4.2.1", "4.4.0", "3.8.1", "3.7.2"),
        str,
        {
            "kit": (_KIT, "-k", "Kafka or PlainWriter"),
            "backend": ("tests/integration/kafka",),
            "job": (_KILLS, "-k", "slot or write"),
        },
    ),
    "S3": Server(
        "EXACTSINK_TESTS_S3",
        ("versitygw", "minio"),
        lambda release: f"{release} {MINIO.version.split('-')[1][:8] if release == 'minio' else VERSITYGW.version}",
        {
            "kit": (_KIT_ON_S3, "-k", "not Moto"),
            "backend": ("tests/integration/s3", "tests/integration/files_s3"),
            "job": ("tests/e2e/test_object_store.py",),
        },
    ),
    "S3 (in memory)": Server(
        "EXACTSINK_TESTS_S3",
        ("moto",),
        lambda release: f"{release} {installed('moto')}",
        {"kit": (_KIT_ON_S3, "-k", "Moto"), "job": ("tests/e2e/test_object_store.py", "-k", "not server_killed")},
    ),
    "Redis (example plugin)": Server(
        "",
        ("",),
        _of_program(lambda _: unpacked("redis-server", "redis-tools") / "usr/bin/redis-server"),
        {"kit": ("tests/plugins/test_redis.py",), "job": ("tests/plugins/test_installed.py", "-k", "job_on_spark")},
    ),
    "SQLite": Server(
        "", ("",), lambda _: sqlite3.sqlite_version, {"kit": (_KIT, "-k", "StagedUpsert or Direct"), "job": (_INIT,)}
    ),
}


def main() -> int:
    """Play the servers that are asked for; end with 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.servers", description=__doc__)
    parser.add_argument("--server", action="append", choices=SERVERS, help="only this one; again for another")
    parser.add_argument("--release", action="append", help="only this one, as 18")
    parser.add_argument("--part", action="append", help="only this part: kit, backend, upserts, job")
    parser.add_argument("--quick", action="store_true", help="leave out the tests marked proof")
    given = parser.parse_args()
    marks = "not proof and not soak" if given.quick else "not soak"
    failed = 0
    for name, server in SERVERS.items():
        if name in (given.server or SERVERS):
            releases = [release for release in server.releases if release in (given.release or server.releases)]
            failed += sum(_failed(name, release, given.part, marks) for release in releases)
    _write(_kept())
    return min(failed, 1)


def _failed(name: str, release: str, parts: list[str] | None, marks: str) -> bool:
    """Play parts on a release; keep what came, and return whether a test failed."""
    server = SERVERS[name]
    settings = {**os.environ, **({server.variable: release} if server.variable else {})}
    version = server.version(release)
    print(f"{name} {version}", flush=True)
    failed = False
    for part, words in server.parts.items():
        if part in (parts or server.parts):
            command = tests(sys.executable, "-n", "2", "--dist", "loadgroup", "-m", marks, *words)
            with tempfile.TemporaryDirectory(prefix="exactsink-matrix-") as folder:
                came = played(part, command, settings, Path(folder))
            if came["failed"] == ["exit code 5"]:
                continue  # pytest found no test to play, for example because of --quick
            _keep({"server": name, "version": version, "part": part}, {**came, "marks": marks})
            failed |= bool(came["failed"])
    return failed


def _keep(names: Mapping[str, str], came: Mapping[str, Any]) -> None:
    """Put a part's result in the place of its last one."""
    others = [one for one in _kept() if {name: one[name] for name in names} != names]
    _write([*others, {**names, "at": datetime.now(timezone.utc).date().isoformat(), **came}])


def _kept() -> list[dict[str, Any]]:
    return json.loads(RESULT.read_text())["parts"] if RESULT.exists() else []


def _write(parts: list[dict[str, Any]]) -> None:
    found = {"not_played": not_tested(parts), "parts": sorted(parts, key=_order)}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


def not_tested(parts: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Return what no result of `parts` covers, and why: servers, releases, and parts of a release."""
    rows = dict(_NOT_TESTED)
    for name, server in SERVERS.items():
        for release in server.releases:
            other = tuple(one for one in server.releases if one not in ("", release))
            of_it = [one for one in parts if one["server"] == name and one["version"].startswith(release)]
            came = {one["part"] for one in of_it if release or not one["version"].startswith(other)}
            if missing := [part for part in server.parts if part not in came]:
                rows[f"{name} {release or '(installed)'}"] = f"no result yet of {', '.join(missing)}"
    return rows


def _order(one: Mapping[str, Any]) -> tuple[Any, ...]:
    number = [-int(digits) for digits in re.findall(r"\d+", one["version"])]
    return list(SERVERS).index(one["server"]), number, list(SERVERS[one["server"]].parts).index(one["part"])


if __name__ == "__main__":
    sys.exit(main())

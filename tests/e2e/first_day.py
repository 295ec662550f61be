"""A job on its first day: run as a user would, refused with a message, repaired by that message's own advice."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from exactsink.cli.main import main
from tests.e2e.drivers import Drivers
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.postgres import PostgresServer

PASSWORD = "s3cr3t-Pa55"
_HBA = "local all postgres trust\nlocal all all scram-sha-256\n"
_MESSAGE = re.compile(r"^exactsink: (.*)\Z", re.MULTILINE | re.DOTALL)


@contextmanager
def shop_server() -> Iterator[PostgresServer]:
    """Make a server that wants passwords, with one role and one database. It is not started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = PostgresServer({"port": port, "max_prepared_transactions": "8"})
    try:
        (server.folder / "data" / "pg_hba.conf").write_text(_HBA)
        server.start()
        server.execute(f"CREATE ROLE loader LOGIN PASSWORD '{PASSWORD}'")
        server.create_database("shop")
        server.stop()
        yield server
    finally:
        server.remove()


class Day:
    """One job, and all that any of its runs said."""

    def __init__(self, folder: Path, drivers: Drivers, jvm: WarmJvm, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.file = folder / "job.toml"
        self.environment: dict[str, str] = {}
        self._drivers = drivers
        self._jvm = jvm
        self._printed = len(jvm.reported)
        self._capfd = capfd
        self._said: list[str] = []

    def edit(self, *edits: tuple[str, str]) -> None:
        """Change the job's file."""
        text = self.file.read_text()
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)

    def at(self, text: str) -> str:
        """Return the place, as messages name it, of the first line that begins so."""
        lines = self.file.read_text().splitlines()
        return f"job.toml line {next(number for number, line in enumerate(lines, 1) if line.startswith(text))}"

    def refused(self, code: int, *parts: str, command: str | None = None) -> str:
        """Run the job, or give it to a `command` in this process; return the message: it has these parts."""
        ended, said = self._run() if command is None else self.command(command)
        found = _MESSAGE.search(said)
        assert found, said
        message = found[1]
        assert (ended, [part for part in parts if part not in message]) == (code, []), said
        assert "Traceback" not in said
        assert len(said.splitlines()) < 60, "a message that nobody finds"
        return message

    def whole(self) -> str:
        """Run the job to its end; return what it printed."""
        ended, said = self._run()
        assert ended == 0, said
        return said

    def fixes(self, message: str) -> Sequence[str]:
        """Return the statements that a message of preflight gives, one for each finding."""
        return [
            fix.strip() for fix in re.findall(r"^  fix: (.*?)(?=^sink |^  next: )", message, re.MULTILINE | re.DOTALL)
        ]

    def leaks(self, secret: str) -> Sequence[str]:
        """Return where a secret shows: in what was printed, or in a file that the job has left."""
        printed = [said for said in (*self._said, self._jvm.reported[self._printed :]) if secret in said]
        files = [path for path in self.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
        return [*printed, *map(str, files)]

    def _run(self) -> tuple[int, str]:
        code, said = self._drivers.run(self.file, jvm=self._jvm, environment=self.environment)
        self._said.append(said)
        return code, said

    def command(self, command: str) -> tuple[int, str]:
        """Hand the job to a command in this process; return its exit code and what it printed."""
        self._capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            code = main([*command.split(), str(self.file)])
        said = "".join(self._capfd.readouterr())
        self._said.append(said)
        return code, said

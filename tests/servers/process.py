"""A server of one owner, of any kind: a folder, a process, and a log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.servers.ports import Ports
from tests.servers.waiting import PATIENCE, wait_until


class AtPort:
    """A running server, for users who must not stop it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port


class ServerProcess(ABC):
    """A server with a new `folder` of its own: `start` and stop it at will, `remove` it at the end.

    Its output is in `log` there. It dies with the thread that started it, even if that thread's process is killed.
    """

    folder: Path
    _ports: Ports | None = None
    _process: subprocess.Popen[bytes] | None = None
    _crash = signal.SIGKILL
    _as_whom: Sequence[str] = ()  # options of setpriv

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start, and don't wait."""
        assert self._process is None, "the server runs"
        tied = ["setpriv", "--pdeathsig", self._crash.name.removeprefix("SIG"), *self._as_whom, "--"]
        self._process = self._run([*tied, *self._command()])  # setpriv becomes the server, so it has this process id

    def wait_ready(self) -> None:
        """Wait until it answers. Raises RuntimeError, with its log, if it has ended."""
        self._wait(self._answers, f"{type(self).__name__} in {self.folder} to answer")

    def crash(self) -> None:
        """End at once: the next start recovers."""
        self._end(self._crash)

    def remove(self) -> None:
        """Stop, and remove all its files. Idempotent."""
        try:
            self._end(self._crash)
        finally:
            if self._ports is not None:
                self._ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return the end of its output."""
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Return the command that starts it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return whether it answers."""

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "LC_ALL": "C"}

    def _user(self) -> Mapping[str, Any]:
        """Return the user that it runs as, in subprocess's arguments."""
        return {}

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        def ended_or_done() -> bool:
            if self._process is None or self._process.poll() is not None:
                code = self._process and self._process.returncode
                self._process = None
                raise RuntimeError(f"{type(self).__name__} ended with {code}:\n{self.log()}")
            return done()

        wait_until(ended_or_done, what)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)  # if it was stalled
            self._process.wait(PATIENCE)
            self._process = None

    def _prepare(self, command: Sequence[str | Path]) -> None:
        """Run a command that makes the data folder."""
        if self._run(command).wait() != 0:
            log = self.log()
            self.remove()
            raise RuntimeError(f"{command[0]} failed:\n{log}")

    def _run(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,  # only pytest gets Ctrl-C, and stops the server after its tests
                **self._user(),
            )


ServerT = TypeVar("ServerT", bound=ServerProcess)


@contextmanager
def owned(server: ServerT) -> Iterator[ServerT]:
    """Start a server for one owner, who may stop it and start it again. It is removed at the end."""
    try:
        server.start()
        yield server
    finally:
        server.remove()

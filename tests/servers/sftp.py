"""An SFTP server for tests: OpenSSH's own, on a folder and a free port of 127.0.0.1, gone with its process."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.servers.packages import unpacked
from tests.servers.ports import Ports
from tests.servers.process import ServerProcess, owned

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/home/.ssh/id_ed25519.pub
PidFile none
LogLevel ERROR
StrictModes no
UsePAM no
PasswordAuthentication no
MaxStartups 100
ForceCommand internal-sftp{denied}
Subsystem sftp internal-sftp
"""


class Sftp(ServerProcess):
    """A running server. `url` names its folder `files`. Its user is `daemon` if root runs the tests."""

    def __init__(self, denied: str = "") -> None:
        """Make a server that refuses the SFTP requests in `denied`, a list with commas."""
        self._ports = Ports(1)
        self.folder = Path(tempfile.mkdtemp(prefix="exactsink-sftp-"))
        self.port = self._ports.numbers[0]
        self.user = "daemon" if os.getuid() == 0 else getpass.getuser()
        program = _program()
        self._program = Path(shutil.copy2(program, self.folder))  # it starts itself again, by its whole path
        for library in program.parents[2].glob("usr/lib/*/libwrap.so.0"):
            shutil.copy2(library, self.folder)
        self.files, ssh = self.folder / "files", self.folder / "home" / ".ssh"
        ssh.mkdir(parents=True)
        self.files.mkdir()
        for key in (self.folder / "host", ssh / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        host = (self.folder / "host.pub").read_text()
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host}")
        options = f" -P {denied}" if denied else ""
        (self.folder / "config").write_text(_CONFIG.format(port=self.port, folder=self.folder, denied=options))
        if os.getuid() == 0:
            for path in (self.folder, self.files, self.folder / "host"):
                shutil.chown(path, self.user)
            for path in (ssh.parent, ssh):
                path.chmod(0o755)
            self._as_whom = ("--reuid", self.user, "--regid", "daemon", "--clear-groups")

    @property
    def url(self) -> str:
        return f"sftp://{self.user}@127.0.0.1:{self.port}{self.files}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a process that connects: its home has the user's key, and knows the server's."""
        return {"HOME": str(self.folder / "home"), "SSH_AUTH_SOCK": ""}

    def _command(self) -> Sequence[str | Path]:
        return [self._program, "-D", "-e", "-f", self.folder / "config"]

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder)}

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def _end(self, number: signal.Signals) -> None:
        """End it, and the processes that serve its connections."""
        if self._process is not None:
            os.killpg(self._process.pid, number)
        super()._end(number)


def own_sftp(denied: str = "") -> AbstractContextManager[Sftp]:
    """Run a server that the caller may stop. It is removed at the end."""
    return owned(Sftp(denied))


def _program() -> Path:
    """Return sshd. If none is installed, unpack it from Debian's package, so that no service starts.

    Its one library that other packages seldom bring is unpacked as well.
    """
    for found in (shutil.which("sshd"), "/usr/sbin/sshd"):
        if found and os.access(found, os.X_OK):
            return Path(found)
    return unpacked("openssh-server", "libwrap0") / "usr/sbin/sshd"

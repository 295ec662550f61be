"""fsspec's SFTP, with files that appear whole and durably, and are never replaced by accident.

SFTP's plain rename refuses a name that exists: OpenSSH's server makes a hard link, which is atomic. Its extension
`fsync@openssh.com` syncs files and folders; without it, every write here fails. Keys come from `~/.ssh` or an agent,
and the server must be in `~/.ssh/known_hosts`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from contextlib import suppress
from typing import Any

from fsspec.implementations.sftp import SFTPFileSystem
from paramiko import AuthenticationException, RejectPolicy, SFTPClient, SFTPFile, SSHClient, SSHException
from paramiko.sftp import CMD_EXTENDED

from exactsink.contract import ConfigError
from exactsink.toolkit.storage import ObjectPath, SyncFailed

__all__ = ["SftpFiles", "open_sftp"]

_LONGEST_ANSWER = 120  # seconds
_URL = re.compile(r"sftp://(?:(?P<user>[^@/]*)@)?(?P<host>[^@:/]*)(?::(?P<port>\d+))?(?P<path>/.*|)", re.DOTALL)


def open_sftp(url: str) -> ObjectPath:
    """Open a folder of a server, `sftp://user@host:port/path`. The first call connects. Raises ConfigError.

    Each call makes its own connection, because a connection that two threads use at once loses answers.
    """
    if (found := _URL.fullmatch(url)) is None:
        raise ConfigError(f"{url} names no folder of a server", next="write sftp://user@host:port/path")
    given: dict[str, Any] = {"username": found["user"]} if found["user"] else {}
    given |= {"port": int(found["port"])} if found["port"] else {}
    return ObjectPath(url.rstrip("/"), SftpFiles(found["host"], **given, skip_instance_cache=True))


class SftpFiles(SFTPFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """One connection. The first call opens it, and the first call after a break opens it again. For one thread."""

    fix = "check the server, its ~/.ssh/known_hosts entry, the user's key and the rights on the folder"

    def _connect(self) -> None:
        self._client: SSHClient | None = None
        self._live: SFTPClient | None = None

    @property
    def ftp(self) -> SFTPClient:
        if self._live is None or (channel := self._live.get_channel()) is None or channel.closed:
            self._client = SSHClient()  # kept, because its connection ends when it is collected
            self._client.load_system_host_keys()
            self._client.set_missing_host_key_policy(RejectPolicy())
            try:
                self._client.connect(self.host, timeout=30, **self.ssh_kwargs)
                self._live = self._client.open_sftp()
            except AuthenticationException as error:
                raise PermissionError(errno.EACCES, f"{self.host} refuses the user's keys: {error}") from error
            except SSHException as error:  # also for an unknown server
                raise OSError(errno.EIO, f"{self.host}: {error}") from error
            if (opened := self._live.get_channel()) is not None:
                opened.settimeout(_LONGEST_ANSWER)
        return self._live

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """Return the name on the server, where `?` and `#` are plain characters, unlike in fsspec."""
        found = _URL.fullmatch(path)
        return path if found is None else found["path"] or "/"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return dict(super().info(path))

    def ls(self, path: str, detail: bool = False, **_: Any) -> Any:
        return super().ls(path, detail)

    def rm_file(self, path: str) -> None:
        self.ftp.remove(self._strip_protocol(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file whole and durably. Raises FileExistsError in mode `create` if the name exists."""
        path = self._strip_protocol(path)
        unfinished = f"{path}.{secrets.token_hex(8)}"
        try:
            with self.begin(unfinished) as file:
                file.write(value)
                self.seal(file)
            self.give_name(unfinished, path) if mode == "create" else self.ftp.posix_rename(unfinished, path)
        except OSError:
            with suppress(OSError):
                self.ftp.remove(unfinished)
            raise
        finally:
            self.sync(os.path.dirname(path))  # also for an existing file: its writer may have died before the sync

    def begin(self, path: str) -> SFTPFile:
        """Begin a new file, and make the folders above it."""
        with suppress(FileNotFoundError):
            return self.begin_own(path)
        self.make_folders(os.path.dirname(path))
        return self.begin_own(path)

    def begin_own(self, path: str) -> SFTPFile:
        """Begin a new file in an existing folder."""
        return self.ftp.open(path, "wx")

    def seal(self, file: SFTPFile) -> None:
        """Make a file's bytes durable."""
        file.flush()
        self.ftp._request(CMD_EXTENDED, "fsync@openssh.com", file.handle)

    def give_name(self, temp: str, final: str) -> None:
        """Rename a file. Raises FileExistsError if the new name exists, FileNotFoundError if the file is absent."""
        try:
            self.ftp.rename(temp, final)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not self.exists(final):
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from error

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, each durably named in the one above. Idempotent."""
        above = os.path.dirname(path)
        try:
            self.ftp.mkdir(path)
        except FileNotFoundError:
            self.make_folders(above)
            self.make_folders(path)
        except OSError:
            if not self.isdir(path):
                raise
        with suppress(PermissionError):  # the folder above is older than this job
            self.sync(above)

    def sync(self, path: str) -> None:
        """Make the names in a folder durable. Raises SyncFailed if the server could not."""
        with self.ftp.open(self._strip_protocol(path), "r") as folder:
            try:
                self.seal(folder)
            except OSError as error:
                if error.errno is None and not folder.sftp.get_channel().closed:
                    raise SyncFailed(errno.EIO, str(error), path) from error
                raise

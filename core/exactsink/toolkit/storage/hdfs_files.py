"""HDFS as `CloudFiles`, by WebHDFS: a bucket is the NameNode's address, `user@host:port`, a key a path there.

A file that is written in place is not put if absent: a cut connection leaves a part of it, closed, as if it were whole.
So each is written beside, and renamed. Each block is synced by its DataNodes when it ends (SYNC_BLOCK), which a close
alone does not do; a rename is durable once it is answered.
"""

from __future__ import annotations

import errno
import getpass
import io
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.cookiejar import DefaultCookiePolicy
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from requests import RequestException, Response, Session
from requests.utils import requote_uri

from exactsink.toolkit.storage.cloud_files import CONNECT_SECONDS, LIBRARY_FAILED, READ_SECONDS, CloudFiles, session
from exactsink.toolkit.storage.object_calls import ObjectInfo

__all__ = ["HdfsFiles"]

_RIGHTS = frozenset({"AccessControlException", "AuthorizationException", "SecurityException"})
_LATER = frozenset({"RetriableException", "SafeModeException", "StandbyException"})
_CREATED, _REFUSED, _ABSENT = 201, 403, 404
_WRONG, _BROKEN = 400, 502
_SENT_BYTES = 2**20
_PORT = 9870
_TRIES = range(3)


class _Refusal(Exception):
    """An answer that is an error: HTTP's status, as far as it says something, and the name of Hadoop's exception."""

    def __init__(self, status: int, body: bytes) -> None:
        self.code, text = "", f"HTTP {status}"
        with suppress(ValueError, TypeError, KeyError):
            said = json.loads(body)["RemoteException"]
            self.code, text = str(said["exception"]), f"{said['exception']}: {said['message']}"
        if status == _REFUSED and self.code not in {"", *_RIGHTS}:  # Hadoop's status for most of its exceptions
            status = _BROKEN if self.code in _LATER else _WRONG
        if status < _WRONG or (status == _ABSENT and self.code != "FileNotFoundException"):  # no NameNode says so
            status = _BROKEN
        self.status = status
        super().__init__(text)


class HdfsFiles(CloudFiles):
    """A cluster's folders and files, for the user of the URL, of HADOOP_USER_NAME, or of this process."""

    protocol = ("webhdfs",)
    taken = frozenset({"FileAlreadyExistsException"})
    fix = "check that the NameNode's web address and its DataNodes' answer here, and that the user may write the folder"

    def connect(self, bucket: str) -> Session:
        made = session()
        made.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))  # one says who asks, whatever the URL says
        return made

    def said(self, error: Exception) -> tuple[int, str] | None:
        if isinstance(error, _Refusal):
            return error.status, error.code
        return (LIBRARY_FAILED, "") if isinstance(error, RequestException) else None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        found = self._status(*self.place(path))
        return {"name": path, "size": found["length"], "mtime": _seconds(found), "type": found["type"].lower()}

    def head(self, bucket: str, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        found = self._status(bucket, key)
        return ObjectInfo(found["length"], _seconds(found)), {}

    def read(self, bucket: str, key: str, start: int | None, end: int | None) -> bytes:
        asked = {"offset": start or 0} | ({} if end is None else {"length": end - (start or 0)})

        def answered() -> bytes:
            found = self._send("GET", self._url(bucket, key, "OPEN", **asked)).content
            if (whole := self._status(bucket, key)["length"] if end is None else end) != len(found) + (start or 0):
                raise RequestException(f"the answer is cut, or the file replaced: {len(found)} of {whole} bytes")
            return found

        return self.call(answered)

    def write(self, bucket: str, key: str, data: bytes | IO[bytes], *, create: bool = False) -> str:
        """Write a file beside, and rename it; return nothing. Folders above it are made.

        Where the file beside is gone, the answer to an earlier rename of it was lost, or somebody removed it: both are
        settled by all of it again.
        """
        for _ in _TRIES:
            with suppress(FileNotFoundError):
                self._write_beside(bucket, key, data, "NONE" if create else "OVERWRITE")
                return ""
        raise OSError(errno.EIO, f"somebody keeps removing the unfinished file beside {key}")

    def _write_beside(self, bucket: str, key: str, data: bytes | IO[bytes], options: str) -> None:
        unfinished = f"{bucket}/{key}.{secrets.token_hex(8)}"

        def put() -> None:
            source = io.BytesIO(data) if isinstance(data, bytes) else data
            source.seek(0)
            self._send("PUT", self.place_for(unfinished, "CREATE,OVERWRITE,SYNC_BLOCK"), source, status=_CREATED)

        try:
            self.call(put)
            self.give_name(unfinished, f"{bucket}/{key}", options)
        except OSError:
            with suppress(OSError):
                self.rm_file(unfinished)
            raise

    def remove(self, bucket: str, key: str) -> None:
        """Remove a file, or a folder that is empty."""
        if self._ask("DELETE", bucket, key, "DELETE") != {"boolean": True}:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)

    rmdir = CloudFiles.rm_file

    def objects(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[tuple[str, ObjectInfo]]:
        """List a folder: `prefix` ends in a `/`."""
        try:
            found = self._ask("GET", bucket, prefix.rstrip("/"), "LISTSTATUS")
        except FileNotFoundError:
            return
        for each in found["FileStatuses"]["FileStatus"]:
            if name := each["pathSuffix"]:  # a file lists itself, without a name
                if each["type"] != "DIRECTORY":
                    yield f"{prefix}{name}", ObjectInfo(each["length"], _seconds(each))
                elif deep:
                    yield from self.objects(bucket, f"{prefix}{name}/", deep=True)
                else:
                    yield f"{prefix}{name}/", ObjectInfo(0, _seconds(each))

    def give_name(self, temp: str, final: str, options: str = "NONE") -> None:
        """Rename a file. Raises FileExistsError if the new name is taken, FileNotFoundError if the file is missing.

        Without options, a rename also answers 200 if it did nothing, and moves a file into a folder with the new name.
        """
        destination = f"/{self.place(final)[1]}"
        url = self._url(*self.place(temp), "RENAME", destination=destination, renameoptions=options)
        if self.call(lambda: self._send("PUT", url)).content:
            raise OSError(errno.EIO, "the server does not know renameoptions: use WebHDFS of Hadoop 3, not HttpFS")
        with suppress(FileNotFoundError):  # the answer says nothing: anything before the NameNode may have given it
            self._status(*self.place(temp))
            raise OSError(errno.EIO, f"a rename of {temp} was answered as done, and was not done")

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, durably. Idempotent."""
        if self._ask("PUT", *self.place(path), "MKDIRS") != {"boolean": True}:
            raise OSError(errno.EIO, f"the NameNode does not make {path}")

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a folder that is not there. Of two at once both may do so, and one finds its first file taken."""
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.make_folders(path)

    def begin_own(self, path: str) -> _Sending:
        """Begin a new file in an existing folder."""
        with _connection_errors():
            return _Sending(self.call(lambda: self.place_for(path, "CREATE,SYNC_BLOCK", createparent="false")))

    def seal(self, file: _Sending) -> None:
        """Make a file's bytes durable."""
        try:
            file.seal()
        except _Refusal as error:
            raise self._as_os_error(error, error.status, error.code) from error

    def place_for(self, path: str, flags: str, **given: str) -> str:
        """Return the URL of a DataNode that takes a new file's bytes."""
        answer = self._send("PUT", self._url(*self.place(path), "CREATE", createflag=flags, noredirect="true", **given))
        return str(_json(answer)["Location"])

    def _status(self, bucket: str, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", bucket, key, "GETFILESTATUS")["FileStatus"]
        return found

    def _ask(self, method: str, bucket: str, key: str, op: str, **given: object) -> Any:
        """Ask the NameNode; return its JSON."""
        url = self._url(bucket, key, op, **given)
        return self.call(lambda: _json(self._send(method, url)))

    def _url(self, bucket: str, key: str, op: str, **given: object) -> str:
        user, _, host = bucket.rpartition("@")
        host += "" if ":" in host else f":{_PORT}"
        user = user or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        asked = urlencode({"op": op, "user.name": user, **given}, quote_via=quote)
        return f"http://{host}/webhdfs/v1/{quote(key)}?{asked}"

    def _send(self, method: str, url: str, data: IO[bytes] | None = None, status: int = 200) -> Response:
        answer: Response = self.client("").request(method, url, data=data, timeout=(CONNECT_SECONDS, READ_SECONDS))
        if answer.status_code != status:
            raise _Refusal(answer.status_code, answer.content)
        return answer


class _Sending:
    """A new file that a DataNode gets as it is written. It is whole, and durable, once it is sealed."""

    def __init__(self, url: str) -> None:
        to = urlsplit(requote_uri(url))
        self._held = bytearray()
        self._connection = HTTPConnection(to.hostname or "", to.port, timeout=READ_SECONDS)
        self._connection.putrequest("PUT", f"{to.path}?{to.query}")
        self._connection.putheader("Transfer-Encoding", "chunked")
        self._connection.endheaders()

    def write(self, view: memoryview) -> None:
        self._held += view
        if len(self._held) >= _SENT_BYTES:
            self._send()

    def seal(self) -> None:
        if self._held:
            self._send()
        with _connection_errors():
            self._connection.send(b"0\r\n\r\n")
            answer = self._connection.getresponse()
            if answer.status != _CREATED:
                raise _Refusal(answer.status, answer.read())

    def close(self) -> None:
        self._connection.close()

    def _send(self) -> None:
        with _connection_errors():
            self._connection.send(b"%x\r\n%b\r\n" % (len(self._held), bytes(self._held)))
        self._held.clear()


@contextmanager
def _connection_errors() -> Iterator[None]:
    try:
        yield
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise OSError(errno.EIO, f"the connection to a DataNode broke: {error!r}") from error


def _json(answer: Response) -> Any:
    """Read an answer. A truncated answer counts as no answer."""
    try:
        return json.loads(answer.content)
    except ValueError as error:
        raise RequestException(f"the answer is cut: {error}") from error


def _seconds(status: Mapping[str, Any]) -> float:
    return float(status["modificationTime"]) / 1000

"""A server that all workers of a test run share, started by the first user and gone with the last.

Its keeper is a process that waits until the kernel reports that no user is left, however each one ended. The server's
module is the keeper's program: `python -m MODULE FOLDER NAME RELEASE` calls `keep`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.servers.waiting import wait_until

T = TypeVar("T")
_BUILT_WITHIN = 560  # seconds: a server's program may be fetched or built first; below pytest's own time limit


@contextmanager
def shared(basetemp: Path, name: str, module: str, release: str = "") -> Iterator[str]:
    """Return the address of the run's server of this name; `basetemp` is pytest's. The last user's end stops it."""
    folder = basetemp.parent if "PYTEST_XDIST_WORKER" in os.environ else basetemp
    with open(folder / f"{name}.users", "a") as users, open(folder / f"{name}.guard", "a") as guard:
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for a keeper that is stopping its server already
        fcntl.flock(guard, fcntl.LOCK_EX)
        place = folder / f"{name}.place"
        if not place.exists():
            _start_keeper(folder, name, module, release)
        fcntl.flock(guard, fcntl.LOCK_UN)
        yield place.read_text()


@contextmanager
def shared_at(basetemp: Path, name: str, module: str, kind: Callable[[Path, int], T]) -> Iterator[T]:
    """Return the run's server of this name, which is found by a folder and a port."""
    with shared(basetemp, name, module) as address:
        folder, port = address.split("\n")
        yield kind(Path(folder), int(port))


def keep(folder: Path, name: str, address: str, remove: Callable[[], None]) -> None:
    """Report a running server's address to its users, wait until no process holds their lock, and remove the server."""
    place = folder / f"{name}.place"
    with open(folder / f"{name}.users", "a") as users:
        written = folder / f"{name}.place.new"
        written.write_text(address)
        written.rename(place)
        fcntl.flock(users, fcntl.LOCK_EX)
        place.unlink()
        remove()  # under the lock: a new user waits, and starts another server


def _start_keeper(folder: Path, name: str, module: str, release: str) -> None:
    place = folder / f"{name}.place"
    log = folder / f"{name}.keeper.log"
    with open(log, "wb") as output:  # never a pipe of the worker's: its reader would wait for the keeper's end
        keeper = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), name, release],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    def ready() -> bool:
        if keeper.poll() is not None and not place.exists():
            raise RuntimeError(f"the tests' shared {name} did not start:\n{log.read_text(errors='replace')}")
        return place.exists()

    wait_until(ready, f"the tests' shared {name} to start", _BUILT_WITHIN)
    keeper.returncode = 0  # this process does not wait for it, because it ends later

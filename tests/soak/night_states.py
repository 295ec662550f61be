"""The bad states of the night: how a job gets into each. A state that is not really reached raises NotReachedError."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from exactsink.cli.opened import Opened
from exactsink.contract import JobContext
from exactsink.testing import Fault, Session
from exactsink.testing.processes import ask
from tests.soak.night_job import CUT, PARTS, NightJob, NotReachedError
from tests.soak.night_person import Heals

SINKS = ("lake", "table", "db")
SERVICE = 65534
"""The user of a service that is not root."""

STARTING = ("claim", "recommit", "sweep")
IN_EPOCH = (
    "open_epoch",
    "write",
    "pre_commit",
    "vote",
    "decide",
    *(f"commit:{s}" for s in SINKS),
    "complete",
    "return",
)
_DISK = "1m"


@dataclass(frozen=True)
class State:
    """A bad state: `reach` brings a job into it, `heals` is what a person can do who is asked to, by which words."""

    name: str
    reach: Callable[[NightJob], object]
    heals: Heals = field(default_factory=dict)
    sinks: Sequence[str] = SINKS
    uid: int = 0
    undo: Callable[[NightJob], object] = lambda job: None


def states() -> Iterator[State]:
    """Yield every state of the night."""
    yield from _kills()
    yield from _restores()
    yield from _deletions()
    yield from _servers()
    yield from _users()
    yield from _clocks()
    yield from _others()


def _kills() -> Iterator[State]:
    for point, edge in itertools.product((*STARTING, *IN_EPOCH), ("before", "after")):
        epoch = None if point in STARTING else 3
        yield State(f"killed {edge} {point}", partial(_killed, point, edge, epoch))
    for point, edge in (("decide", "after"), ("commit:lake", "after"), ("pre_commit", "after")):
        yield State(f"killed {edge} {point}, then again in the next start", partial(_killed_twice, point, edge))


def _restores() -> Iterator[State]:
    for count in range(1, len(PARTS) + 1):
        for parts in itertools.combinations(PARTS, count):
            yield State(f"put back: {', '.join(parts)}", partial(_put_back, parts))
    for part, (point, edge) in itertools.product(PARTS, (("decide", "after"), ("commit:lake", "after"))):
        yield State(f"killed {edge} {point}, put back: {part}", partial(_killed_and_put_back, point, edge, part))
    for parts in (("checkpoint",), ("journal", "checkpoint"), ("checkpoint", "db")):
        yield State(f"put back, and cut otherwise: {', '.join(parts)}", partial(_put_back, parts, cut=9))


def _deletions() -> Iterator[State]:
    folders = {
        "the journal": ("chk.exactsink/journal",),
        "the job's folder": ("chk.exactsink",),
        "the checkpoint": ("chk",),
        "the checkpoint and the journal": ("chk", "chk.exactsink"),
        "the state file": ("chk.exactsink/state.json",),
        "the lake": ("lake",),
        "the lake's marks": ("lake/_exactsink",),
        "the table": ("table.db",),
        "the checkpoint's commits": ("chk/commits",),
        "the checkpoint's metadata": ("chk/metadata",),
    }
    for name, paths in folders.items():
        yield State(f"deleted: {name}", partial(_deleted, paths))
        yield State(f"deleted after a decision: {name}", partial(_deleted, paths, killed=True))
    yield State("deleted: the table's marks", _without_marks_in_table)
    yield State("deleted: the db's marks", _without_marks_in_db)
    yield State("deleted: the db", _without_db)
    yield State("deleted: the staged rows", partial(_deleted, ("chk.exactsink/staging",), killed=True))
    yield State("deleted: the journal's newest entry", partial(_without_entry, -1))
    yield State("deleted: the journal's last decision", partial(_without_entry, -2))
    yield State("cut: the journal's newest entry", partial(_with_entry, -1, ""))
    yield State("cut: the journal's last decision", partial(_with_entry, -2, "{"))


def _servers() -> Iterator[State]:
    down = {r"db": lambda job: job.server.start()}
    yield State("the db is down", _down, down, undo=_up)
    yield State("the db is down after a decision", partial(_down, killed=True), down, undo=_up)
    hung = {r"db": lambda job: _wake_server(job)}
    yield State("the db hangs", _hung, hung, undo=_wake_server)
    yield State("the db hangs after a decision", partial(_hung, killed=True), hung, undo=_wake_server)
    for place in ("chk.exactsink", "lake", "chk"):
        full = {r"No space left|full|room": partial(_free, place)}
        yield State(f"the disk of {place} is full", partial(_full, place), full, undo=partial(_unmount, place))


def _users() -> Iterator[State]:
    made = {"sinks": ("lake", "table"), "uid": SERVICE}
    yield State("root recovers after a kill", partial(_root, "decide", "recover"), **made)  # type: ignore[arg-type]
    yield State("root recovers twice after a kill", partial(_root, "pre_commit", "recover", "recover"), **made)  # type: ignore[arg-type]
    yield State("root runs the job", partial(_root, "commit:lake", "run"), **made)  # type: ignore[arg-type]
    yield State("root runs the job first", _root_first, **made)  # type: ignore[arg-type]
    yield State("root asks for a stop", partial(_root, "decide", "stop"), **made)  # type: ignore[arg-type]
    yield State("root owns the newest entry", partial(_owned, "chk.exactsink/journal"), **made)  # type: ignore[arg-type]
    yield State("root owns the state file", partial(_owned, "chk.exactsink"), **made)  # type: ignore[arg-type]
    yield State("root owns the lake's marks", partial(_owned, "lake/_exactsink"), **made)  # type: ignore[arg-type]


def _clocks() -> Iterator[State]:
    yield State("the dead driver's clock was an hour ahead", partial(_clock, 3600.0))
    yield State("the dead driver's clock was a day behind", partial(_clock, -86400.0))
    yield State("a heartbeat of next year", partial(_heartbeat, time.time() + 3e7))
    yield State("a heartbeat that is no number", partial(_heartbeat, "soon"))


def _others() -> Iterator[State]:
    yield State("votes rolled back by hand", _rolled_back)
    yield State("a decided file is gone", partial(_without_decided, "lake/_exactsink"))
    yield State("a staged file is gone", partial(_without_decided, "chk.exactsink/staging"))
    yield State("a staged file is damaged", _damaged)
    yield State("foreign work stands prepared", _foreign)
    yield State("a stalled driver wakes after its successor", _woken)
    yield State("a stalled driver's successor recovers it", _stalled)
    yield State("the db's row lock is held", _killed_with_prepared)


# -- how each is reached


def _begun(job: NightJob, batches: int = 3) -> None:
    """Run some batches to their end, which must be well."""
    ended = job.batches(batches)
    if ended.code != 0:
        raise NotReachedError(f"the job did not begin well:\n{ended}")


def _killed(point: str, edge: str, epoch: int | None, job: NightJob) -> None:
    _begun(job)
    job.killed(point, edge, epoch)


def _killed_twice(point: str, edge: str, job: NightJob) -> None:
    _killed(point, edge, 3, job)
    job.killed("recommit", "after", None)


def _put_back(parts: Sequence[str], job: NightJob, cut: int = CUT) -> None:
    _begun(job)
    job.save()
    _begun(job, 2)
    job.put_back(*parts)
    job.cut = cut


def _killed_and_put_back(point: str, edge: str, part: str, job: NightJob) -> None:
    _begun(job)
    job.save()
    _begun(job, 1)
    job.killed(point, edge, 4)
    job.put_back(part)


def _deleted(paths: Sequence[str], job: NightJob, *, killed: bool = False) -> None:
    _begun(job)
    if killed:
        job.killed("decide", "after", 3)
    for path in paths:
        job.remove(job.folder / path)


def _without_marks_in_table(job: NightJob) -> None:
    _begun(job)
    with closing(sqlite3.connect(job.folder / "table.db")) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'exactsink%'")]
        if not names:
            raise NotReachedError("the table has no marks")
        for name in names:
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        connection.commit()


def _without_marks_in_db(job: NightJob) -> None:
    _begun(job)
    job.server.execute("DELETE FROM exactsink_epochs", job.database)


def _without_db(job: NightJob) -> None:
    _begun(job)
    job.drop_database()
    job.server.create_database(job.database)


def _entry(job: NightJob, number: int) -> Path:
    return sorted((job.history / "journal").rglob("*.json"))[number]


def _without_entry(number: int, job: NightJob) -> None:
    _begun(job)
    job.killed("complete", "after", 3)
    job.remove(_entry(job, number))


def _with_entry(number: int, text: str, job: NightJob) -> None:
    _begun(job)
    job.killed("complete", "after", 3)
    _entry(job, number).write_text(text)


def _down(job: NightJob, *, killed: bool = False) -> None:
    _killed("decide", "after", 3, job) if killed else _begun(job)
    job.server.stop()


def _up(job: NightJob) -> None:
    if job.server._process is None:
        job.server.start()


def _hung(job: NightJob, *, killed: bool = False) -> None:
    _killed("decide", "after", 3, job) if killed else _begun(job)
    for pid in _processes(job):
        os.kill(pid, signal.SIGSTOP)


def _wake_server(job: NightJob) -> None:
    for pid in _processes(job):
        os.kill(pid, signal.SIGCONT)


def _processes(job: NightJob) -> Sequence[int]:
    """Return the server's processes: itself and its children."""
    children = Path(f"/proc/{job.server.pid}/task/{job.server.pid}/children").read_text().split()
    return [job.server.pid, *map(int, children)]


def _full(place: str, job: NightJob) -> None:
    """Put a small file system at a folder of the job, with what it holds, and fill it."""
    _begun(job)
    folder, held = job.folder / place, job.folder / "held"
    folder.rename(held)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", folder], check=True)
    subprocess.run(["cp", "-a", f"{held}/.", folder], check=True)
    subprocess.run(["dd", "if=/dev/zero", f"of={folder}/filled"], check=False, capture_output=True)  # until it is full
    if "No space left on device" not in str(job.do("exactsink", "check", "--no-spark", str(job.file))):
        raise NotReachedError("check finds nothing on a full disk")


def _free(place: str, job: NightJob) -> None:
    (job.folder / place / "filled").unlink()


def _unmount(place: str, job: NightJob) -> None:
    """Keep what the small file system holds."""
    folder, kept = job.folder / place, job.folder / "kept"
    subprocess.run(["cp", "-a", folder, kept], check=True)
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()
    kept.rename(folder)


def _root(point: str, *given: str | NightJob) -> None:
    """Let root give commands to a job of another user's, whose driver was killed."""
    *commands, job = given
    assert isinstance(job, NightJob)
    _killed(point, "after", 3, job)
    job.minute_passes()
    for command in commands:
        job.as_root = True
        job.do("exactsink", str(command), str(job.file))


def _root_first(job: NightJob) -> None:
    job.as_root = True
    _begun(job)
    job.rows += CUT


def _owned(place: str, job: NightJob) -> None:
    """Leave root's files, as an earlier release did."""
    _killed("commit:lake", "after", 3, job)
    newest = max((path for path in (job.folder / place).rglob("*") if path.is_file()), key=lambda p: p.stat().st_mtime)
    os.chown(newest, 0, 0)
    newest.chmod(0o600)


def _clock(seconds: float, job: NightJob) -> None:
    _begun(job)
    job.rows += 2 * CUT
    job.do("exactsink", "run", str(job.file), fault=Fault("decide", "after", "kill", 3), clock=seconds)


def _heartbeat(at: float | str, job: NightJob) -> None:
    _killed("decide", "after", 3, job)
    state = json.loads((job.history / "state.json").read_text())
    (job.history / "state.json").write_text(json.dumps({**state, "heartbeat": at}))


def _rolled_back(job: NightJob) -> None:
    _killed("decide", "after", 3, job)
    job.server.execute(f"ROLLBACK PREPARED '{job.prepared()[0]}'", job.database)


def _without_decided(place: str, job: NightJob) -> None:
    _killed("decide", "after", 3, job)
    job.remove(next((job.folder / place).rglob("*.e3.p0.*")))


def _damaged(job: NightJob) -> None:
    _killed("decide", "after", 3, job)
    next((job.history / "staging" / "table").rglob("*.arrow")).write_bytes(b"\0" * 100)


def _foreign(job: NightJob) -> None:
    """Let a driver of another journal, of which nothing is left, have prepared a transaction under this job's name."""
    _begun(job)

    def prepare() -> None:
        sink = Opened.of(job.file).sinks["db"]
        session = Session(sink.backend, JobContext("orders", "db", sink.staging, 1, "f" * 12), "f" * 12)
        rows = pa.table({"id": [-1]})
        session.write(7, 0, session.open(7, rows.schema), rows)

    ask(prepare)
    if len(job.prepared()) != 1:
        raise NotReachedError("nothing foreign is prepared")


def _woken(job: NightJob) -> None:
    _begun(job)
    pid = job.stalled("decide", "before", 3)
    job.minute_passes()
    _begun(job, 1)
    if job.wake(pid).code != 4:
        raise NotReachedError("the stalled driver was not fenced")


def _stalled(job: NightJob) -> None:
    _begun(job)
    pid = job.stalled("commit:lake", "after", 3)
    job.minute_passes()
    job.do("exactsink", "recover", str(job.file))
    job.wake(pid)


def _killed_with_prepared(job: NightJob) -> None:
    _killed("pre_commit", "after", 3, job)
    if not job.prepared():
        raise NotReachedError("nothing is prepared")

"""Check from the driver alone, before the start, that the servers of a job answer."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from exactsink.contract import ExactsinkError, Retryable
from exactsink.job.config import JobConfig
from exactsink.job.history import JobHistory
from exactsink.operate.asking import ask_all
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.sinks import Sink, committer_of
from exactsink.toolkit.storage import ObjectPath

__all__ = ["ANSWER_SECONDS", "import_clients", "knock", "late", "late_sink", "other_servers", "reachable"]

ANSWER_SECONDS = 5.0
_IMPORT_SECONDS = 10.0
_JOURNAL = "the journal"
_LOCAL = ("file", "sqlite")


def reachable(config: JobConfig, sinks: Mapping[str, Sink], *, seconds: float = ANSWER_SECONDS) -> None:
    """Query every sink's store, the journal's server, if any, and `other_servers`, in parallel and for so many seconds.

    Raises Retryable that names each server without an answer. Other problems, such as a login or a missing table, are
    left to preflight, which knows the fix. Changes nothing.
    """
    history = JobHistory.of(config)
    import_clients(sinks, history.job)
    calls: dict[str, Callable[[], object]] = {
        f"sink {name}": partial(_ask, sink, history.job, seconds) for name, sink in sinks.items()
    }
    others, silent_others = other_servers(config, seconds)
    calls |= others
    if history.journal_url is not None or isinstance(history.folder, ObjectPath):
        calls[_JOURNAL] = partial(_read, history.journal(lambda attempt: None))
    answers = ask_all(calls, seconds)
    silent = {f"sink {name}": late_sink(sink, seconds) for name, sink in sinks.items()} | silent_others
    silent[_JOURNAL] = late(_JOURNAL, history.journal_place, seconds)
    found = {name: answers.get(name, silent[name]) for name in calls}
    down = {name: answer for name, answer in found.items() if isinstance(answer, Retryable)}
    if len(down) > 1:
        each = "\n".join(f"  {_of(name, error)}" for name, error in down.items())
        raise Retryable(f"{len(down)} servers don't answer:\n{each}", next="start them again, then start the job again")
    for name, error in down.items():
        raise Retryable(_of(name, error), next=error.next) from error


def other_servers(config: JobConfig, seconds: float) -> tuple[dict[str, Callable[[], object]], dict[str, Retryable]]:
    """Return calls that query the servers which Spark itself would wait for: its master, and a Kafka source's brokers.

    Spark waits for a minute or more. Also return the error for each server that does not answer in time.
    """
    source = config.source
    options = {} if source is None or source.format != "kafka" else source.options
    named = {
        "Spark's master": str(config.spark.master or config.spark.conf.get("spark.master")).partition("spark://")[2],
        "the source": ",".join(str(of) for key, of in options.items() if key.lower() == "kafka.bootstrap.servers"),
    }
    found = {name: re.findall(r"[^\s,/]+:\d+", text) for name, text in named.items()}
    servers_of = {name: servers for name, servers in found.items() if servers}
    return (
        {name: partial(knock, name, servers, seconds) for name, servers in servers_of.items()},
        {name: late(name, ", ".join(servers), seconds) for name, servers in servers_of.items()},
    )


def import_clients(sinks: Mapping[str, Sink], job: str) -> None:
    """Import each sink's client library, if possible, so that the import does not count as the store's time."""

    def made(sink: Sink) -> None:
        committer_of(sink, job).close()

    ask_all({name: partial(made, sink) for name, sink in sinks.items()}, _IMPORT_SECONDS)


def late_sink(sink: Sink, seconds: float) -> Retryable:
    """Return the error for a sink if its store has not answered in time."""
    servers, (kind, _, path) = ", ".join(sink.backend.servers), sink.backend.target.partition(":")
    folder = path.removeprefix("//").partition("#")[0] if kind in _LOCAL else ""
    return late(f"sink {sink.name}", servers or sink.backend.target, seconds, folder=folder)


def late(name: str, place: str, seconds: float, *, folder: str = "") -> Retryable:
    """Return the error for a place that has not answered in time: a server, or a `folder` of this machine."""
    why, fix = f"{place} is down, hangs, or can't be reached from here", "bring it back"
    if folder:
        why, fix = f"the disk or the mount of {folder} is slow, or hangs", f"check that `ls '{folder}'` returns"
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors:
        why += f"; or it is this machine that is too slow: its load is {load:.0f}, and it has {processors} processors"
    what = f"{name} has not answered within {seconds:g} s"
    slow = f"if it is only slow: `exactsink check JOB.toml --within {4 * seconds:g}` waits longer"
    return Retryable(what, why=why, next=f"{fix}, then run the command again; {slow}")


def _of(name: str, error: ExactsinkError) -> str:
    what = error.what if name in error.what else f"{name}: {error.what}"
    return f"{what}: {error.why}" if error.why else what


def _ask(sink: Sink, job: str, seconds: float) -> None:
    """Send the store's fastest query."""
    with closing(committer_of(sink, job)) as committer:
        knock(f"sink {sink.name}", sink.backend.servers, seconds)
        if sink.backend.traits.marks:
            committer.mark()
        else:
            list(committer.in_doubt())


def knock(name: str, servers: Sequence[str], seconds: float) -> None:
    """Raise Retryable if no server accepts a connection, because a client's library would try for long."""
    refused = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), seconds / len(servers)).close()
            return
        except OSError as error:
            refused.append(f"{server}: {error.strerror or error}")
    if refused:
        fix = "check that it runs, or correct its address in the job's file; then start the job again"
        raise Retryable(f"{name}: no connection", why="; ".join(refused), next=fix)


def _read(journal: Journal) -> None:
    with closing(journal):
        journal.read()

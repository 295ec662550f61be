"""`exactsink status`: how far a job is, read from its journal and its sinks, changing neither."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from exactsink.cli.table import print_table
from exactsink.config import bind_sinks, load_config
from exactsink.errors import InDoubt
from exactsink.journal.journal import Journal
from exactsink.journal.log import Log
from exactsink.journal.store import LocalStore
from exactsink.registry import Registry, installed_plugins
from exactsink.sinks import Sink, committer_of
from exactsink.state import StateFile

__all__ = ["status"]


def status(path: str, as_json: bool) -> None:
    """Print the job's state. Raises InDoubt when a decided participant is not committed yet."""
    config, document = load_config(path)
    sinks = bind_sinks(config, document, Registry(installed_plugins()))
    log = Journal(LocalStore(config.home / "journal"), wait=lambda _: None).read()
    state = StateFile(config.home / "state.json").read()
    body: dict[str, Any] = {
        "job": config.job.name,
        "query_id": log.query_id,
        "generation": log.last_generation,
        "driver": log.claims[-1].driver if log.claims else None,
        "heartbeat_age_seconds": round(time.time() - state.heartbeat, 1) if state else None,
        "last_decided_epoch": log.decision.epoch if log.decision else None,
        "last_complete_epoch": state.complete_epoch if state else None,
        "sinks": {name: _in_doubt(config.job.name, sink, log) for name, sink in sinks.items()},
    }
    if log.decision and log.decision.epoch != body["last_complete_epoch"]:
        for name in log.decision.sinks.keys() - sinks.keys():  # the config lacks it: nobody can ask its store
            body["sinks"][name] = {"decided_in_doubt": len(log.decision.committables(name)), "undecided": 0}
    if as_json:
        print(json.dumps(body, indent=1))
    else:
        _print(body)
    decided = sum(sink["decided_in_doubt"] for sink in body["sinks"].values())
    if decided:
        raise InDoubt(f"{decided} decided participants are not committed yet", next=f"exactsink run {path}")


def _in_doubt(job: str, sink: Sink, log: Log) -> Mapping[str, int]:
    """Count what the backend holds: decided, which the next start commits, and undecided, which it may sweep."""
    decided = log.decision.refs(sink.name) if log.decision else frozenset()
    committer = committer_of(sink, job, log.last_generation, log.lineage)
    try:
        listed = [participant.ref for participant in committer.in_doubt()]
    finally:
        committer.close()
    held = sum(ref in decided for ref in listed)
    return {"decided_in_doubt": held, "undecided": len(listed) - held}


def _print(body: Mapping[str, Any]) -> None:
    for name in ("job", "query_id", "generation", "driver", "heartbeat_age_seconds"):
        print(f"{name}: {'-' if body[name] is None else body[name]}")
    for name in ("last_decided_epoch", "last_complete_epoch"):
        print(f"{name}: {'none' if body[name] is None else body[name]}")
    rows = [(name, sink["decided_in_doubt"], sink["undecided"]) for name, sink in body["sinks"].items()]
    print_table(("sink", "decided, in doubt", "undecided"), rows, sys.stdout)

"""Check a job's sinks, source and checkpoint together, for problems that none of them shows alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product

from exactsink.contract import Finding
from exactsink.job.config import JobConfig
from exactsink.job.config.model import SourceSection
from exactsink.protocol.sinks import Sink
from exactsink.toolkit.storage import is_object_url, object_scheme

__all__ = ["found_together", "own_targets"]


def found_together(config: JobConfig, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find the problems of a job's sinks, source and checkpoint together. Yield each with its sink."""
    yield from own_targets(config.source, sinks)
    yield from _in_the_jobs_folders(config, sinks)
    yield from _shared(sinks)
    mode = config.job.output_mode
    for name, sink in sinks.items():
        if mode != "append" and sink.backend.traits.appends:
            message = f'output_mode = "{mode}" emits a key again in each epoch that changes it: each stays as a row'
            fix = "use idempotent_upsert; do nothing if you want every change as a row"
            yield name, Finding("warning", message, fix)


def _in_the_jobs_folders(config: JobConfig, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find targets in the job's own folders, which people remove or restore as a whole, and job folders in targets."""
    folders = [_folder(str(config.checkpoint)), _folder(str(config.history))]
    for (name, target), folder in product(_places(sinks).items(), folders):
        if target == folder or target.startswith(f"{folder}/"):
            message = f"{target} is in the job's own folder {folder}: if that is removed, the rows are gone"
            yield name, Finding("error", message, "give the sink a folder beside it")
        elif folder.startswith(f"{target}/") and not folder[len(target) + 1 :].startswith(("_", ".")):
            message = f"the job's own folder {folder} is in {target}: readers may take its files for rows"
            yield name, Finding("warning", message, "give the sink or the checkpoint another folder")


def _shared(sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    first: dict[tuple[str, str], str] = {}
    places = _places(sinks)
    for name, sink in sinks.items():
        brokers = str(getattr(sink.backend.options, "bootstrap_servers", ""))
        other = first.setdefault((brokers, places.get(name, sink.backend.target)), name)
        if sinks[other].kind != sink.kind:
            message = f"sink {other}, which is {sinks[other].kind}, has the same target {sink.backend.target}"
            yield name, Finding("error", message, "give it another: a table deletes files that it does not list")
        elif other != name:
            message = f"it writes into {sink.backend.target}, as sink {other} does: a row that both get appears twice"
            fix = "give it another target; do nothing if their `where` never select the same row"
            yield name, Finding("warning", message, fix)


def own_targets(source: SourceSection | None, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find the sinks that write into the job's own source, which is an endless loop. Yield each with its finding.

    The finding is an error if the loop is certain. It is a warning if a topic has the same name, perhaps on another
    cluster, or if the sink's folder is in the source's folder.
    """
    if source is not None and source.format == "kafka":
        yield from _own_topics(source, sinks)
    elif source is not None and source.path:
        yield from _own_folders(source, source.path, sinks)


def _own_topics(source: SourceSection, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    options = {key.lower(): str(value) for key, value in source.options.items()}
    brokers = _addresses(options.get("kafka.bootstrap.servers", ""))
    for name, sink in sinks.items():
        kind, _, topic = sink.backend.target.partition(":")
        if kind != "kafka" or not _reads(options, topic):
            continue
        if brokers & _addresses(str(getattr(sink.backend.options, "bootstrap_servers", ""))):
            message = f"topic {topic} is the job's own source: each epoch's rows would be the next one's input"
            yield name, Finding("error", message, "give the sink, or the source, another topic")
        else:
            message = f"the job's source also has a topic {topic}: on the same cluster that is an endless loop"
            yield name, Finding("warning", message, "do nothing if they are two clusters; else rename the topic")


def _own_folders(source: SourceSection, path: str, sinks: Mapping[str, Sink]) -> Iterator[tuple[str, Finding]]:
    """Find the sinks in the source's folder. Spark reads every file there, whatever its name ends with.

    It reads subfolders only with `recursiveFileLookup`. With a pattern or a filter, nothing is certain.
    """
    options = {key.lower(): str(value).lower() for key, value in source.options.items()}
    place = _folder(path)
    before, pattern, _ = re.split(r"([*?\[{]|$)", place, maxsplit=1)
    fixed = before.rpartition("/")[0] if pattern else place
    unsure = pattern or "pathglobfilter" in options
    folders = _places(sinks)
    for name, target in folders.items():
        if target != fixed and not target.startswith(f"{fixed}/"):
            continue
        if not unsure and (target == place or options.get("recursivefilelookup") == "true"):
            message = f"{target} is in the job's own source: each epoch's files would be the next one's input"
            yield name, Finding("error", message, "give the sink, or the source, another folder")
        else:
            message = f"{target} is in the source's folder {fixed}: an endless loop if the source takes its files"
            yield name, Finding("warning", message, "give the sink another folder; do nothing if it never does")


def _places(sinks: Mapping[str, Sink]) -> Mapping[str, str]:
    """Return the folder of each sink that has one, for `file:///lake` as well as `delta:/lake`."""
    found = {}
    for name, sink in sinks.items():
        rest = sink.backend.target.partition(":")[2]
        place = rest if rest.startswith("/") != rest.startswith("//") or "://" in rest else sink.backend.target
        if "://" in place or place.startswith("/"):
            found[name] = _folder(place)
    return found


def _folder(place: str) -> str:
    """Return one spelling of a place that a source and a sink may spell differently."""
    rest = place.partition("://")[2]
    return f"{object_scheme(place)}://{rest.rstrip('/')}" if is_object_url(place) else os.path.realpath(rest or place)


def _addresses(servers: str) -> frozenset[str]:
    return frozenset(address.strip().lower() for address in servers.split(",") if address.strip())


def _reads(options: Mapping[str, str], topic: str) -> bool:
    """Return whether a source with these options reads the topic."""
    if topic in (name.strip() for name in options.get("subscribe", "").split(",")):
        return True
    with suppress(ValueError):
        if topic in json.loads(options.get("assign", "{}")):
            return True
    with suppress(re.error):  # Java's patterns are not quite Python's
        return bool(re.fullmatch(options.get("subscribepattern", "(?!)"), topic))
    return False

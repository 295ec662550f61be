"""How a journal's cost grows: with its epochs, with its starts, and with the size of the decisions that it keeps."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.journal import (
    InMemory,
    Opener,
    Started,
    Used,
    append,
    build,
    build_starts,
    journal_stores,
    memory_folder,
    start,
)
from benchmarks.epochs import never
from benchmarks.plan import Benchmark, Growth, Metrics, Plan, Setting, Variant, Work
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore

__all__ = ["DECISIONS", "EPOCHS", "STARTS"]

_KEEP = 1_000
_EPOCHS = (10, 100, 1_000, 10_000, 100_000)
_STARTS = (1, 10, 100, 1_000, 10_000)
_PARTICIPANTS = (10, 100, 1_000, 10_000)
_KEEP_BYTES = 256 * 2**20

Build = Callable[[Opener, Path, int], None]


@contextmanager
def _open_epochs(setting: Setting) -> Iterator[Plan]:
    sizes = _sizes(_EPOCHS, setting)

    def built(opener: Opener, place: Path, size: int) -> None:
        build(opener(place), size, _KEEP)

    with _journals(setting, sizes, built) as (names, places):
        openers, notes = journal_stores()
        variants = [Variant(names[kind][size], Used(openers[kind], places[kind, size], _KEEP)) for kind, size in places]
        since = _KEEP if _KEEP in sizes[:-1] else sizes[-2]
        growths = [
            Growth(f"{what} a journal", "epochs it has seen", metric, "driver's CPU ms", names, most, since)
            for what, metric, most in (("Opening", "open_cpu_ms", 2), ("Appending to", "append_cpu_ms", 1.5))
        ]
        notes.append(f"two sinks with two participants each; {_KEEP:,} epochs are kept: from there on nothing may grow")
        yield Plan(variants, [bound for growth in growths for bound in growth.bounds()], notes, growths)


@contextmanager
def _open_starts(setting: Setting) -> Iterator[Plan]:
    sizes = _sizes(_STARTS, setting)

    def built(opener: Opener, place: Path, size: int) -> None:
        build_starts(opener(place), size, _KEEP, decides=True)

    with _journals(setting, sizes, built) as (names, places):
        openers, notes = journal_stores()
        variants = [
            Variant(names[kind][size], Started(openers[kind], places[kind, size], _KEEP)) for kind, size in places
        ]
        growths = [
            Growth(
                f"A start, journal: {kind}",
                "starts before it",
                "start_cpu_ms",
                "driver's CPU ms",
                {kind: names[kind]},
                2.0,
                10,
            )
            for kind in ("local", "sqlite")
            if kind in names
        ]
        yield Plan(variants, [bound for growth in growths for bound in growth.bounds()], notes, growths)


@contextmanager
def _open_decisions(setting: Setting) -> Iterator[Plan]:
    sizes = _PARTICIPANTS if setting.scale >= 1 else _PARTICIPANTS[:2]
    names = {size: f"{size:,} participants" for size in sizes}
    with tempfile.TemporaryDirectory(dir=memory_folder(setting.folder), prefix="exactsink-growth-") as memory:
        variants = []
        for size in sizes:
            kept = _build_decisions(Path(memory, str(size)), size)
            variants.append(Variant(names[size], _Decided(Path(memory, str(size)), size, kept)))
        line = {"two sinks": names}
        what = ("participants of a decision", "driver's CPU ms", line)
        unit = what[1]
        growths = [
            Growth("A start", what[0], "start_cpu_ms", unit, line, 2, sizes[-2], "start_us_each"),
            Growth("Deciding an epoch", what[0], "decide_cpu_ms", unit, line, 2, sizes[-2], "decide_us_each"),
            Growth("A trim, for each epoch", what[0], "trim_cpu_ms", unit, line, 3, sizes[-2]),
        ]
        notes = [f"{_KEEP:,} decisions are kept, at most 256 MiB: fewer, when they are greater; in memory, no disk"]
        yield Plan(variants, [bound for growth in growths for bound in growth.bounds()], notes, growths)


@contextmanager
def _journals(
    setting: Setting, sizes: Sequence[int], built: Build
) -> Iterator[tuple[dict[str, dict[int, str]], dict[tuple[str, int], Path]]]:
    """Build journals of all sizes in every store. Return the variants' names by store and size, and the places."""
    openers, _ = journal_stores()
    with tempfile.TemporaryDirectory(dir=memory_folder(setting.folder), prefix="exactsink-growth-") as memory:
        places = {(kind, size): Path(memory, f"{kind}-{size}") for kind in openers for size in sizes}
        for (kind, size), place in places.items():
            built(openers[kind], place, size)
        yield {kind: {size: f"{kind} {size:,}" for size in sizes} for kind in openers}, places


def _sizes(sizes: Sequence[int], setting: Setting) -> Sequence[int]:
    """Leave out sizes for which a smaller scale has no time. Three sizes stay."""
    return [size for size in sizes if size <= sizes[-1] * setting.scale or size in sizes[:3]]


def _build_decisions(place: Path, participants: int) -> int:
    """Build a journal that keeps as many decisions as it ever will. Return their number."""
    memory = InMemory()
    journal = Journal(memory, keep_epochs=_KEEP, keep_bytes=_KEEP_BYTES, wait=never)
    generation = journal.claim("benchmark", "benchmark").generation
    append(journal, 0, generation, participants // 2)
    kept = min(_KEEP, _KEEP_BYTES // len(memory.read(memory.newest()) or b"x"))
    for epoch in range(1, kept + 1):
        append(journal, epoch, generation, participants // 2)
    memory.copy_into(LocalStore(place))
    return kept


class _Decided:
    """A start, and as many decisions as cause a trim."""

    def __init__(self, built: Path, participants: int, kept: int) -> None:
        self._built = built
        self._participants = participants
        self._epochs = kept // 10 + 1

    def __call__(self, folder: Path) -> Work:
        return self._work

    def _work(self) -> Metrics:
        with tempfile.TemporaryDirectory(dir=self._built.parent) as scratch:
            place = Path(scratch, "journal")
            shutil.copytree(self._built, place, copy_function=os.link)  # entries are never changed in place
            began = time.process_time()
            journal, generation = start(LocalStore(place), _KEEP)
            started = time.process_time() - began
            decision = journal.log.decision
            assert decision is not None
            deciding, trimming = 0.0, _Timed(journal.trim)
            journal.trim = trimming  # type: ignore[method-assign]
            before = len(list(place.iterdir()))
            began = time.process_time()
            for epoch in range(decision.epoch + 1, decision.epoch + 1 + self._epochs):
                append(journal, epoch, generation, self._participants // 2)
            deciding = (time.process_time() - began - trimming.seconds) / self._epochs
            if len(list(place.iterdir())) >= before + self._epochs + 2:
                raise RuntimeError("nothing was trimmed")
        trim = trimming.seconds / self._epochs
        return {
            "start_cpu_ms": started * 1e3,
            "start_us_each": started / self._participants * 1e6,
            "decide_cpu_ms": deciding * 1e3,
            "decide_us_each": deciding / self._participants * 1e6,
            "trim_cpu_ms": trim * 1e3,
        }


class _Timed:
    """A call, and the CPU seconds that it has taken."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.seconds = 0.0

    def __call__(self) -> None:
        began = time.process_time()
        self._call()
        self.seconds += time.process_time() - began


EPOCHS = Benchmark("growth_epochs", "Opening a journal of 10 to 100,000 epochs, and appending to it.", _open_epochs)
STARTS = Benchmark("growth_starts", "A start after 1 to 10,000 starts, with an epoch between.", _open_starts)
DECISIONS = Benchmark(
    "growth_decisions",
    "A journal full of decisions of 10 to 10,000 participants: a start, deciding, a trim.",
    _open_decisions,
)

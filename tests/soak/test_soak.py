"""Kafka, Postgres (both ways), Parquet, JSON on S3 and SQLite, under kills and restarts: every row once, nothing left.

`SOAK_MINUTES` is how long (20), `SOAK_SEED` plays a run's plan again, `SOAK_REPORT` is a folder for the report.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from exactsink.cli.main import main
from exactsink.protocol.events import Events
from tests.e2e.drivers import Drivers
from tests.e2e.warm_jvm import WarmJvm
from tests.soak.growth import Sample, Slope, files_below, slopes, too_steep
from tests.soak.soak import Soak, lost_votes, own_site

MINUTES = float(os.environ.get("SOAK_MINUTES") or 20)
BETWEEN_KILLS, BETWEEN_RESTARTS = 20.0, 75.0
_HEAD = ("| what | first | last | highest | an hour | an epoch |", "|---|--:|--:|--:|--:|--:|")
QUIET = 0.2
"""The part of the time, at the end, in which one driver runs on, for what grows in it."""


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 1200)
def test_job_of_six_sinks_under_kills_and_restarts(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(10**6))
    with capsys.disabled():
        print(f"\nsoak: {MINUTES:g} minutes; SOAK_SEED={seed} plays its plan again", flush=True)
    with own_site(tmp_path) as site:
        soak = Soak(site, drivers, jvm, seed, (BETWEEN_KILLS, BETWEEN_RESTARTS))
        try:
            soak.kill_until((1 - QUIET) * 60 * MINUTES)
            soak.run_until(60 * MINUTES)
            soak.drain()
            amiss = site.amiss()
            for name, value in site.s3.environment.items():
                monkeypatch.setenv(name, value)
            status = main(["status", str(tmp_path / "job.toml"), "--within", "60"])
        finally:
            with capsys.disabled():
                _report(soak, seed, Path(os.environ.get("SOAK_REPORT") or tmp_path))
    assert (amiss, soak.lost, status, too_steep(soak.of_last_driver)) == ({}, set(), 0, [])


def test_votes_that_a_driver_finds_lost_are_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    events = Events("e2e")
    for sink, txn in [("db", "e2e.db.g1.e3.p0"), ("lake", "e2e.lake.g1.e3.p1"), ("db", "e2e.db.g1.e3.p0")]:
        events.report("vote_lost", level=logging.WARNING, epoch=3, sink=sink, txn=txn, evidence="it is gone")
    events.report("redecided", level=logging.WARNING, epoch=3, sink="db", participants=1)
    assert lost_votes(caplog.text) == {("db", "e2e.db.g1.e3.p0"), ("lake", "e2e.lake.g1.e3.p1")}


def test_files_that_go_while_they_are_counted_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    scan, gone = os.scandir, tmp_path / "b"

    def going(place: str) -> Iterator[os.DirEntry[str]]:
        if str(place) != str(tmp_path) and gone.exists():
            (gone / "file").unlink()
            gone.rmdir()
        return scan(place)

    monkeypatch.setattr(os, "scandir", going)
    assert files_below(tmp_path) == (1, 1)


def test_a_leak_is_a_slope_that_is_too_steep() -> None:
    samples = [
        Sample(second, second // 2, {"driver: open files": 9 + second % 3 + second // 2}) for second in range(200)
    ]
    [leak] = slopes(samples)
    assert (round(leak.an_epoch, 2), round(leak.an_hour), leak.epochs) == (1.0, 1800, 99)
    assert too_steep([leak]) == ["driver: open files"]
    flat = [Sample(s.seconds, s.epoch, {"driver: open files": 9 + s.seconds % 3}) for s in samples]
    assert too_steep(slopes(flat)) == too_steep(slopes(samples[:40])) == []


def _report(soak: Soak, seed: int, folder: Path) -> None:
    """Print the run as Markdown, and keep it, as JSON too."""
    whole = [slope for slope in slopes(soak.samples + soak.quiet) if not slope.what.startswith("driver")]
    growth = {"the whole run": whole, "the last driver, warm": soak.of_last_driver}
    lost = Counter(sink for sink, _ in soak.lost)
    counts = {"killed": soak.killed, "restarted": soak.restarted, "ended by itself": soak.ended, "found lost": lost}
    body = {"seed": seed, "minutes": round(soak.seconds / 60, 1), "epochs": soak.epoch + 1, "rows": soak.rows}
    lines = [f"# Soak: {', '.join(f'{value} {name}' for name, value in body.items())}", ""]
    for what, counted in counts.items():
        lines += [f"- {what}, {counted.total()} times: {', '.join(f'{n} {c}' for n, c in counted.items())}"]
    for part, found in growth.items():
        lines += [
            "",
            f"## {part}",
            "",
            "| what | first | last | highest | an hour | an epoch |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        lines += [_row(slope) for slope in found]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.md").write_text("\n".join(lines) + "\n")
    listed: Mapping[str, object] = {part: [asdict(slope) for slope in found] for part, found in growth.items()}
    (folder / "soak.json").write_text(json.dumps({**body, **counts, "growth": listed}, indent=1))
    print("\n".join(lines), f"\n\nkept in {folder}/soak.md and soak.json", flush=True)


def _row(slope: Slope) -> str:
    figures = (f"{value:,.0f}" for value in (slope.first, slope.last, slope.highest, slope.an_hour))
    return f"| {slope.what} | {' | '.join(figures)} | {slope.an_epoch:,.3f} |"

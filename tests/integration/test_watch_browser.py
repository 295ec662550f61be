"""The page of `exactsink watch` as a browser shows it, on a phone and a desk. `make proof` brings the browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from exactsink.watch import web
from exactsink.watch.recent import Period
from exactsink.watch.seen import Seen, SinkSeen
from exactsink.watch.web import PageServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PERIODS = [
    Period(
        1000 + 30 * n, 1030 + 30 * n, 3, 3 * n, 1.5, {"lake": 100 * n}, {"write": 1.2, "commit:lake": 0.3}, {"files": n}
    )
    for n in range(40)
]
SINKS = [SinkSeen("lake", "files, rename", f"file:///{'long/' * 30}", 3900, 2, 0, 0, "<u>e39</u>", "<b>down</b> " * 20)]
SEEN = Seen("orders", 2200.0, "in doubt", 39, 38, "pid 7", "the driver has ended", SINKS, PERIODS, "<i>run</i> it")
FRAME = """<!DOCTYPE html><pre id="seen"></pre><iframe style="border:0;width:%dpx;height:3000px" src="/"></iframe>
<script>
const frame = document.querySelector("iframe");
const look = () => {
  const page = frame.contentDocument, all = which => [...page.querySelectorAll(which)];
  if (!page || !page.querySelector("#rows path")) { setTimeout(look, 50); return; }
  const width = page.documentElement.clientWidth, box = one => one.getBoundingClientRect();
  document.getElementById("seen").textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth - width,
    outside: all("h1, h2, p, dd, .wide, svg").filter(one => box(one).right > width + 0.5).map(one => one.id),
    small: all("text, td, th, p, dd").filter(one => parseFloat(getComputedStyle(one).fontSize) < 12).length,
    plots: all("svg path").map(one => one.getAttribute("d").split("L").length),
    cells: all("#sinks td").slice(0, 3).map(one => one.textContent),
    state: page.getElementById("state").textContent.slice(0, 8),
    made: all("b, i, u").length, problem: page.getElementById("problem").textContent.slice(0, 13),
    asked: frame.contentWindow.performance.getEntriesByType("resource").map(one => new URL(one.name).pathname),
  });
};
look();
</script>"""


class Framed(PageServer):
    """Serves a frame first, and the page to the frame."""

    width = 0

    @property
    def page(self) -> bytes:
        return self._pages.pop(0)

    @page.setter
    def page(self, page: bytes) -> None:
        self._pages = [(FRAME % self.width).encode(), page]


@pytest.mark.proof
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: make proof installs it")
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_its_window_draws_each_plot_and_takes_no_text_for_html(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = web._HEADERS["Content-Security-Policy"] + "; frame-src 'self'"
    monkeypatch.setattr(web, "_HEADERS", {**web._HEADERS, "Content-Security-Policy": policy})
    monkeypatch.setattr(Framed, "width", width)
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    flags += ["--window-size=1400,900", "--virtual-time-budget=20000", "--dump-dom"]
    with Framed(("127.0.0.1", 0), lambda: SEEN, 1000.0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            shown = subprocess.run([str(CHROMIUM), *flags, server.url], capture_output=True, timeout=300)
        finally:
            server.shutdown()
            thread.join()
    [seen] = re.findall(r'<pre id="seen">(.+?)</pre>', shown.stdout.decode())
    assert json.loads(html.unescape(seen)) == {
        "wide": 0, "outside": [], "small": 0, "plots": [40, 40, 40], "cells": ["lake", "3,900", "2"],
        "state": "in doubt", "made": 0, "problem": "<i>run</i> it", "asked": ["/seen.json"],
    }  # fmt: skip

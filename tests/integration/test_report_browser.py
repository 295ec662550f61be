"""The report and the site as a browser shows them, on a phone and a desk. `make proof` brings the browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from exactsink.bench.report.page import to_html
from tests.docs.pages import ROOT, commands, steps
from tests.unit.report_sample import SAMPLE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE, DESK = 390, 1280
SITE, SEEN = ROOT / "build/site", Queue[dict[str, list[str]]]()
FRAME = """<!DOCTYPE html><pre id="seen"></pre>
<iframe style="border:0;width:%dpx;height:9000px" srcdoc="%s"></iframe><script>
const frame = document.querySelector('iframe');
frame.onload = () => {
  const page = frame.contentDocument, width = page.documentElement.clientWidth;
  page.querySelectorAll('details').forEach(one => one.open = true);
  const box = one => one.getBoundingClientRect(), all = which => [...page.querySelectorAll(which)];
  const texts = all('.chart svg text').filter(one => box(one).width).map(
    one => ({of: one.closest('.chart'), text: one.textContent, box: box(one)}));
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  document.getElementById('seen').textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth - width,
    outside: all('h1, h2, p, li, .wide, figcaption, summary, dd')
      .filter(one => (box(one).right > width + 0.5 || box(one).left < -0.5))
      .map(one => one.tagName + one.textContent),
    covered: texts.flatMap((a, n) => texts.slice(n + 1).filter(b => a.of === b.of && meet(a.box, b.box))
      .map(b => a.text + ' and ' + b.text)),
    cut: all('.chart svg :is(text, path, rect)').map(one => ({own: box(one), of: box(one.closest('.chart > svg'))}))
      .filter(one => one.own.right > one.of.right + 0.5 || one.own.left < one.of.left - 0.5).length,
    small: all('text, td, th, p, li, small').filter(one => parseFloat(getComputedStyle(one).fontSize) < 12).length,
    drawn: [all('rect.rect').filter(one => box(one).width).length],
    requests: frame.contentWindow.performance.getEntriesByType('resource').length,
    ground: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
  });
};
</script>"""


@pytest.mark.proof
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: make proof installs it")
@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_fits_its_window_and_no_text_covers_another(
    width: int, scheme: str, ground: str, tmp_path: Path
) -> None:
    page = tmp_path / "frame.html"
    page.write_text(FRAME % (width, html.escape(to_html(SAMPLE))))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    flags += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", "--window-size=1400,900"]
    shown = subprocess.run([str(CHROMIUM), *flags, "--dump-dom", page.as_uri()], capture_output=True, timeout=120)
    [seen] = re.findall(r'<pre id="seen">(.+?)</pre>', shown.stdout.decode())
    drawn = [len(SAMPLE.sections[0].charts[0].bars)]
    assert json.loads(html.unescape(seen)) == {
        "wide": 0, "outside": [], "covered": [], "cut": 0, "small": 0, "drawn": drawn, "requests": 0, "ground": ground,
    }  # fmt: skip


SITE_FRAME = """<!DOCTYPE html><iframe style="border:0;width:%dpx;height:900px" src="/tutorial.html"></iframe><script>
const frame = document.querySelector('iframe'), copied = [], wide = [], pages = ['index', 'reference/config'];
const until = async look => { while (!look()) await new Promise(done => setTimeout(done, 20)); return look(); };
frame.onload = async () => {
  const page = frame.contentDocument, width = page.documentElement.clientWidth;
  const all = which => [...page.querySelectorAll(which)], box = one => one.getBoundingClientRect();
  await until(() => all('.md-typeset__scrollwrap, [data-copy] button').length);
  wide.push(...all('html, .md-content *').filter(one => Math.max(box(one).right, page.body.scrollWidth) > width + 0.5
    && !one.closest('.md-typeset__scrollwrap, pre, p:has(> img)')).map(one => one.textContent.slice(0, 80)));
  page.execCommand = () => copied.push(page.activeElement.value);
  if (!copied.length) all('[data-copy] button').forEach(one => one.click());
  if (pages.length) return frame.src = `/${pages.pop()}.html`;
  const search = page.querySelector('.md-search__input');
  search.focus(), search.value = 'quarantine', search.dispatchEvent(new Event('keyup', {bubbles: true}));
  const found = await until(() => all('.md-search-result__item a')[0]?.pathname);
  fetch('/seen', {method: 'POST', body: JSON.stringify({copied, wide, found: [found]})});
};</script>"""


class _Site(SimpleHTTPRequestHandler):
    def do_POST(self) -> None:
        SEEN.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))


@pytest.mark.proof
@pytest.mark.skipif(CHROMIUM is None or not SITE.exists(), reason="make proof makes the site, and installs chromium")
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_site_copies_commands_fits_its_window_and_finds_a_word(width: int, tmp_path: Path) -> None:
    for entry in SITE.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "frame.html").write_text(SITE_FRAME % width)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Site, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        flags = ["--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}/profile"]
        page = f"http://127.0.0.1:{server.server_port}/frame.html"
        browser = subprocess.Popen([str(CHROMIUM), *flags, "--window-size=1400,950", page])
        try:
            seen = SEEN.get(timeout=300)
        finally:
            browser.kill(), browser.wait(), server.shutdown()
    blocks = [step for step in steps(ROOT / "docs/tutorial.md") if step.language == "console"]
    copied = ["\n".join(command.text for command in commands(step)) for step in blocks]
    assert seen == {"copied": copied, "wide": [], "found": ["/how-to/quarantine-bad-rows.html"]}

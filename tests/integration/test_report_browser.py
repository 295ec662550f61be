"""The report as a browser shows it: on a phone and a desk, in light and dark. `make proof` brings the browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from exactsink.bench.report.page import to_html
from tests.unit.report_sample import SAMPLE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE, DESK = 390, 1280
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

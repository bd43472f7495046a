"""The pages of a grade and of a course in a browser: on a phone and on a desktop, in light and in dark."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from conformance.batch.gradebook import Graded, class_page
from conformance.checks.aspect import Aspect
from conformance.grading.formats.html import to_html
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.scenarios.scenario import Scenario

WRONG = CheckReport(
    "gradients_averaged",
    "core",
    "failed",
    "Every gradient is the average.",
    message="On rank 0, the gradient of `layers.0.weight` is off: " + "seen_18.6498_expected_9.32488" * 9,
    diagnosis="Looks like *summed, not averaged*: divide by `dist.get_world_size()`.",
    script="repro/naive_ddp-gradients_averaged.py",
    scenario=Scenario(),
    timeline=(("backward", "all_reduce 16 B", "<b>wait 0</b>"), ("backward",)),
)
ASPECTS = (Aspect("gradients are averaged", 3, ("gradients_averaged",), essential=True),)
ENVIRONMENT = Environment("2.15", "3.11", "gloo", "cpu", 4, 7)
REPORT = Report("students/<b>a*b</b>", ENVIRONMENT, (ComponentReport("naive_ddp", (WRONG,), ASPECTS),))
CLASS = [Graded(REPORT, ("a race",)), Graded(Report("a-name-without-any-space-in-it" * 5, ENVIRONMENT, ()), ())]
_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A window of a browser is no narrower than 500 pixels: the page stands in a frame, and tells it what it looks like.
_FRAME = """<iframe src="page.html" style="border: 0; width: WIDTHpx; height: 800px"></iframe>
<script>onmessage = told => document.body.dataset.found = JSON.stringify(told.data)</script>"""
_LOOK = """<script>
const light = colour => Math.max(...colour.match(/[0-9.]+/g).slice(0, 3).map(Number));
const canvas = document.body.appendChild(document.createElement("i"));
canvas.style.background = "Canvas";  // where a page has no background
const style = getComputedStyle(document.body), button = document.querySelector(".command button");
const found = {
  width: innerWidth,
  fits: document.documentElement.scrollWidth <= innerWidth,
  fetched: performance.getEntriesByType("resource").length,
  title: document.title,
  heading: document.querySelector("h2").textContent,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  light_on_dark: light(style.color) > light(
    style.backgroundColor.endsWith(", 0)") ? getComputedStyle(canvas).backgroundColor : style.backgroundColor),
};
if (button) button.click();
setTimeout(() => {
  found.copied = button && (button.textContent === "Copied"
    || getSelection().toString() === button.nextElementSibling.textContent);
  parent.postMessage(found, "*");
}, 500);
</script></body>"""


def looked_at(page, folder, width, *, dark=False):
    """Return what a browser finds in a page."""
    assert "</body>" in page
    (folder / "page.html").write_text(page.replace("</body>", _LOOK), encoding="utf-8")
    (folder / "frame.html").write_text(_FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    call = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    call += [f"--user-data-dir={folder}/profile", "--window-size=1400,1000", "--virtual-time-budget=5000"]
    call += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    call += ["--dump-dom", (folder / "frame.html").as_uri()]
    run = subprocess.run(call, check=False, capture_output=True, text=True)
    found = re.search(r'data-found="([^"]*)"', run.stdout)
    assert found, run.stdout + run.stderr
    return json.loads(unescape(found[1]))


@pytest.mark.skipif(_BROWSER is None, reason="nothing opens the pages: no chromium (apt-get install chromium)")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1200, False)])
def test_the_pages_fit_on_a_phone_and_on_a_desktop_in_light_and_in_dark(tmp_path, width, dark):
    expected = {"width": width, "fits": True, "fetched": 0, "dark": dark, "light_on_dark": dark}
    assert looked_at(to_html([REPORT]), tmp_path, width, dark=dark) == expected | {
        "title": "pytest-ddp: students/<b>a*b</b>",
        "heading": "Next: naive_ddp: gradients_averaged failed",
        "copied": True,
    }
    found = looked_at(class_page(CLASS), tmp_path, width, dark=dark)
    assert found == expected | {"title": found["title"], "heading": "Share of the points", "copied": None}

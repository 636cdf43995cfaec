"""A page of a report in a browser without a screen: it loads without errors, asks for nothing, searches and folds."""

import json
import re
import shutil
import subprocess

import pytest
import torch

import framefuse

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
ALONE = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-quic --virtual-time-budget=3000"
).split()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

# What a person does, and what the page shows then; the answer is left in the document.
ACTS = """
const failed = [], seen = {};
window.addEventListener("error", (event) => failed.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => failed.push(event.blockedURI));
const rows = () => [...document.querySelectorAll("tr:not(:has(th))")];
const shown = () => rows().filter((row) => !row.hidden);
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
seen.rows = rows().length;
press("/"); seen.focused = document.activeElement.id;
ask("amax"); seen.found = shown().map((row) => row.textContent.toLowerCase().includes("amax"));
seen.told = document.getElementById("found").textContent;
press("Escape"); seen.back = shown().length;
press("f"); seen.folded = document.querySelectorAll("details[open]").length;
const link = document.querySelector("td a[href^='#f1k']"); location.hash = link.getAttribute("href");
setTimeout(() => {
  const target = document.getElementById(location.hash.slice(1));
  seen.unfolded = target.open && target.parentElement.open;
  seen.asked = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
  const out = document.createElement("script"); out.type = "seen"; out.id = "seen";
  out.textContent = JSON.stringify({ failed, seen }); document.body.append(out);
}, 200);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of a function that trains, breaks, and was compiled again."""

    def program(x, weight):
        y = (x @ weight).softmax(-1)
        if y.sum() > 100:
            y = y * 2
        return torch.relu(y) + (1 if x.shape[0] > 5 else 2)

    compiled, weight = framefuse.compile(program), torch.randn(4, 3, requires_grad=True)
    for rows in (2, 3, 7):
        compiled(torch.randn(rows, 4), weight).sum().backward()
    return framefuse.report(compiled, tmp_path_factory.mktemp("page") / "page.html")


def browse(page, folder, *flags):
    command = [BROWSER, *ALONE, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def test_a_page_searches_folds_and_reaches_for_nothing(page, tmp_path):
    acted = tmp_path / "acted.html"
    acted.write_text(page.read_text().replace("</body>", f"<script>{ACTS}</script></body>"))
    document = browse(acted, tmp_path, "--dump-dom")
    told = json.loads(re.search(r'<script type="seen" id="seen">(.*?)</script>', document)[1])
    seen = told["seen"]
    assert not told["failed"] and not seen["asked"]
    assert seen["rows"] > 10 and seen["focused"] == "search" and seen["back"] == seen["rows"]
    assert 0 < len(seen["found"]) < seen["rows"] and all(seen["found"]) and seen["told"] == f"{len(seen['found'])} rows"
    assert seen["folded"] == 0 and seen["unfolded"] and seen["wide"]


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_a_page_is_drawn_on_both_grounds(page, tmp_path, ground):
    picture = tmp_path / "page.png"
    flags = ("--force-dark-mode",) if ground == "dark" else ()
    browse(page, tmp_path, f"--screenshot={picture}", "--window-size=1200,900", *flags)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000

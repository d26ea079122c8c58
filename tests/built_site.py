"""What `make docs` has built: it asks nothing of elsewhere, fits a phone, and can be searched.

Not collected by `make test`: the site has to be there. A Chromium does what a reader would do.
"""

import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BUILT = Path(__file__).parent.parent / "docs" / "_build"
PAGES = sorted(BUILT.rglob("*.html"))
CHROMIUM = shutil.which("chromium")
PHONE = 400
# Every page in turn in a window as wide as a phone: how far right does it reach, but for what
# scrolls by itself, and what does it load from elsewhere?
MEASURE = """<!doctype html><pre></pre><iframe style="width: %dpx; height: 800px; border: 0">
</iframe><script>
const pages = %s, found = {}, frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentWindow, loaded = page.performance.getEntriesByType("resource");
  if (page.location.origin !== location.origin) return;
  const parts = [...page.document.querySelectorAll("article *")];
  const still = parts.filter((part) => !part.closest("pre, .table-wrapper, .formula"));
  found[pages.shift()] = [
    Math.max(...still.map((part) => part.getBoundingClientRect().right), 0),
    loaded.map((entry) => entry.name).filter((name) => !name.startsWith(location.origin)),
  ];
  document.querySelector("pre").textContent = JSON.stringify(found);
  if (pages.length) frame.src = pages[0];
};
frame.src = pages[0];
</script>"""
# A word typed into the box in the corner of a page, and what then appears.
SEARCH = """<!doctype html><pre></pre><iframe src="/tutorial.html"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const box = frame.contentDocument.querySelector("input[name=q]");
  if (!frame.contentWindow.location.pathname.endsWith("search.html")) {
    box.value = decodeURIComponent(location.search.slice(1));
    box.form.requestSubmit();
    return;
  }
  setInterval(() => {
    const links = [...frame.contentDocument.querySelectorAll("ul.search li > a")];
    document.querySelector("pre").textContent = JSON.stringify(links.map((link) => link.pathname));
  }, 500);
};
</script>"""


class Loads(HTMLParser):
    """What a page makes a browser load by itself."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        loaded = ["src", "srcset", "data", "poster", "action"]
        if tag == "link" and named.get("rel") not in ("canonical", "author"):
            loaded.append("href")
        self.urls += [named[name] for name in loaded if named.get(name)]


def test_nothing_is_loaded_from_elsewhere():
    assert len(PAGES) > 60
    for page in PAGES:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.urls, page
        assert not [url for url in loads.urls if re.match(r"(\w+:)?//", url)], page
    for sheet in BUILT.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(\w+:)?//", sheet.read_text("utf-8")), sheet


def test_formulas_are_written_out():
    """No command of TeX is left over in one."""
    formulas = [
        formula
        for page in PAGES
        for formula in re.findall(r"<math.*?</math>", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(formulas) > 80
    assert not [formula for formula in formulas if "\\" in formula]


class Site(SimpleHTTPRequestHandler):
    """Serves what was built, and the two pages that look at it."""

    def do_GET(self):
        pages = [f"/{page.relative_to(BUILT)}" for page in PAGES]
        ours = {"/measure": MEASURE % (PHONE, json.dumps(pages)), "/look": SEARCH}
        page = ours.get(self.path.partition("?")[0])
        if page is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(BUILT)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def seen(url, profile):
    """The page as a Chromium has it in the end, which reaches nothing but this machine."""
    if CHROMIUM is None and "CI" in os.environ:
        pytest.fail("CI must have chromium: .ci/run installs Debian's.")
    if CHROMIUM is None:
        pytest.skip("There is no chromium here: apt-get install chromium.")
    quiet = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions",
        "--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}",
        "--virtual-time-budget=60000", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [CHROMIUM, *quiet, url], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def printed(dom):
    text = re.search(r"<pre>(.*?)</pre>", dom, re.DOTALL)
    assert text, dom
    return json.loads(html.unescape(text[1]))


WORDS = {"ledger": "/command_line", "nuclear": "/theorems/low_rank", "LabelHead": "/learners"}


@pytest.mark.parametrize(("word", "page"), WORDS.items())
def test_the_search_box_finds_pages(word, page, site, tmp_path):
    found = printed(seen(f"{site}/look?{word}", tmp_path))
    assert f"{page}.html" in found
    assert not re.search("/(decisions|lab)/", found[0])


def test_the_search_works_from_the_disk(tmp_path):
    dom = seen(f"{BUILT.as_uri()}/search.html?q=nuclear", tmp_path)
    assert '<a href="theorems/low_rank.html' in dom


def test_pages_fit_a_phone_and_load_nothing_from_elsewhere(site, tmp_path):
    found = printed(seen(f"{site}/measure", tmp_path))
    assert len(found) == len(PAGES)
    assert {page: seen for page, seen in found.items() if seen[0] > PHONE or seen[1]} == {}

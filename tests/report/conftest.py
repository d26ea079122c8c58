"""The browser that looks at pages: Debian's Chromium."""

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None and "CI" in os.environ:
        pytest.fail("CI must have chromium: .ci/run installs Debian's.")
    if CHROMIUM is None:
        pytest.skip("There is no chromium here: apt-get install chromium.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield opened
        opened.close()

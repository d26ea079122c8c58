"""The snippets of a page, and how those of its shell are run.

A python block is a script of its own, unless its first line is a file's name, ``# service.py``:
then it is that file, in the folder in which the page's sh blocks run, one after the other. A text
block right after one of them is what it prints; numbers in it may differ. ``# Ctrl-C`` at the end
of an sh block is pressed while it learns, and what is printed is its last line. Other text blocks
are not run.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.commands import run

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "_build" not in page.parts
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Snippet:
    """A block of a page, and what the page says that it prints."""

    language: str
    code: str
    prints: str | None = None

    @property
    def file(self):
        """The name of the file that it is, if it is one."""
        named = FILE.match(self.code) if self.language == "python" else None
        return named and named[1]


def snippets(page):
    text = page.read_text(encoding="utf-8")
    found: list[Snippet] = []
    end = 0
    for block in FENCE.finditer(text):
        language, code = block.groups()
        follows = found and not text[end : block.start()].strip()
        if language == "text" and follows and found[-1].language in ("python", "sh"):
            found[-1] = replace(found[-1], prints=code)
        else:
            found.append(Snippet(language, code))
        end = block.end()
    return found


def masked(text):
    """What two runs print alike: words, without numbers, the widths of tables, and hashes."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "#", text)
    text = re.sub(r"\d[\d,]*(\.\d+)?(e[-+]?\d+)?", "#", text)
    return re.sub(r"[\s─]+", " ", text).strip()


def shell(code, folder, *more_path, reports=False):
    """Run a block; ``# Ctrl-C`` is pressed a second after the ledger came. Reports take seconds."""
    path = os.pathsep.join([str(Path(sys.executable).parent), *more_path, os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "80"}
    if reports:
        environment.pop("UNSOFTMAX_REPORT", None)
    stderr = folder / "stderr"
    with stderr.open("w") as errors:
        process = subprocess.Popen(
            ["sh", "-e", "-c", code], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        if "# Ctrl-C" in code:
            for _ in range(1200):
                if any(folder.glob("*/ledger.sqlite")) or process.poll() is not None:
                    break
                time.sleep(0.05)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    return process.returncode, stdout, stderr.read_text()


def in_this_process(code, folder, reports):
    """Run a block line by line: commands of ours without a process of their own."""
    said = []
    for line in code.splitlines():
        name, *words = shlex.split(line, comments=True)
        if name == "unsoftmax":
            with pytest.MonkeyPatch.context() as patch:
                if reports:
                    patch.delenv("UNSOFTMAX_REPORT")
                done = run(folder, *words, columns=80)
            status, stdout, stderr = done.returncode, done.stdout, done.stderr
        else:
            status, stdout, stderr = shell(line, folder)
        said.append(stdout)
        if status:
            return status, "".join(said), stderr
    return 0, "".join(said), ""


def run_page(page, folder, *more_path):
    """Run a page's sh blocks in order, in a folder with its files, and see what they print.

    Pages whose blocks start servers have processes of their own, and so has a block that is
    interrupted or not of plain commands.
    """
    found = snippets(page)
    reports = "report.html" in page.read_text(encoding="utf-8")
    serves = any("&" in snippet.code for snippet in found)
    if any("cd examples/" in snippet.code for snippet in found):
        shutil.copytree(ROOT / "examples", folder / "examples")
    for snippet in found:
        if snippet.file:
            (folder / snippet.file).write_text(snippet.code, encoding="utf-8")
    for snippet in found:
        if snippet.language == "sh":
            if serves or any(word in snippet.code for word in ("# Ctrl-C", "||", "\\\n")):
                status, printed, stderr = shell(snippet.code, folder, *more_path, reports=reports)
            else:
                status, printed, stderr = in_this_process(snippet.code, folder, reports)
            if "# Ctrl-C" in snippet.code:
                assert status in (130, -signal.SIGINT), stderr
                printed = stderr.splitlines()[-1]
            else:
                assert status == 0, stderr
            if snippet.prints is not None:
                assert masked(printed) == masked(snippet.prints)

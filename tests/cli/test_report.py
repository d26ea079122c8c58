"""Commands with --out, and what they leave to be read; `unsoftmax report`."""

import json
import re
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import unsoftmax as us
from unsoftmax.campaign.recovery import RefusedRun
from unsoftmax.cli.commands import app


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with a target, and pages as users have them."""
    monkeypatch.delenv("UNSOFTMAX_REPORT")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4)).save("head.safetensors")
    us.SingleHead(rng.standard_normal((4, 4)), np.zeros(4)).save("silent.safetensors")
    return tmp_path


def read(folder):
    """Return a page, the words of its commands as one text."""
    return re.sub(
        r'<span class="w">(\S+)</span>', r"\1", (folder / "report.html").read_text(encoding="utf-8")
    )


def run(*words, status=0):
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert done.exit_code == status, (done.stdout, done.stderr, done.exception)
    return done


def test_learn_writes_a_page_and_a_picture(here):
    done = run("learn", "head.safetensors", "--out", "found", "--seed", "3")
    assert "found/recovery.png, found/report.html" in done.stdout
    page = read(here / "found")
    assert "unsoftmax learn head.safetensors --out found --seed 3" in page
    assert "Answers over time" in page
    assert (here / "found" / "recovery.png").read_bytes().startswith(b"\x89PNG")
    run("verify", "head.safetensors", "--weights", "found/model.safetensors", "--out", "found")
    page = read(here / "found")
    assert "The target serves the claimed weights" in page
    assert "--weights found/model.safetensors" in page
    assert "<h1>Report on head.safetensors</h1>" in page
    assert "<dt>weights</dt><dd>found/model.safetensors</dd>" in page
    assert us.Verification.load("found").verdict == "same"
    # the finished run again: nothing is asked, but recorded questions
    run("learn", "head.safetensors", "--out", "found", "--seed", "3")
    page = read(here / "found")
    assert "answers were in the ledger when this run began" in page


@pytest.mark.usefixtures("undrawn")
def test_a_refusal_has_its_page_until_a_recovery_takes_its_place(here):
    done = run("learn", "silent.safetensors", "--out", "found", status=3)
    assert "Kept: found/refusal.json, found/report.html." in " ".join(done.stderr.split())
    page = read(here / "found")
    assert "Refused: no answers can determine this" in page
    refused = RefusedRun.load("found")
    assert np.array_equal(refused.determined["v"], np.zeros(4))
    assert refused.course.paid > 0
    ledger = ("--ledger", "another.sqlite")
    run("learn", "head.safetensors", "--out", "found", "--no-report", *ledger)
    assert not (here / "found" / "refusal.json").exists()
    assert not (here / "found" / "determined.safetensors").exists()
    assert not (here / "found" / "recovery.png").exists()
    run("learn", "silent.safetensors", "--out", "found", status=3)
    page = read(here / "found")
    assert "The recovery on this page is from another run." in page


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_results_are_written_and_one_line_names_it(monkeypatch, here, package):
    for name in [name for name in sys.modules if name.startswith(("unsoftmax.report.", package))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("unsoftmax.figures.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    done = run("learn", "head.safetensors", "--out", "found")
    [line] = [line for line in done.stderr.splitlines() if "report.html" in line]
    assert "pip install 'unsoftmax[report]'" in line
    assert line.endswith("Then: unsoftmax report found")
    assert us.Recovery.load("found").evidence.passed
    assert not (here / "found" / "report.html").exists()
    assert "unsoftmax[report]" in run("report", "found", status=2).stderr


def test_a_damaged_neighbour_is_named_and_what_was_learned_is_there(here):
    (here / "found").mkdir()
    (here / "found" / "verification.json").write_text("{", encoding="utf-8")
    done = run("learn", "head.safetensors", "--out", "found")
    assert "report.html was not written: found/verification.json cannot be read" in done.stderr
    assert us.Recovery.load("found").evidence.passed
    done = run("report", "found", status=2)
    assert "No page was written. found/verification.json cannot be read" in done.stderr


def test_a_page_that_cannot_be_drawn_costs_nobody_a_result(monkeypatch, here):
    def draw(self):
        raise IndexError("of a figure")

    monkeypatch.setattr(us.Recovery, "plot", draw)
    done = run("learn", "head.safetensors", "--out", "found")
    assert "report.html was not written: IndexError: of a figure" in done.stderr
    assert "Written: found/model.safetensors, found/recovery.json" in done.stdout
    assert us.Recovery.load("found").evidence.passed


@pytest.mark.usefixtures("undrawn")
def test_report_names_a_folder_without_results(here):
    (here / "empty").mkdir()
    for folder in ("empty", "nowhere", "head.safetensors"):
        assert f"There is no result in {folder}" in run("report", folder, status=2).stderr
    run("learn", "head.safetensors", "--out", "found", "--no-report")
    assert not (here / "found" / "report.html").exists()
    assert "Written: found/report.html" in run("report", "found").stdout
    (here / "found" / "report.html").unlink()
    (here / "found" / "report.html").mkdir()
    assert "No page was written. found: Is a directory." in run("report", "found", status=2).stderr
    assert "is a folder" in run("learn", "head.safetensors", "--out", "found", status=2).stderr


@pytest.mark.usefixtures("undrawn")
def test_json_is_one_object_of_the_result_alone(here):
    done = run("learn", "head.safetensors", "--out", "found", "--json")
    told = json.loads(done.stdout)
    assert "course" not in told
    assert len(told["evidence"]["residuals"]) > 5
    words = ("verify", "head.safetensors", "--weights", "found/model.safetensors", "--json")
    assert json.loads(run(*words).stdout)["format_version"] == 1

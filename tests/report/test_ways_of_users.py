"""The ways of three users, as they go: the installed command, an empty folder, and a browser.

Each reads what was printed and does what it says next. `make ways`, which CI runs, goes them with
the wheel in an environment of its own, `make evidence` with all other tests.
"""

import json
import shlex
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from safetensors.numpy import save_file

import unsoftmax as us
from tests.block_services import CONFIG, HEADS, draw, served
from tests.commands import started
from tests.oracles.http_server import in_json, serving
from tests.report.test_sarif import result_of

pytestmark = pytest.mark.claimed


@contextmanager
def endpoint(target, dim, *width):
    """A server on loopback that answers by a function; yields its address."""
    tensor = {"datatype": "FP64"}
    metadata = {
        "inputs": [{"name": "X", "shape": [-1, -1, dim], **tensor}],
        "outputs": [{"name": "y", "shape": [-1, *width], **tensor}],
    }
    with serving(in_json(target), metadata) as (url, _):
        yield url


@pytest.fixture
def told(tmp_path):
    """Run a command that should end with a status; return what it printed."""

    def tell(*words, status=0):
        done = started(tmp_path, *words, timeout_s=600)
        assert done.returncode == status, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if status < 2 else done.stderr

    return tell


def what_it_says_next(printed):
    """Return the words of the command that it names."""
    [line] = [line for line in printed.splitlines() if line.startswith("Next: ")]
    command, *words = shlex.split(line.removeprefix("Next: "))
    assert command == "unsoftmax"
    return words


def seen(browser, page_file, *wanted):
    """Look at a page on a desk and on a phone: sentences of the first screen, nothing from afar."""
    for width, height in ((1280, 800), (390, 844)):
        context = browser.new_context(viewport={"width": width, "height": height})
        asked: list[str] = []
        page = context.new_page()
        page.on("request", lambda one, asked=asked: asked.append(one.url))
        page.goto(page_file.as_uri())
        for sentence in wanted:
            box = page.locator("header").get_by_text(sentence).first.bounding_box()
            assert box is not None, sentence
            assert box["y"] + box["height"] <= height, sentence
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        context.close()


def test_an_engineer_checks_an_endpoint_with_a_checkpoint(browser, told, tmp_path):
    """Right weights, a LoRA on q_proj, no server: three statuses, a name of the file, an alert."""
    d = 16
    state, name = draw("llama", 1, 5, d, 2 * d), "layers.0.self_attn.q_proj.weight"
    (tmp_path / "checkpoint").mkdir()
    stored = {f"model.{key}": x.astype(np.float32) for key, x in state.items()}
    save_file(stored, tmp_path / "checkpoint/model.safetensors")
    said = {"model_type": "llama", "num_attention_heads": HEADS, **CONFIG["llama"]}
    (tmp_path / "checkpoint/config.json").write_text(json.dumps(said))
    rng = np.random.default_rng(0)
    step = rng.standard_normal((d, 4)) @ rng.standard_normal((4, d))
    lora = state[name] + 1e-2 * np.linalg.norm(state[name]) / np.linalg.norm(step) * step
    now = {"weights": state}

    def block(X):
        return served("llama", now["weights"])(X)

    with endpoint(block, d, d) as url:
        words = "verify", url, "--weights", "checkpoint", "--out", "verified"
        assert "same" in told(*words, "--sarif", "v.sarif")
        assert result_of(tmp_path / "v.sarif")["kind"] == "pass"
        now["weights"] = state | {name: lora}
        printed = told(*words, "--report", "--sarif", "v.sarif", status=1)
        assert f"model.{name}" in printed
        alert = result_of(tmp_path / "v.sarif")
        assert (alert["ruleId"], alert["level"]) == ("different-weights", "error")
        assert f"model.{name}" in alert["message"]["text"]
    assert "does not answer" in told(*words, status=5)
    answer = "The target does not serve the claimed weights."
    seen(browser, tmp_path / "verified/report.html", answer)


def test_a_security_engineer_audits_an_endpoint_that_nothing_is_known_of(browser, told, tmp_path):
    rng = np.random.default_rng(1)
    W = rng.standard_normal((7, 1)) @ rng.standard_normal((1, 7)) / 3
    secret = us.SingleHead(W, rng.standard_normal(7))
    with endpoint(secret, 7) as url:
        printed = told("audit", url, "--dim", 7, "--out", "audited", "--price", 2)
        assert "single head" in printed
        told(*what_it_says_next(printed))
    found = json.loads((tmp_path / "audited/audit.json").read_text())
    assert (found["class"], found["certainty"]) == ("single head", "certain")
    assert us.equivalent(us.load(tmp_path / "audited/model.safetensors"), secret)
    told("report", "audited")
    sentence = f"Anyone who may ask {found['queries']:,} questions can copy this model."
    seen(browser, tmp_path / "audited/report.html", sentence, "What to do next")
    model = "audited/model.safetensors"
    printed = told("defend", model, "--out", "defended", "--attack-queries", 60)
    advised = json.loads((tmp_path / "defended/defence.json").read_text())["recommendation"]
    assert advised.startswith("Recommended: ")
    assert advised in " ".join(printed.split())


RESEARCH = """
import numpy as np
import unsoftmax as us
secret = us.load("secret.safetensors")
learner = us.learners.LowRankHead(6, rank=2)
plan = learner.plan()
recovery = us.learn(lambda X: secret(X), learner, budget=plan.at_most + 32)
off = np.linalg.norm(recovery.model.W - secret.W)
print(plan.queries, recovery.counts["data"], recovery.evidence.passed)
print(bool(off <= recovery.certificate.W_error))
recovery.save("found")
"""


def test_a_researcher_recovers_a_head_in_python(browser, told, tmp_path):
    """Plan, learn, certificate, save; then compare on the command line."""
    rng = np.random.default_rng(2)
    K, Q = rng.standard_normal((2, 2, 6))
    us.SingleHead.from_factors(K, Q, rng.standard_normal(6)).save(tmp_path / "secret.safetensors")
    words = [sys.executable, "-W", "error", "-c", RESEARCH]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    planned, asked, passed, within = done.stdout.split()
    assert int(asked) <= int(planned) == 6 + 2 * (2 * 6 - 2)
    assert (passed, within) == ("True", "True")
    told("compare", "secret.safetensors", "found")
    told("report", "found")
    seen(browser, tmp_path / "found/report.html", "can copy this model.")

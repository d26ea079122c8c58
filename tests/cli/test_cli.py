"""The installed command, as a user runs it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from tests.commands import run, started

import unsoftmax as us
from unsoftmax.cli.console import Refusal
from unsoftmax.cli.options import build
from unsoftmax.questions import verification
from unsoftmax.refusals import Reason

COMMAND = Path(sys.executable).parent / "unsoftmax"

TARGET = """
    import os, time
    import numpy as np

    rng = np.random.default_rng(7)
    W, v = rng.standard_normal((6, 6)), rng.standard_normal(6)

    def head(X):
        with open("asked.txt", "a") as log:
            log.write(f"{len(X)}\\n")
        scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("bn,bn->b", weights, X @ v) / weights.sum(axis=1)

    def slow(X):
        time.sleep(0.05)
        return head(X)

    def two(X):
        return head(X) + head(-X @ W) * 1e-3

    def nothing(X):
        return np.zeros(len(X))

    def broken(X):
        raise ConnectionError("the line is dead")

    def nan(X):
        return np.full(len(X), np.nan)

    def three(X):
        return np.stack([head(X), head(-X), X[:, -1, 0]], axis=1)

    def limited(X):
        import unsoftmax
        if not os.path.exists("refused.txt"):
            open("refused.txt", "w").close()
            raise unsoftmax.RetryLater(0.2)
        return head(X)

    def later(X):
        import unsoftmax
        raise unsoftmax.RetryLater(30)

    number = 3
"""


ALGORITHMS = """
    import numpy as np
    import unsoftmax as us

    eye = np.eye(3)
    W = np.random.default_rng(1).standard_normal((3, 3))
    network = us.ReluNetwork(np.hstack([eye, -eye]), [1.0, 2.0, 3.0, -1.0, 0.5, 2.0])
    layer = us.Transformer(W, network)

    def target(X):
        return layer(X)

    def axes(oracle):
        return us.ReluNetwork(np.hstack([eye, -eye]), oracle(np.vstack([eye, -eye])))

    def broken(oracle):
        return oracle(np.zeros((1, 5)))

    def nothing(oracle):
        pass

    def computing(oracle):
        oracle(eye)
        open("computes.txt", "w").close()
        while True:
            pass

    def stubborn(oracle):
        open("computes.txt", "w").close()
        while True:
            try:
                oracle(np.random.standard_normal((1, 3)))
            except BaseException:
                pass
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(TARGET))
    return tmp_path


def asked(folder):
    return sum(map(int, (folder / "asked.txt").read_text().split()))


def test_help_says_what_there_is(folder):
    done = run(folder, "--help")
    assert done.returncode == 0
    for command in ("demo", "plan", "learn", "compare"):
        assert command in done.stdout
    assert "Exit status" in done.stdout
    for command in ("demo", "plan", "learn", "compare"):
        assert run(folder, command, "--help").returncode == 0


def test_help_shows_the_settings_of_the_model_that_is_asked_for(folder):
    for command in ("learn", "plan"):
        plain = run(folder, command, "--help").stdout
        assert "--dim" in plain
        assert "--model NAME --help" in plain
        assert "--rank" not in plain
        assert "--max-heads" not in plain
        low_rank = run(folder, command, "--model", "low-rank", "--help").stdout
        assert "Settings of --model low-rank" in low_rank
        assert "--rank" in low_rank
        assert "--max-heads" not in low_rank
        assert "(sensing)" not in low_rank
        several = run(folder, command, "--help", "--model=multi-head").stdout
        assert "--max-heads" in several
        assert run(folder, command, "--model", "nonsense", "--help").stdout == plain


def test_lengths_are_said_before_anything_is_asked(folder):
    done = run(folder, "plan", "--model", "multi-head", "--max-heads", 2, "--dim", 6, "--radius", 9)
    assert "Questions have up to 512 tokens, none longer than 9 (2-norm)." in done.stdout
    plan = json.loads(run(folder, "plan", "--dim", 384, "--json").stdout)
    assert (plan["longest_token"], plan["most_tokens"]) == (2.0**127, 512)
    words = ["--dim", 6, "--out", "o"]
    done = run(folder, "learn", "mine:broken", *words, "--retries", 1)
    assert done.returncode == 5
    said = done.stderr.index("Questions have up to 512 tokens, of lengths chosen from the answers")
    assert said < done.stderr.index("the line is dead")
    assert "Questions have" not in run(folder, "learn", "mine:head", *words).stderr  # goes on


def test_a_radius_is_kept_to_or_refused_by_the_name_of_the_model(folder):
    words = ["learn", "mine:head", "--dim", 6, "--radius", 9]
    done = run(folder, *words, "--out", "near")
    assert done.returncode == 0, done.stderr
    assert "none longer than 9 (2-norm)." in done.stderr
    recovered = json.loads((folder / "near" / "recovery.json").read_text())
    assert any("No token was longer than 9" in said for said in recovered["certificate"]["assumes"])
    planned = run(folder, "plan", *words[2:]).stdout
    assert "Questions have up to 512 tokens, none longer than 9 (2-norm)." in planned
    for command in ([*words, "--out", "far"], ["plan", *words[2:]]):
        done = run(folder, *command, "--model", "relu-network")
        assert done.returncode == 2
        said = "ReluNetworkLearner keeps to no radius: it asks tokens beyond every bend"
        assert said in done.stderr


SAMPLERS = """
    def mine(rng):
        return rng.standard_normal((3, 6))

    def wide(rng):
        return rng.standard_normal((3, 7))

    def words(rng):
        return {"a": 1}

    def failing(rng):
        raise KeyError("lost")
"""


def test_a_bound_on_the_users_own_distribution(folder):
    (folder / "drawn.py").write_text(textwrap.dedent(SAMPLERS))
    words = ["learn", "mine:head", "--dim", 6, "--out", "o", "--sampler", "drawn:mine", "--json"]
    words += ["--eps", 0.1, "--delta", 0.1]
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["function"]
    assert found["samples"] == 24
    assert 0 < found["bound"] < 1e-12
    loaded = us.Recovery.load(folder / "o").function
    assert loaded is not None
    assert (loaded.samples, loaded.bound) == (24, found["bound"])
    # again: from the ledger alone, but for the questions by which the target is known
    assert json.loads(run(folder, *words).stdout)["function"] == found
    small = run(folder, *words[:4], "--out", "p", *words[6:8], "--budget", 5)
    assert "a hold-out of 32 and 93 samples need 167 queries" in small.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--eps", 0.1], "--eps and --delta go with --sampler"),
        (["--sampler", "drawn:mine", "--eps", 2], "eps must be between 0 and 1"),
        (["--sampler", "drawn:absent"], "cannot be imported"),
        (["--sampler", "drawn"], "names no function"),
        (["--sampler", "drawn:wide"], "shape (N, 6)"),
        (["--sampler", "drawn:words"], "must return numbers"),
        (["--sampler", "drawn:failing"], "drawn:failing failed: KeyError: 'lost'"),
    ],
)
def test_a_sampler_that_draws_nothing_is_refused_before_anything_is_paid(folder, words, says):
    (folder / "drawn.py").write_text(textwrap.dedent(SAMPLERS))
    done = run(folder, "learn", "mine:head", "--dim", 6, "--out", "o", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "asked.txt").exists()


def test_plan(folder):
    done = run(folder, "plan", "--model", "exact", "--dim", 384, "--biases")
    assert done.returncode == 0
    assert "148,225" in done.stdout
    plan = json.loads(run(folder, "plan", "--dim", 384, "--json").stdout)
    assert plan["queries"] == 147_840
    assert plan["formula"] == "d + d²"


NETWORK = ["--dim", 3, "--network", "ffn:axes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan"], "--dim is missing"),
        (["plan", "--model", "nonsense"], "--model is one of"),
        (["plan", "--dim", "0"], "dim must be 1 or more"),
        (["plan", "--dim", "3", "--probes", "nonsense"], "probes must be"),
        (["learn", "mine:head", "--dim", "6"], "Missing option '--out'. Folder for"),
        (["learn", "nowhere:head", "--dim", "6", "--out", "o"], "cannot be imported"),
        (["learn", "mine:absent", "--dim", "6", "--out", "o"], "cannot be imported"),
        (["learn", "mine:number", "--dim", "6", "--out", "o"], "not a function"),
        (["learn", "mine.py:head", "--dim", "6", "--out", "o"], "named without .py"),
        (["learn", ":head", "--dim", "6", "--out", "o"], "is no target"),
        (["audit", "host:8080/v2/models/m", "--dim", "6", "--out", "o"], "mean http://host:8080/"),
        (["learn", "mine:head", "--dim", "sixteen", "--out", "o"], "'sixteen' was given; a whole"),
        (["audit", "mine:head", "--budget=1e4", "--out", "o"], "'1e4' was given; a whole number"),
        (["audit", "mine:head", "--price", "x", "--out", "o"], "'x' was given; a number is wanted"),
        (
            ["audit", "mine:head", "--dim", "0", "--out", "o"],
            "'--dim': '0' was given. It must be at least 1.",
        ),
        (["learn", "what", "--dim", "6", "--out", "o"], "is no target"),
        (["learn", "absent.safetensors", "--out", "o"], "no model file"),
        (["learn", "head.npz", "--out", "o"], "`unsoftmax convert head.npz` makes one of them"),
        (["learn", "mine.py.safetensors", "--out", "o"], "no model file"),
        (["learn", "mine:head", "--out", "o"], "--dim is missing"),
        (["learn", "mine:head", "--dim", "6", "--out", "mine.py"], "cannot be made"),
        (["learn", "mine:head", "--dim", "6", "--out", "o", "--ledger", "mine.py"], "not a ledger"),
        (["learn", "mine:head", "--dim", "6", "--out", "o", "--workers", "9999999"], "to 2,048"),
        (["learn", "mine:head", "--dim", "6", "--out", "o", "--timeout", "0"], "timeout"),
        (["compare", "absent.safetensors", "absent.safetensors"], "no model file"),
        (["compare", "mine.py", "mine.py"], "not a readable safetensors"),
        (["nonsense"], "No such command"),
        *(
            (["plan", "--model", model, *settings], says)
            for model, settings, says in [
                ("labels", ["--dim", 4], "bits must be given for bisection"),
                ("labels", ["--bits", 8], "--dim is missing"),
                ("transformer", ["--dim", 4, "--bits", 8], "--bits is no setting"),
                ("transformer", ["--rank", 2], "--dim is missing"),
                ("low-rank", ["--vocabulary", 60], "--table is missing"),
                ("transformer", ["--vocabulary", 60, "--slope-error", 1.0], "--vocabulary is no"),
                ("transformer", [*NETWORK[:-1], "ffn"], "give module:function"),
                ("exact", NETWORK, "--network is no setting of --model exact"),
                (
                    "transformer",
                    [*NETWORK, "--max-neurons", 3],
                    "--max-neurons is no setting of --model transformer with --network",
                ),
                ("transformer", ["--dim", 3, "--slope-error", 1.0], "--network is missing"),
                ("antisymmetric", [], "--dim is missing"),
            ]
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(folder, words, says):
    (folder / "ffn.py").write_text(textwrap.dedent(ALGORITHMS))
    done = run(folder, *words)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("command", [["learn", "mine:head", "--dim", "6"], ["demo"]])
def test_an_out_that_cannot_be_written_is_refused_before_anything_is_paid(folder, command):
    for name in ("model.safetensors", "recovery.json"):
        (folder / "occupied" / name).mkdir(parents=True)
        done = run(folder, *command, "--out", "occupied")
        assert done.returncode == 2
        assert f"--out occupied is occupied: occupied/{name} is a folder" in done.stderr
        (folder / "occupied" / name).rmdir()
    # nobody may write here, not even root
    done = run(folder, *command, "--out", "/proc/self")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    (folder / "file").touch()
    done = run(folder, *command, "--out", "file/below")
    assert done.returncode == 2
    assert "--out file/below cannot be made: file is a file" in done.stderr
    assert done.stderr.startswith("Error")  # before any other output
    assert not (folder / "asked.txt").exists()


def test_a_result_that_cannot_be_written_after_all_says_where_the_answers_are(folder):
    with (folder / "mine.py").open("a") as source:
        source.write("\ndef spoiling(X):\n    os.makedirs('o/recovery.json', exist_ok=True)\n")
        source.write("    return head(X)\n")
    done = run(folder, "learn", "mine:spoiling", "--dim", 6, "--out", "o")
    assert done.returncode == 2
    assert "could not be written to o" in done.stderr
    assert "Every answer is in o/ledger.sqlite" in done.stderr
    assert "Traceback" not in done.stderr
    other = ["--out", "other", "--ledger", "o/ledger.sqlite", "--json"]
    done = run(folder, "learn", "mine:head", "--dim", 6, *other)
    assert "fingerprint" in json.loads(done.stdout)["counts"]


def test_one_coordinate_of_vectors(folder):
    words = ["learn", "mine:three", "--dim", 6, "--json"]
    done = run(folder, *words, "--out", "all")
    assert done.returncode == 5
    assert "3 numbers per sequence" in json.loads(done.stdout)["message"]
    assert "--coordinate" in done.stderr
    for k in (0, -3):
        assert run(folder, *words, "--out", "one", "--coordinate", k).returncode == 0
    rng = np.random.default_rng(7)
    truth = us.SingleHead(rng.standard_normal((6, 6)), rng.standard_normal(6))
    assert us.equivalent(us.load(folder / "one" / "model.safetensors"), truth)
    done = run(folder, *words, "--out", "none", "--coordinate", 3)
    assert done.returncode == 5
    assert "no coordinate 3. Choose k from -3 to 2" in done.stderr


def test_a_target_that_asks_to_wait(folder):
    done = run(folder, "learn", "mine:limited", "--dim", 6, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "waiting 0.2 s: the target asks to" in done.stderr
    assert "put off 1 call" in done.stdout
    words = ["learn", "mine:later", "--dim", 6, "--out", "o"]
    done = run(folder, *words, "--longest-wait", 20)
    assert done.returncode == 5
    assert "asks for 30 s more; the limit is 20 s" in done.stderr
    assert "On the command line longest_wait_s is --longest-wait" in done.stderr


def test_debug_shows_the_chain_of_causes(folder):
    with (folder / "mine.py").open("a") as source:
        source.write(
            "\nturns = [ConnectionError('first'), TimeoutError('second')]\n"
            "def failing(X):\n    raise turns.pop(0)\n"
        )
    words = ["learn", "mine:failing", "--dim", 6, "--retries", 2, "--out", "o"]
    plain = run(folder, *words)
    assert plain.returncode == 5
    assert "(TimeoutError: second). Earlier tries failed" in plain.stderr
    assert "another kind (ConnectionError: first)" in plain.stderr
    assert "--debug shows the causes" in plain.stderr
    assert "Traceback" not in plain.stderr
    shown = run(folder, *words, "--debug", "--json")
    assert shown.returncode == 5
    assert "ExceptionGroup: what went wrong in the tries (2 sub-exceptions)" in shown.stderr
    assert "raise turns.pop(0)" in shown.stderr
    assert json.loads(shown.stdout)["error"] == "OracleError"


def test_retries_are_set(folder):
    words = ["learn", "mine:broken", "--dim", 6]
    done = run(folder, *words, "--out", "one", "--retries", 1)
    assert done.returncode == 5
    assert "in 1 try (" in done.stderr
    assert run(folder, *words, "--out", "none", "--retries", 0).returncode == 2


def test_learn_and_compare(folder):
    done = run(folder, "learn", "mine:head", "--model", "exact", "--dim", 6, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "Recovered: SingleHead(d=6)" in done.stdout
    assert "Importing mine" in done.stderr
    again = json.loads((folder / "out" / "recovery.json").read_text())["counts"].get("again", 0)
    assert asked(folder) == 42 + 32 + again
    rng = np.random.default_rng(7)
    truth = us.SingleHead(rng.standard_normal((6, 6)), rng.standard_normal(6))
    truth.save(folder / "truth.safetensors")
    us.SingleHead(truth.W.T, truth.v).save(folder / "other.safetensors")
    found = "out/model.safetensors"
    assert run(folder, "compare", found, "truth.safetensors").returncode == 0
    different = run(folder, "compare", found, "other.safetensors", "--json")
    assert different.returncode == 1
    verdict = json.loads(different.stdout)
    assert verdict["verdict"] == "different"
    witness = np.array(verdict["witness"])[None]
    assert truth(witness) == pytest.approx(verdict["answers"][0])
    assert verdict["share"] > 1
    # further away than the certificate allows, by a difference of answers that proves nothing
    certificate = json.loads((folder / "out" / "recovery.json").read_text())["certificate"]
    nudge = max(3 * certificate["errors"]["W"], 1e-8) * np.eye(6) / np.sqrt(6)
    us.SingleHead(truth.W + nudge, truth.v).save(folder / "near.safetensors")
    near = run(folder, "compare", found, "near.safetensors", "--rtol", 1e-15)
    assert near.returncode == 1
    assert "further apart than the certificate allows" in near.stdout
    assert "for illustration" in near.stdout
    exact = run(folder, "compare", found, "truth.safetensors", "--rtol", 0)
    assert exact.returncode in (1, 3)
    finished = run(folder, "learn", "mine:head", "--dim", 6, "--out", "out", "--json")
    result = json.loads(finished.stdout)
    assert finished.returncode == 0
    assert 8 <= result["counts"]["fingerprint"] <= 32


def test_a_model_file_is_a_target_and_knows_its_dimension(folder):
    us.SingleHead(np.eye(3), np.ones(3), np.ones(3), 1.0).save(folder / "m.safetensors")
    done = run(folder, "learn", "m.safetensors", "--biases", "--out", "o", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["counts"]["data"] + result["counts"]["pilot"] == 16
    assert result["evidence"]["passed"]


def test_version_and_module(folder):
    assert run(folder, "--version").stdout.strip() == us.__version__
    done = subprocess.run(
        [sys.executable, "-m", "unsoftmax", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == us.__version__


def test_what_a_target_prints_stays_out_of_the_results(folder):
    (folder / "loud.py").write_text(
        "from mine import *\nprint('hello')\ndef said(X):\n    print('asked')\n    return head(X)\n"
    )
    done = run(folder, "learn", "loud:said", "--dim", 6, "--out", "o", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evidence"]["passed"]
    assert "hello" in done.stderr
    assert "asked" in done.stderr


def test_without_a_hold_out_the_result_is_called_unchecked(folder):
    done = run(folder, "learn", "mine:two", "--dim", 6, "--out", "o", "--holdout", 0)
    assert done.returncode == 0
    assert "Recovered, unchecked" in done.stdout
    assert "may be wrong" in done.stdout
    assert "nan" not in done.stdout


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("mine:two", 3, "ModelMismatch"),
        ("mine:nothing", 3, "W is free"),
        ("mine:broken", 5, "the line is dead"),
        ("mine:nan", 5, "must be finite"),
    ],
)
def test_statuses_of_refusals(folder, target, status, says):
    done = run(folder, "learn", target, "--dim", 6, "--out", "o", "--json")
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    said = json.loads(done.stdout)
    assert said["status"] == status
    assert (said.get("reason") in Reason.__members__) == (status == 3)
    assert ("unsoftmax audit says" in said["message"]) == (target == "mine:two")


def test_a_budget_stops_and_a_larger_one_goes_on(folder):
    words = ["learn", "mine:head", "--dim", 6, "--out", "o", "--json"]
    stopped = run(folder, *words, "--budget", 40)
    assert stopped.returncode == 4
    assert "A budget of 40 will not be enough" in stopped.stderr
    told = json.loads(stopped.stdout)
    assert asked(folder) == told["spent"] == 40
    enough = told["spent"] + told["needed"] + 12  # what may be asked again
    done = run(folder, *words, "--budget", enough)
    assert done.returncode == 0, done.stderr
    assert asked(folder) == json.loads(done.stdout)["queries"] <= enough


def interrupt(folder, words, begun):
    """Press the command's Ctrl-C once it has ``begun()``: it says how to go on."""
    with subprocess.Popen(
        [str(COMMAND), *words], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for _ in range(3000):
                if begun():
                    break
                time.sleep(0.02)
            assert begun(), "it has not in a minute"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()  # where it does not end
    assert process.returncode == 130
    assert "Run the same command to go on" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("signals")
def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(folder):
    words = ["learn", "mine:slow", "--dim", "6", "--out", "o", "--batch", "2"]
    interrupt(folder, words, lambda: (folder / "asked.txt").exists() and asked(folder) >= 20)
    before = asked(folder)
    done = run(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "in doubt" not in result["counts"]
    again = result["counts"].get("again", 0)
    assert asked(folder) == 42 + 32 + again + result["counts"]["fingerprint"]
    assert before >= 20


def test_another_learner_on_the_same_ledger_is_refused(folder):
    words = ["learn", "mine:head", "--dim", 6, "--out", "o"]
    assert run(folder, *words).returncode == 0
    other = run(folder, *words, "--seed", 5)
    assert other.returncode == 2
    assert "belongs to another run" in other.stderr


def test_progress_is_plain_lines_without_a_terminal(folder):
    done = run(folder, "learn", "mine:head", "--dim", 6, "--out", "o")
    assert "of 74 queries" in done.stderr
    assert "\x1b" not in done.stderr


# -- labels


def test_a_target_of_ids(folder):
    rng = np.random.default_rng(0)
    us.TokenHead(rng.standard_normal(30), *rng.standard_normal((2, 30, 2))).save(
        folder / "ids.safetensors"
    )
    plan = run(folder, "plan", "--model", "token", "--vocabulary", 30522, "--rank", 32)
    assert "2,043,973" in plan.stdout
    assert "ids of a vocabulary of 30,522" in plan.stdout
    learned = run(
        folder, "learn", "ids.safetensors", "--model", "token", "--context", 64, "--out", "ids"
    )
    assert learned.returncode == 0
    compared = run(folder, "compare", "ids.safetensors", "ids/model.safetensors")
    assert compared.returncode == 0
    refused = run(folder, "learn", "ids.safetensors", "--out", "other")
    assert refused.returncode == 3
    assert "takes ids of a vocabulary" in refused.stderr


def test_what_is_found_out_unless_it_is_given_may_be_no(folder):
    words = ["--model", "feed-forward", "--dim", 6, "--activation", "gelu"]
    for flag in ("--gated", "--no-gated"):
        done = run(folder, "plan", *words, flag)
        assert done.returncode == 0, done.stderr


def test_plan_of_labels(folder):
    done = run(folder, "plan", "--model", "labels", "--dim", 64, "--bits", 50)
    assert done.returncode == 0
    assert "216,972" in done.stdout
    paper = ["--method", "paper", "--norm-bound", 2, "--margin", 0.125]
    shown = run(folder, "plan", "--model", "labels", "--dim", 64, "--bits", 21, *paper, "--json")
    assert json.loads(shown.stdout)["queries"] > 10**28


def test_learn_from_labels(folder):
    with (folder / "mine.py").open("a") as source:
        source.write("\ndef labels(X):\n    return head(X) > 0\n")
    words = ["--model", "labels", "--dim", 6, "--bits", 30, "--out"]
    done = run(folder, "learn", "mine:labels", *words, "found")
    assert done.returncode == 0, done.stderr
    found = us.load(folder / "found" / "model.safetensors")
    rng = np.random.default_rng(7)
    W, v = rng.standard_normal((6, 6)), rng.standard_normal(6)
    assert np.allclose(found.W, W, rtol=0, atol=1e-7)
    assert np.allclose(found.v, v / np.linalg.norm(v), rtol=0, atol=1e-7)
    values = run(folder, "learn", "mine:head", *words, "other")
    assert values.returncode == 3
    assert "us.oracles.labels" in values.stderr


def test_a_learner_that_cannot_be_run_is_a_sentence(folder):
    words = ["--model", "sensing", "--dim", 384, "--rank", 32]
    assert run(folder, "plan", *words).returncode == 0
    done = run(folder, "learn", "mine:head", *words, "--out", "o")
    assert done.returncode == 2
    assert "low-rank" in done.stderr or "LowRankHead" in done.stderr
    assert "Traceback" not in done.stderr


LAYER = """

A, w_o, bias = rng.standard_normal((6, 9)), rng.standard_normal(9), rng.standard_normal(9)
K, Q = rng.standard_normal((2, 2, 6))

def network(X):
    return np.maximum(X[:, 0] @ A + bias, 0) @ w_o

def layer(X, W=K.T @ Q):
    scores = np.einsum("bnd,de,be->bn", X, W, X[:, -1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return network(np.einsum("bn,bnd->bd", weights, X)[:, None])
"""


def test_learn_a_network_and_what_stands_before_it(folder):
    with (folder / "mine.py").open("a") as source:
        source.write(LAYER)
    words = ["--model", "relu-network", "--dim", 6, "--polish", "--out", "network"]
    done = run(folder, "learn", "mine:network", *words)
    assert done.returncode == 0, done.stderr
    assert "more per ‖x‖" in done.stdout
    # the part that knows a setting gets it: the rank is the head's, the neurons the network's
    words = ["--model", "transformer", "--dim", 6, "--rank", 2, "--max-neurons", 12, "--anchored"]
    assert run(folder, "plan", *words).returncode == 0
    done = run(folder, "learn", "mine:layer", *words, "--out", "layer", "--json")
    assert done.returncode == 0, done.stderr
    found = us.load(folder / "layer" / "model.safetensors")
    rng = np.random.default_rng(7)
    rng.standard_normal((6, 6)), rng.standard_normal(6)
    A, w_o, bias = rng.standard_normal((6, 9)), rng.standard_normal(9), rng.standard_normal(9)
    K, Q = rng.standard_normal((2, 2, 6))
    true = us.Transformer(K.T @ Q, us.ReluNetwork(A, w_o, bias))
    assert us.equivalent(found, true, rtol=1e-8)
    assert us.equivalent(us.load(folder / "network" / "model.safetensors"), true.network)
    true.save(folder / "true.safetensors")
    files = ["layer/model.safetensors", "true.safetensors", "--rtol", 1e-8]
    shown = run(folder, "compare", *files)
    assert shown.returncode == 0
    assert "canonical form" in shown.stdout
    true.network.save(folder / "alone.safetensors")
    other = run(folder, "compare", "layer/model.safetensors", "alone.safetensors", "--json")
    assert other.returncode == 1
    assert json.loads(other.stdout)["by"] == "shape"


def test_a_head_behind_a_network_that_nobody_can_learn(folder):
    with (folder / "mine.py").open("a") as source:
        source.write(
            LAYER.replace("np.maximum(X[:, 0] @ A + bias, 0)", "np.logaddexp(0, X[:, 0] @ A)")
        )
    words = ["--model", "antisymmetric", "--dim", 6, "--rank", 2]
    assert run(folder, "plan", *words).returncode == 0
    done = run(folder, "learn", "mine:layer", *words, "--out", "head", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["learner"]["of"]["learner"] == "LowRankHead"


# -- several heads


def test_learn_several_heads(folder):
    rng = np.random.default_rng(0)
    true = us.MultiHead(rng.standard_normal((3, 6, 6)) / 2, rng.standard_normal((3, 6)))
    true.save(folder / "true.safetensors")
    words = ["--model", "multi-head", "--max-heads", 5, "--out", "found"]
    assert run(folder, "plan", "--model", "multi-head", "--dim", 6, *words[2:4]).returncode == 0
    done = run(folder, "learn", "true.safetensors", *words)
    assert done.returncode == 0, done.stderr
    assert "3 heads" in done.stdout
    files = ["found/model.safetensors", "true.safetensors"]
    assert run(folder, "compare", *files).returncode == 0
    few = run(folder, "learn", "true.safetensors", *words[:2], "--max-heads", 2, "--out", "few")
    assert few.returncode == 3
    assert "max_heads" in few.stderr
    shown = run(folder, "learn", "true.safetensors", "--model", "sensing", "--out", "none")
    assert shown.returncode == 2
    assert "--rank is missing" in shown.stderr


def test_learn_orthogonal_heads(folder):
    rng = np.random.default_rng(0)
    E = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    parts = [E[:, :2], E[:, 2:]]
    W = [U @ rng.standard_normal((U.shape[1],) * 2) @ U.T for U in parts]
    v = [U @ rng.standard_normal(U.shape[1]) for U in parts]
    us.MultiHead(W, v).save(folder / "true.safetensors")
    words = ["--model", "orthogonal-heads", "--out", "found"]
    done = run(folder, "learn", "true.safetensors", *words)
    assert done.returncode == 0, done.stderr
    files = ["found/model.safetensors", "true.safetensors"]
    assert run(folder, "compare", *files).returncode == 0
    us.MultiHead(rng.standard_normal((2, 5, 5)), v).save(folder / "other.safetensors")
    other = run(folder, "learn", "other.safetensors", *words[:2], "--out", "other")
    assert other.returncode == 3
    assert "MultiHeadLearner" in other.stderr


# -- a learner of the user's own

OWN = """
class Broken(ValueVector):
    def steps(self, checks):
        [v] = yield [Singles(UnitVectors(self.dim), phase="v", purpose="data")]
        raise ValueError("no idea")

class Endless(Broken):
    def steps(self, checks):
        yield from super().steps(checks)[:1]

class NoPlan(ValueVector):
    def plan(self):
        return {}

class Half:
    revision = 1
    def plan(self): ...

MADE = ValueVector(5, seed=3)
number = 7
"""


def test_an_own_learner_is_named_on_the_command_line(folder):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "own_learner.md").read_text()
    [code] = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    (folder / "mine.py").write_text(code.partition("\nsecret =")[0] + OWN)
    truth = us.SingleHead(np.zeros((5, 5)), np.arange(1.0, 6.0))
    truth.save(folder / "truth.safetensors")
    words = ["learn", "truth.safetensors", "--model"]
    for name in ("ValueVector", "MADE"):  # the target knows its dimension
        done = run(folder, *words, f"mine:{name}", "--out", name)
        assert done.returncode == 0, done.stderr
        assert np.array_equal(us.load(folder / name / "model.safetensors").v, truth.v)
    again = run(folder, *words, "mine:ValueVector", "--out", "ValueVector", "--seed", 0)
    assert again.returncode == 0
    assert "5 queries" not in again.stderr
    assert run(folder, "plan", "--model", "mine:ValueVector", "--dim", 4).returncode == 0
    assert run(folder, "report", "MADE").returncode == 0
    for named, more, says in (
        ("mine:Half", (), "mine:Half is no learner: Half has no steps, settings"),
        ("mine:number", (), "mine:number is no learner: int has no"),
        ("mine:absent", (), "cannot be imported"),
        (":x", (), "':x' names no Learner: give module:Learner"),
        ("mine:ValueVector", ("--rank", 2), "--rank is no setting of --model mine:ValueVector"),
        ("mine:MADE", ("--seed", 2), "--seed is no setting of --model mine:MADE"),
        ("mine:MADE", ("--dim", 4), "mine:MADE takes tokens of dimension 5, not 4"),
        ("mine:NoPlan", (), "mine:NoPlan.plan() must return a Plan; it returned dict"),
        ("mine:Broken", (), "mine:Broken failed: ValueError: no idea"),
        ("mine:Endless", (), "mine:Endless failed: TypeError"),
        ("mine:ValueVector", ("--workers", 9_999), "workers"),
    ):
        done = run(folder, *words, named, *more, "--out", "other", "--json")
        assert done.returncode == 2, (named, done.stderr)
        assert says in done.stderr
        assert "a bug in unsoftmax" not in done.stderr
        shutil.rmtree(folder / "other", ignore_errors=True)
    missing = run(folder, "plan", "--model", "mine:ValueVector")
    assert (missing.returncode, "--dim is missing" in missing.stderr) == (2, True)
    refused = run(folder, "defend", "truth.safetensors", "--model", "mine:MADE", "--out", "d")
    assert refused.returncode == 2


# -- options that all commands have


def test_a_file_holds_options(folder):
    (folder / "run.toml").write_text(
        'target = "mine:head"\nmodel = "exact"\ndim = 6\nout = "kept"\nholdout = 8\njson = true\n'
    )
    done = run(folder, "learn", "--run", "run.toml", "--holdout", 4, "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["evidence"]["queries"] == 4
    assert json.loads(done.stdout)["out"] == "kept"
    again = run(folder, "learn", "--run", "run.toml", "--holdout", 4)
    assert again.returncode == 0
    assert run(folder, "learn", "nowhere:f", "--run", "run.toml").returncode == 2
    for text, says in (
        ("dim = 2.5", "'2.5' was given; a whole number is wanted"),
        ("dim = true", "dim is a number or a text; it was True"),
        ("json = 1", "json is true or false; it was 1"),
        ("colour = 3", "colour is no option of learn"),
        ("run = 'x'", "run is no option of learn"),
        ("dim = ", "cannot be read"),
    ):
        (folder / "wrong.toml").write_text(f'target = "mine:head"\nout = "kept"\n{text}\n')
        wrong = run(folder, "learn", "--run", "wrong.toml")
        assert wrong.returncode == 2
        assert says in " ".join(wrong.stderr.replace("│", " ").split())
    absent = run(folder, "plan", "--run", "absent.toml")
    assert (absent.returncode, "absent.toml cannot be read" in absent.stderr) == (2, True)


def test_a_shell_completes_commands_and_options(folder):
    for words, expected in (("unsoftmax le", "learn"), ("unsoftmax learn --bu", "--budget")):
        told = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        told |= {"_UNSOFTMAX_COMPLETE": "complete_bash"}
        done = subprocess.run(
            [COMMAND], env={**os.environ, **told}, capture_output=True, text=True, check=False
        )
        assert expected in done.stdout.split()


# -- a plain algorithm in the role of A_FFN


def test_a_function_learns_the_network(folder):
    (folder / "ffn.py").write_text(textwrap.dedent(ALGORITHMS))
    words = ["learn", "ffn:target", "--model", "transformer", "--dim", 3, "--network"]
    done = run(folder, *words, "ffn:axes", "--slope-error", 1e-14, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "Importing ffn and calling axes" in done.stderr
    assert "learned by ffn:axes" in done.stdout
    found = us.load(folder / "out" / "model.safetensors").W
    assert np.allclose(found, np.random.default_rng(1).standard_normal((3, 3)), rtol=0, atol=1e-9)
    plan = run(folder, "plan", "--model", "transformer", "--dim", 3, "--network", "ffn:axes")
    assert "ffn:axes" in plan.stdout
    for name, status, says in (
        ("broken", 2, "ffn:broken failed: ValueError"),
        ("nothing", 2, "ffn:nothing must return a ReluNetwork"),
        ("absent", 2, "cannot be imported"),
    ):
        done = run(folder, *words, f"ffn:{name}", "--out", name, "--json")
        assert done.returncode == status
        assert says in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("name", ["computing", "stubborn"])
def test_one_ctrl_c_ends_an_algorithm_that_never_does(folder, name):
    (folder / "ffn.py").write_text(textwrap.dedent(ALGORITHMS))
    words = ["learn", "ffn:target", "--model", "transformer", "--dim", "3", "--out", "o"]
    interrupt(folder, [*words, "--network", f"ffn:{name}"], (folder / "computes.txt").exists)


FAULTY = """
import unsoftmax as us
import unsoftmax.questions.verification, unsoftmax.learners.single_head.exact as exact
model = us.load("m.safetensors")
def wrong(*args, **options):
    raise LookupError("no such [bold]head[/]")
def out_of_memory(*args, **options):
    raise MemoryError
unsoftmax.questions.verification.judged = wrong
def head(X):
    return model(X)
def large(X):
    unsoftmax.questions.verification.judged = out_of_memory
    return model(X)
"""


def test_a_fault_of_our_own_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "judged", verification.judged)  # what the target replaces
    us.SingleHead(np.eye(3), np.ones(3)).save(tmp_path / "m.safetensors")
    (tmp_path / "faulty.py").write_text(FAULTY)
    words = ("verify", "faulty:head", "--weights", "m.safetensors", "--ledger", "l.sqlite")
    done = started(tmp_path, *words, "--json")
    assert (done.returncode, "Traceback" in done.stderr) == (70, False)
    content = json.loads(done.stdout)
    assert (content["error"], content["status"]) == ("LookupError", 70)
    assert content["message"] in done.stderr
    assert "no such [bold]head[/]" in done.stderr
    assert "Every answer so far is in l.sqlite" in done.stderr
    assert "This is a bug in unsoftmax" in done.stderr
    [path] = re.findall(r"with (\S+unsoftmax-fault-\S+\.txt),", done.stderr)
    report = Path(path).read_text()
    Path(path).unlink()
    assert "raise LookupError" in report
    assert "unsoftmax verify faulty:head --weights m.safetensors" in report
    assert f"numpy {np.__version__}" in report
    shown = run(tmp_path, *words, "--debug")
    assert (shown.returncode, shown.stdout) == (70, "")
    assert "raise LookupError" in shown.stderr
    large = run(tmp_path, "verify", "faulty:large", *words[2:4])
    assert (large.returncode, "a bug" in large.stderr) == (70, False)
    assert "not enough memory" in large.stderr


def test_a_table_is_no_setting_of_a_learner_that_looks_nothing_up(tmp_path):
    """What a table's vectors say of the dimension is of learners that take one."""
    np.save(tmp_path / "table.npy", np.zeros((80, 6)))
    with pytest.raises(Refusal, match="--table is no setting of --model token"):
        build("token", {"vocabulary": 80, "table": tmp_path / "table.npy"})

"""SARIF files: of the schema, one rule for each outcome, and what an exit status says as well."""

import json

import numpy as np
import pytest

import unsoftmax as us
from tests.commands import run
from unsoftmax.report.sarif import RULES

# The part of the schema of SARIF 2.1.0 that these files use: every property that is there has to
# be one of these, "!" is required.
SCHEMA = {
    "$schema": str,
    "version!": {"2.1.0"},
    "runs!": [
        {
            "tool!": {
                "driver!": {
                    "name!": str,
                    "version": str,
                    "rules": [
                        {
                            "id!": str,
                            "name": str,
                            "shortDescription": {"text!": str},
                            "fullDescription": {"text!": str},
                            "defaultConfiguration": {"level": {"none", "note", "warning", "error"}},
                        }
                    ],
                }
            },
            "columnKind": {"utf16CodeUnits", "unicodeCodePoints"},
            "results": [
                {
                    "ruleId": str,
                    "ruleIndex": int,
                    "kind": {"notApplicable", "pass", "fail", "review", "open", "informational"},
                    "level": {"none", "note", "warning", "error"},
                    "message!": {"text": str},
                    "locations": [
                        {
                            "physicalLocation": {
                                "artifactLocation": {"uri": str},
                                "region": {"startLine": int},
                            },
                            "logicalLocations": [{"fullyQualifiedName": str, "kind": str}],
                        }
                    ],
                }
            ],
        }
    ],
}


def checked(content, schema=SCHEMA, place="sarif"):
    """Hold content against the part of the schema that it uses."""
    if isinstance(schema, dict):
        assert isinstance(content, dict), place
        required = {name[:-1] for name in schema if name.endswith("!")}
        known = {name.rstrip("!"): part for name, part in schema.items()}
        assert required <= content.keys() <= known.keys(), (place, content.keys())
        for name, part in content.items():
            checked(part, known[name], f"{place}.{name}")
    elif isinstance(schema, list):
        assert isinstance(content, list), place
        for k, part in enumerate(content):
            checked(part, schema[0], f"{place}[{k}]")
    elif isinstance(schema, set):
        assert content in schema, (place, content)
    else:
        assert type(content) is schema, (place, content)


def result_of(path):
    """Return the one result of a file of the schema."""
    content = json.loads(path.read_text(encoding="utf-8"))
    checked(content)
    [one] = content["runs"][0]["results"]
    rules = content["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.id for rule in RULES]
    assert rules[one["ruleIndex"]]["id"] == one["ruleId"]
    # SARIF 2.1.0, 3.27.10: what is no failure has the level "none"
    assert (one["level"] == "none") == (one["kind"] != "fail")
    return one


@pytest.fixture
def served(tmp_path):
    rng = np.random.default_rng(0)
    model = us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
    model.save(tmp_path / "my weights.safetensors")
    W = model.W + 1e-3 * rng.standard_normal((4, 4))
    us.SingleHead(W, model.v).save(tmp_path / "other.safetensors")
    us.SingleHead(np.eye(3), np.ones(3)).save(tmp_path / "small.safetensors")
    (tmp_path / "targets.py").write_text(
        "import numpy as np, unsoftmax as us\n"
        "f = us.load('my weights.safetensors')\n"
        "coarse = us.oracles.rounded(f, 0)\n"
        "def constant(X): return np.ones(len(X))\n"
        "def strange(X): return np.sin(9 * X).sum(axis=(1, 2)) * X.shape[1] ** 2\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("target", "status", "rule", "kind"),
    [
        ("my weights.safetensors", 0, "different-weights", "pass"),
        ("other.safetensors", 1, "different-weights", "fail"),
        ("small.safetensors", 1, "different-weights", "fail"),
        ("targets:constant", 3, "undecided-weights", "fail"),
    ],
)
def test_a_verification_is_an_alert_where_it_fails(served, target, status, rule, kind):
    words = "--weights", "my weights.safetensors", "--sarif", "out/v.sarif"
    done = run(served, "verify", target, *words)
    assert done.returncode == status, done.stderr
    one = result_of(served / "out/v.sarif")
    assert (one["ruleId"], one["kind"]) == (rule, kind)
    place = one["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == "my%20weights.safetensors"
    if target == "other.safetensors":
        assert one["level"] == "error"
        assert one["message"]["text"].endswith("Changed: W.")


@pytest.mark.parametrize(
    ("target", "rule", "kind"),
    [
        ("targets:f", "recoverable-parameters", "fail"),
        ("targets:constant", "recoverable-parameters", "pass"),
        ("targets:strange", "undecided-target", "fail"),
    ],
)
def test_an_audit_is_an_alert_where_a_learner_exists(served, target, rule, kind):
    run(served, "audit", target, "--dim", 4, "--out", "a", "--sarif", "a.sarif", "--no-report")
    one = result_of(served / "a.sarif")
    assert (one["ruleId"], one["kind"]) == (rule, kind)


def test_what_is_no_file_of_the_schema_fails_the_check():
    for content in ({}, {"version": "2.0.0", "runs": []}, {"version": "2.1.0", "runs": [{}]}):
        with pytest.raises(AssertionError):
            checked(content)


def test_a_sarif_file_that_cannot_be_written_is_said_before_anything_is_asked(served):
    for place, said in (("targets.py/v.sarif", "cannot be written"), (".", "is a folder")):
        words = "--weights", "my weights.safetensors", "--sarif", place
        done = run(served, "verify", "targets:nothing_is_called", *words)
        assert done.returncode == 2
        assert said in done.stderr


def test_verify_keeps_its_ledger_beside_the_result_and_asks_anew_the_next_time(served):
    """A finished check answers from no ledger: what is served now would not show."""
    words = "--weights", "my weights.safetensors", "--out", "kept", "--no-report"
    paid = []
    for _ in range(2):
        done = run(served, "verify", "my weights.safetensors", *words, "--json")
        assert done.returncode == 0, done.stderr
        paid.append(json.loads(done.stdout)["queries"])
        assert (served / "kept/verification.sqlite").is_file()
    assert paid[0] == paid[1] == 20
    assert (served / "kept/verification.before.sqlite").is_file()
    changed = run(served, "verify", "other.safetensors", *words)
    assert changed.returncode == 1, changed.stderr


def test_an_out_that_is_empty_is_refused(served):
    for words in (["verify", "--weights", "my weights.safetensors"], ["audit", "--dim", "4"]):
        done = run(served, words[0], "targets:f", *words[1:], "--out", "")
        assert done.returncode == 2
        assert "--out is empty. Name a folder" in done.stderr


def test_the_file_that_is_wrong_is_named(served):
    """A damaged model is no fault of the recovery beside it."""
    model = us.load(served / "my weights.safetensors")
    us.learn(model, us.learners.ExactHead(4)).save(served / "found")
    (served / "found/model.safetensors").write_bytes(b"")
    for words in (["report", "found"], ["compare", "other.safetensors", "found"]):
        done = run(served, *words)
        assert done.returncode == 2
        assert "found/model.safetensors is not a readable" in done.stderr
        assert "recovery.json" not in done.stderr


def test_a_float16_service_is_told_to_be_asked_in_float32(served):
    half = "def half(X): return f(X).astype(np.float16)\n"
    (served / "halves.py").write_text((served / "targets.py").read_text() + half)
    done = run(served, "verify", "halves:half", "--weights", "my weights.safetensors")
    assert "A replica that answers in float32 would decide" in done.stdout

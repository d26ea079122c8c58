"""One name and one meaning for what several learners are told; old spellings until 0.2.0."""

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import unsoftmax as us
from tests.attention_layers import layer
from tests.commands import run
from unsoftmax.old_spellings import OLD, as_spelled_now

LEARNERS = [*us.learners.BY_NAME.values(), us.learners.NetworkAlgorithm]
TABLE = Path(__file__).parents[2] / "docs" / "learners.md"
Layer = us.learners.AttentionLayerLearner


def settings_of(learner):
    return {field.name: field for field in fields(learner)}


def test_settings_that_learners_share_agree():
    """Same name, same type, and a default wherever it need not be known."""
    for learner in LEARNERS:
        own = settings_of(learner)
        assert not {"head_dim", "profile", "heads", "accuracy"} & own.keys(), learner
        if learner is not us.learners.Antisymmetric:
            assert own["seed"].default == 0
        if "max_heads" in own:
            assert own["max_heads"].default == 64
        for name in ("polish", "rotary"):
            assert name not in own or not own[name].default
        if "rank" in own:
            needed = learner is us.learners.SensingHead
            assert own["rank"].default is (MISSING if needed else None)
    for function in (*map(us.oracles.__getattribute__, us.oracles.__all__), us.verify, us.audit):
        seed = inspect.signature(function).parameters.get("seed")
        assert seed is None or seed.default == 0, function


def test_the_table_of_settings_is_true():
    text = TABLE.read_text().split("## Settings")[1].split("\n- ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    named = {row[0].strip("`"): row[1:] for row in rows}
    shown = [one for one in LEARNERS if one is not us.learners.NetworkAlgorithm]
    assert named.keys() == {one.__name__ for one in shown}
    for learner in shown:
        own = settings_of(learner)
        rank, heads, biases, polish, rotary = named[learner.__name__]
        assert (rank != "–") == ("rank" in own)
        assert ("found" in rank) == ("rank" in own and own["rank"].default is None)
        assert (heads != "–") == ("max_heads" in own)
        assert ("`biases`" in biases) == ("biases" in own)
        assert (polish != "–") == ("polish" in own)
        assert (rotary != "–") == ("rotary" in own)


def test_old_spellings_make_the_same_learner():
    old: dict[str, Any] = {"head_dim": 2, "profile": "finest", "max_heads": None}
    with pytest.warns(DeprecationWarning, match=r"(spelled|changed) .*0\.2\.0"):
        made = Layer(8, **old)
    assert made == Layer(8, rank=2, polish=True)
    with pytest.warns(DeprecationWarning, match="head_dim is spelled rank"):
        assert made.head_dim == 2  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="profile is spelled polish"):
        assert made.profile == "finest"  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="spelled|changed"):
        assert Layer(8, None, 2, None, "finest") == made  # type: ignore[arg-type]
    warned = pytest.warns(DeprecationWarning, match="spelled rank")
    with warned, pytest.raises(TypeError, match="old name of rank"):
        Layer(8, rank=2, head_dim=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        Layer(8, dim=8)  # type: ignore[misc]
    for profile, polish in (("auto", None), ("lean", False), ("fine", "fine")):
        with pytest.warns(DeprecationWarning, match="spelled|changed"):
            assert Layer(8, profile=profile).polish == polish  # type: ignore[call-arg]


def test_settings_within_others_are_respelled():
    inner = {"learner": "AttentionLayerLearner", "profile": "lean", "max_heads": None}
    now = as_spelled_now({"learner": "Antisymmetric", "of": inner})
    assert now["of"] == {"learner": "AttentionLayerLearner", "polish": False, "max_heads": 64}


def test_a_ledger_with_old_spellings_goes_on(tmp_path, monkeypatch):
    """What was recorded stands as it was: settings are compared as they are spelled now."""
    place, target, learner = tmp_path / "ledger.sqlite", layer(2, 2, 6), Layer(6)
    as_it_was = {"learner": "AttentionLayerLearner", "dim": 6, "norm": None, "seed": 0}
    as_it_was |= {"head_dim": None, "profile": "auto", "max_heads": None}
    with monkeypatch.context() as patch:
        patch.setattr(Layer, "settings", lambda self: as_it_was)
        recovery = us.learn(target, learner, ledger=place)
    assert us.learn(target, learner, ledger=place).queries <= recovery.queries + 32
    with pytest.raises(us.LedgerMismatch, match="rank was None and is now 2"):
        us.learn(target, Layer(6, rank=2), ledger=place)


def test_the_command_line_takes_old_spellings(tmp_path):
    plan = ("plan", "--model", "attention-layer", "--dim", "8", "--json")
    old = run(tmp_path, *plan, "--head-dim", "2", "--profile", "finest")
    now = run(tmp_path, *plan, "--rank", "2", "--polish")
    assert json.loads(old.stdout) == json.loads(now.stdout)
    assert "--head-dim is --rank now" in old.stderr
    assert "--profile is --polish now" in old.stderr
    assert now.stderr == ""


def test_an_option_for_no_where_yes_is_the_default(tmp_path):
    plan = ("plan", "--model", "relu-network", "--dim", "4", "--no-biases", "--json")
    made = run(tmp_path, *plan)
    assert json.loads(made.stdout)["learner"]["biases"] is False


def test_each_old_spelling_is_of_a_learner_and_is_documented():
    text = TABLE.read_text()
    for name, spellings in OLD.items():
        own = settings_of(getattr(us.learners, name))
        for old in spellings:
            assert old.now in own
            assert re.search(rf"`{old.name}\b", text)

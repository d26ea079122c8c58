"""Settings: named, kept and refused alike by every learner.

They are a ledger's identity: they may not change by how a number was written, and must change with
everything that changes the probes.
"""

import inspect
import json
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import unsoftmax as us
from tests.attention_layers import layer
from tests.commands import run
from unsoftmax.learners.settings import Configured
from unsoftmax.old_spellings import OLD, as_spelled_now


@dataclass(frozen=True, slots=True)
class Toy(Configured):
    dim: int
    rank: int | None = None
    tolerance: float | None = None
    biases: bool = False
    probes: Literal["a", "b"] = "a"
    bases: Any = None
    seed: int = 0
    later: float = field(default=0.5, kw_only=True)

    revision = 3


# -- the same settings, however they were written


def test_settings_are_the_fields_by_name():
    assert Toy(4).settings() == {
        "learner": "Toy",
        "dim": 4,
        "rank": None,
        "tolerance": None,
        "biases": False,
        "probes": "a",
        "bases": None,
        "seed": 0,
    }


def test_public_learners_keep_the_settings_that_ledgers_hold():
    """Written before settings were derived from fields, and before there were knobs."""
    L = us.learners
    assert json.dumps(L.ExactHead(8).settings()) == (
        '{"learner": "ExactHead", "dim": 8, "biases": false, "probes": "balanced", "seed": 0}'
    )
    assert json.dumps(L.LowRankHead(8, 2, tolerance=1).settings()) == (
        '{"learner": "LowRankHead", "dim": 8, "rank": 2, "biases": false, "tolerance": 1.0, '
        '"seed": 0}'
    )
    assert json.dumps(L.SensingHead(8, 2, seed=3).settings()) == (
        '{"learner": "SensingHead", "dim": 8, "rank": 2, "measurements": null, "seed": 3}'
    )


def test_settings_that_came_later_are_named_where_they_are_given():
    """A ledger that was written before stays valid."""
    assert Toy(4, later=0.5).settings() == Toy(4).settings()
    assert Toy(4, later=2).settings() == {**Toy(4).settings(), "later": 2.0}
    plain = us.learners.ApproximateHead(8, 0.1, 2.0, probes="paper")
    later = us.learners.ApproximateHead(8, 0.1, 2.0, probes="paper", single_tolerance=0.05)
    assert later.settings() == {**plain.settings(), "single_tolerance": 0.05} != plain.settings()


@pytest.mark.parametrize(
    ("plain", "numpy"),
    [
        ({"rank": 2, "tolerance": 0.5}, {"rank": np.int8(2), "tolerance": np.float64(0.5)}),
        ({"dim": 4, "biases": True}, {"dim": np.int64(4), "biases": np.True_}),
        ({"tolerance": 1.0}, {"tolerance": np.int64(1)}),
        ({"tolerance": 1}, {"tolerance": np.float32(1)}),
        ({"seed": 7}, {"seed": np.uint8(7)}),
    ],
)
def test_numpy_numbers_are_the_numbers_they_hold(plain, numpy):
    plain, numpy = (Toy(**{"dim": 4, **fields}) for fields in (plain, numpy))
    assert json.dumps(numpy.settings()) == json.dumps(plain.settings())
    types = {name: type(value) for name, value in numpy.settings().items()}
    assert types == {name: type(value) for name, value in plain.settings().items()}


def test_arrays_are_named_by_their_shape_and_bits():
    a, b = (Toy(4, bases=x).settings()["bases"] for x in (np.eye(2), np.eye(2).reshape(1, 4)))
    assert a != b
    assert a == Toy(4, bases=np.eye(2)).settings()["bases"]
    assert len(a) == 64
    assert Toy(4, bases=[np.eye(2), np.eye(2)]).settings()["bases"] == [a, a]


def test_learners_inside_are_nested_with_their_revision():
    settings = Toy(4, bases=Toy(2)).settings()["bases"]
    assert settings == {**Toy(2).settings(), "revision": 3}


# -- one name and one meaning for what several learners are told; old spellings until 0.2.0


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


# -- settings out of range are refused by name: those that learners share, and each one's own


NEEDED: dict[str, dict[str, Any]] = {
    "sensing": {"rank": 2},
    "approximate": {"tolerance": 1e-6},
    "labels": {"bits": 20},
    "multi-head": {"max_heads": 3},
    "multi-head-transformer": {"max_heads": 3},
    "orthogonal-heads": {"subspaces": [np.eye(4)[:, :2], np.eye(4)[:, 2:]]},
}


L = us.learners

# Of a setting that several have: values that are out of range, and those of another type.
SHARED: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "dim": ((0, -1), (2.5, True)),
    "seed": ((-1,), (0.5,)),
    "biases": ((), (1, "no", None)),
    "rank": ((-1, 5), (1.0,)),
    "max_heads": ((0,), (2.0, 2.5)),
    "radius": ((0.0, np.inf), ("1",)),
    "tolerance": ((0.0,), ("small",)),
}

PAPER: dict[str, Any] = {"bits": None, "method": "paper", "norm_bound": 2.0, "margin": 0.5}
BIT: dict[str, Any] = {"bits": 1, "method": "paper", "norm_bound": 2.0, "margin": 0.7}
PLANES = us.Rotary([1.0])
OPEN: dict[str, Any] = {"rotary": False}
LEFT, RIGHT = np.eye(4)[:, :2], np.eye(4)[:, 1:3]

# A learner by the name that the command line gives it, settings beside dim = 4, and what is said.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("exact", {"probes": "best"}, "probes"),
    ("low-rank", {"rotary": True, "tolerance": 1e-3}, "tolerance"),
    ("low-rank", {"rotary": True, "biases": True}, "rank"),
    ("low-rank", {"rotary": PLANES, "rank": 4}, "too few"),
    ("low-rank", {"rotary_base": 1e4}, "rank"),
    ("low-rank", {"rotary_base": -1.0, "rank": 4}, "rotary_base"),
    ("low-rank", {"rotary_base": 1e4, "rotary": us.Rotary([1.0, 0.1]), "rank": 4}, "beside"),
    ("low-rank", {"rotary_base": 1e4, "rank": 3}, "even"),
    ("sensing", {"measurements": 0}, "measurements"),
    ("approximate", {"norm_bound": -1.0}, "norm_bound"),
    ("approximate", {"repeats": 0}, "repeats"),
    ("approximate", {"probes": "gaussian"}, "probes"),
    ("approximate", {"probes": "paper"}, "norm_bound must be given"),
    ("approximate", {"probes": "paper", "norm_bound": 1.5}, "2 or more"),
    ("approximate", {"probes": "paper", "norm_bound": 2.0, "radius": 0.5}, "radius must be 1"),
    ("approximate", {"single_tolerance": 0.05}, "alone"),
    ("approximate", {"single_tolerance": 0.0}, "single_tolerance"),
    ("approximate", {"probes": "paper", "norm_bound": 2.0, "single_tolerance": 0.2}, "at most"),
    ("labels", {"bits": 3}, "^bits must be"),
    ("labels", {"bits": 53}, "^bits must be"),
    ("labels", {"bits": None}, "^bits must be given"),
    ("labels", {"method": "average"}, "^method must be"),
    ("labels", {"margin": 0.9}, "^margin must be"),
    ("labels", {"norm_bound": -2.0}, "^norm_bound must be"),
    ("labels", {"error": 0.1}, "^error, failure and sample_share go with"),
    ("labels", {"failure": 0.1}, "^error, failure and sample_share go with"),
    ("labels", {"bits": 1, "method": "paper"}, "needs norm_bound"),
    ("labels", {"bits": 1, "method": "paper", "norm_bound": 2.0}, "needs margin"),
    ("labels", {**BIT, "margin": 0.8}, "^margin must be"),
    ("labels", {**BIT, "norm_bound": np.inf}, "^norm_bound must be"),
    ("labels", PAPER, "needs either bits or error"),
    ("labels", {**PAPER, "bits": 3, "error": 0.1}, "needs either bits or error"),
    ("labels", {**PAPER, "error": 0.1, "norm_bound": 1.9}, "^norm_bound must be"),
    ("labels", {**PAPER, "error": 2.0}, "^error must be"),
    ("labels", {**PAPER, "error": 1e-61}, "^error must be"),
    ("labels", {**PAPER, "error": 0.1, "failure": 1.0}, "^failure must be"),
    ("labels", {**PAPER, "error": 0.1, "sample_share": 1.5}, "^sample_share must be"),
    ("labels", {**PAPER, "error": 0.1, "sample_share": 1e-9}, "^sample_share must be"),
    ("relu-network", {"max_neurons": -1}, "max_neurons"),
    ("transformer", {"attention": "global"}, "attention"),
    ("transformer", {"head": L.ExactHead(5)}, "head"),
    ("transformer", {"head": L.LowRankHead(4)}, "rank"),
    ("transformer", {"head": L.ExactHead(4, probes="paper")}, "probes"),
    ("transformer", {"head": L.LowRankHead(4, 1, tolerance=0.1)}, "tolerance"),
    ("transformer", {"network": L.ReluNetworkLearner(5)}, "network"),
    ("transformer", {"attention": "antisymmetric", "anchored": True}, "anchored"),
    (
        "transformer",
        {"attention": "antisymmetric", "head": L.ExactHead(4, biases=True)},
        "query biases",
    ),
    ("multi-head", {"rank": 0}, "rank"),
    ("multi-head", {"rotary": True, "biases": True, "polish": True}, "or without biases"),
    ("multi-head", {"rotary": True, "functional": True}, "functional"),
    ("multi-head", {"rotary": True, "radius": 100.0}, "radius"),
    ("multi-head", {"rotary": True, "dim": 1}, "dim"),
    ("multi-head", {"rotary": True, "rotary_base": 1e4}, "rank"),
    ("multi-head", {"rotary": PLANES, "rank": 4}, "too few"),
    ("attention-layer", {"norm": "layer"}, "norm"),
    ("attention-layer", {"polish": "best"}, "polish"),
    ("attention-layer", {"rotary": True, "norm": "pre"}, "without a norm"),
    ("attention-layer", {**OPEN, "rotary_base": -1.0}, "rotary_base"),
    ("attention-layer", {"rotary": PLANES, "rotary_base": 1e4}, "beside"),
    ("attention-layer", {**OPEN, "rotary_base": 1e4, "rank": 3}, "even"),
    ("feed-forward", {"norm": "post"}, "dim must be 5 or more"),
    ("feed-forward", {"norm": "before"}, "norm must be one of None, 'pre', 'post'"),
    ("orthogonal-heads", {"tokens": "many"}, 'tokens must be "few" or "all"'),
    ("orthogonal-heads", {"subspaces": []}, "leave it out"),
    ("orthogonal-heads", {"subspaces": [np.eye(3)]}, "shape"),
    ("orthogonal-heads", {"subspaces": [np.ones(4)]}, "shape"),
    ("orthogonal-heads", {"subspaces": [np.full((4, 1), np.nan)]}, "finite"),
    ("orthogonal-heads", {"subspaces": [2 * LEFT]}, "not orthonormal"),
    ("orthogonal-heads", {"subspaces": [LEFT, RIGHT]}, "not orthogonal to each other"),
]
# The same, of another type.
OF_ANOTHER_TYPE: list[tuple[str, dict[str, Any], str]] = [
    ("low-rank", {"rotary": 1.0}, "rotary"),
    ("sensing", {"measurements": 9.5}, "measurements"),
    ("approximate", {"repeats": 1.5}, "repeats"),
    ("labels", {"bits": 8.5}, "^bits must be"),
    ("labels", {**BIT, "norm_bound": "2"}, "^norm_bound must be"),
    ("labels", {**PAPER, "error": "1"}, "^error must be"),
    ("relu-network", {"max_neurons": 2.0}, "max_neurons"),
    ("transformer", {"anchored": 1}, "anchored"),
    ("transformer", {"head": L.ReluNetworkLearner(4)}, "head"),
    ("transformer", {"network": us.ReluNetwork(np.eye(4), np.ones(4))}, "network"),
    ("multi-head", {"polish": None}, "polish"),
    ("multi-head", {"functional": "yes"}, "functional"),
    ("multi-head", {"rotary": 1.0}, "rotary"),
    ("attention-layer", {"rotary": 1.0}, "rotary"),
    ("relu-network", {"polish": "yes"}, "polish"),
]


def told(kind: str, settings: dict[str, Any]) -> tuple[type[Exception] | None, str]:
    """How a learner refuses settings; nothing if it takes them."""
    try:
        size = {"vocabulary": 5} if kind == "token" else {"dim": 4}
        L.BY_NAME[kind](**{**size, **NEEDED.get(kind, {}), **settings})
    except (ValueError, TypeError) as error:
        return type(error), str(error)
    return None, ""


def offenders(rows: list[tuple[str, dict[str, Any], str]], error: type[Exception]) -> list[Any]:
    """Those that are refused otherwise."""
    said = [(*row, *told(*row[:2])) for row in rows]
    return [row for row in said if row[3] is not error or not re.search(row[2], row[4])]


def test_what_learners_share_is_refused_by_its_name():
    for place, error in enumerate((ValueError, TypeError)):
        rows: list[tuple[str, dict[str, Any], str]] = [
            (kind, {name: value}, rf"\b{name}\b")
            for kind, learner in L.BY_NAME.items()
            for name in {field.name for field in fields(learner)} & SHARED.keys()
            for value in SHARED[name][place]
        ]
        assert len(rows) > 30
        assert offenders(rows, error) == []


def test_what_is_a_learners_own_is_refused_by_its_name():
    assert offenders(WRONG, ValueError) == []
    assert offenders(OF_ANOTHER_TYPE, TypeError) == []

"""Settings: named, kept and refused alike by every learner."""

import dataclasses
import functools
import inspect
import json
import pickle
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
from unsoftmax.learners.single_head.exact import ExactTuning
from unsoftmax.measure.logit_grid import Stage
from unsoftmax.old_spellings import OLD, as_spelled_now
from unsoftmax.validate.long_sequences import LongSequenceTuning, SequenceShape
from unsoftmax.validate.sequences import HoldoutTuning


@dataclass(frozen=True, slots=True)
class InnerTuning:
    depth: int = 2
    shares: tuple[float, ...] = (0.5, 0.25)


@dataclass(frozen=True, slots=True)
class OuterTuning:
    least: float = 1e-3
    inner: InnerTuning = field(default=InnerTuning())


@dataclass(frozen=True, slots=True)
class Toy(Configured):
    dim: int
    rank: int | None = None
    tolerance: float | None = None
    biases: bool = False
    probes: Literal["a", "b"] = "a"
    bases: Any = None
    seed: int = 0
    tuning: OuterTuning = field(default=OuterTuning(), kw_only=True)

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


# -- knobs


def test_default_knobs_are_not_named():
    assert "tuning" not in Toy(4).settings()
    assert "tuning" not in Toy(4, tuning=OuterTuning(1e-3, InnerTuning(2))).settings()


def test_changed_knobs_alone_are_named_and_nested():
    changed = Toy(4, tuning=OuterTuning(inner=InnerTuning(shares=(1.0,))))
    assert changed.settings() == {**Toy(4).settings(), "tuning": {"inner": {"shares": [1.0]}}}
    both = Toy(4, tuning=OuterTuning(0.5, InnerTuning(depth=3)))
    assert both.settings()["tuning"] == {"least": 0.5, "inner": {"depth": 3}}


def test_tables_among_knobs_are_json():
    long = LongSequenceTuning(shapes=(SequenceShape(64, 0.5),))
    tuning = ExactTuning(holdout=HoldoutTuning(long=long))
    settings = us.learners.ExactHead(8, tuning=tuning).settings()
    assert settings["tuning"] == {"holdout": {"long": {"shapes": [[64, 0.5, "fresh"]]}}}
    assert json.loads(json.dumps(settings)) == settings


def test_knobs_of_another_algorithm_are_refused():
    with pytest.raises(TypeError, match="tuning must be of type OuterTuning"):
        Toy(4, tuning=InnerTuning()).settings()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tuning must be of type ExactTuning"):
        us.learners.ExactHead(4, tuning=HoldoutTuning()).settings()  # type: ignore[arg-type]


def leaves(knobs, path="tuning"):
    """Yield every knob below a dataclass of knobs: its path and its value."""
    for field_ in dataclasses.fields(knobs):
        value, name = getattr(knobs, field_.name), f"{path}.{field_.name}"
        if dataclasses.is_dataclass(value):
            yield name, value
            yield from leaves(value, name)
        else:
            yield name, value


def with_knob(knobs, path, value):
    """Return a copy with the knob at a path (without "tuning") changed."""
    first, _, rest = path.partition(".")
    inner = with_knob(getattr(knobs, first), rest, value) if rest else value
    return dataclasses.replace(knobs, **{first: inner})


NEEDED: dict[str, dict[str, Any]] = {
    "sensing": {"rank": 2},
    "approximate": {"tolerance": 1e-6},
    "labels": {"bits": 20},
    "multi-head": {"max_heads": 3},
    "multi-head-transformer": {"max_heads": 3},
    "orthogonal-heads": {"subspaces": [np.eye(4)[:, :2], np.eye(4)[:, 2:]]},
}
TUNED = [
    name
    for name, kind in us.learners.BY_NAME.items()
    if "tuning" in {field_.name for field_ in dataclasses.fields(kind)}
]


@pytest.mark.few(4)
@pytest.mark.parametrize("model", TUNED)
def test_every_knob_of_another_type_is_refused_by_its_full_path(model):
    """When the learner is made, before anything reads the knob, and whatever it is."""
    kind: Any = us.learners.BY_NAME[model]
    make: Any = functools.partial(kind, dim=4, **NEEDED.get(model, {}))
    default = make().tuning
    assert make(tuning=default).settings() == make().settings()
    count = 0
    for path, value in leaves(default):
        wrong: Any = ["text", object(), [], {}, np.nan, (None,), ("a", "b")]
        wrong += [True] if not isinstance(value, bool) else []
        wrong += [None] if value is not None else []
        wrong += [0.5] if isinstance(value, int) else []
        wrong += [3] if isinstance(value, tuple) or dataclasses.is_dataclass(value) else []
        for bad in wrong:
            tuning = with_knob(default, path.removeprefix("tuning."), bad)
            with pytest.raises(TypeError, match=re.escape(f"{path} must be ")) as caught:
                make(tuning=tuning)
            assert repr(bad) in str(caught.value)
            count += 1
    assert count >= 10
    for none in (None, 3, InnerTuning()):
        with pytest.raises(
            TypeError, match=f"tuning must be of type {type(default).__name__}; it is"
        ):
            make(tuning=none)


HALF: Any = 0.5


@dataclass(frozen=True, slots=True)
class KindsTuning:
    whole: int = 1
    number: float = 0.5
    flag: bool = True
    name: Literal["a", "b"] = "a"
    maybe: int | None = None
    pair: tuple[float, float] = (1.0, 2.0)
    table: tuple[Stage, ...] = (Stage(1, None, 1),)
    pairs: tuple[tuple[int, float], ...] = ((1, 0.5),)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Kinds(Configured):
    dim: int
    tuning: KindsTuning = field(default=KindsTuning(), kw_only=True)

    revision = 1


@pytest.mark.parametrize(
    ("knob", "right", "wrong", "said"),
    [
        ("whole", [3, np.int8(3)], [1.0, True, None], "a whole number"),
        ("number", [3, 0.5, np.float32(1), np.inf], ["1", False, np.nan], "a number"),
        ("flag", [False, np.True_], [0, None], "True or False"),
        ("name", ["b"], ["c", 1], "'a' or 'b'"),
        ("maybe", [None, 3], ["x", 0.5], "a whole number or None"),
        ("pair", [(1, 2)], [(1.0,), [1.0, 2.0], (1.0, "2")], "a tuple of 2 numbers"),
        ("table", [(), (Stage(1, 2, 3),)], [((1, 2, 3),), (Stage(1, HALF, 3),)], "of Stages"),
        ("pairs", [((1, 2),)], [((0.5, 1),), (1, 2)], "of tuples of 2 numbers and whole numbers"),
        ("text", ["x"], [1], "a str"),
    ],
)
def test_kinds_of_knobs(knob, right, wrong, said):
    for value in right:
        Kinds(3, tuning=KindsTuning(**{knob: value}))
    for value in wrong:
        with pytest.raises(TypeError, match=rf"tuning\.{knob} must be .*{re.escape(said)}; it is"):
            Kinds(3, tuning=KindsTuning(**{knob: value}))


def test_learners_with_knobs_are_copied_and_cross_process_borders():
    tuned = us.learners.ExactHead(4, tuning=ExactTuning(holdout=HoldoutTuning(logits=(1.0,))))
    assert pickle.loads(pickle.dumps(tuned)) == tuned == dataclasses.replace(tuned, dim=4)


def test_a_changed_knob_is_another_learner_to_a_ledger(tmp_path):
    """Probes depend on knobs: a ledger of other knobs is refused, one of the same goes on."""
    rng = np.random.default_rng(0)
    target = us.SingleHead(rng.standard_normal((4, 4)), rng.standard_normal(4))
    tuned = us.learners.ExactHead(4, tuning=ExactTuning(holdout=HoldoutTuning(logits=(1.0,))))
    ledger = tmp_path / "ledger.sqlite"
    first = us.learn(target, tuned, ledger=ledger)
    again = us.learn(target, tuned, ledger=ledger)
    np.testing.assert_array_equal(first.model.W, again.model.W)
    assert again.counts["data"] == first.counts["data"] == 16
    with pytest.raises(us.LedgerMismatch):
        us.learn(target, us.learners.ExactHead(4), ledger=ledger)


# -- what is refused


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: knob(us.learners.ExactHead(3), again_per_token=-1), "again_per_token must be 0"),
        (lambda: knob(us.learners.ReluNetworkLearner(3), attempts=0), "attempts must be 1 or more"),
    ],
)
def test_knobs_out_of_range_are_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def knob(learner, **changes):
    return dataclasses.replace(learner, tuning=dataclasses.replace(learner.tuning, **changes))


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

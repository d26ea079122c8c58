"""A learner's settings: its fields as JSON, checked where they are given, knobs where changed.

The settings are a ledger's identity: they may not change by how a number was written, and must
change with every knob that changes the probes.
"""

import dataclasses
import functools
import json
import pickle
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.settings import Configured
from unsoftmax.learners.single_head.exact import ExactTuning
from unsoftmax.measure.logit_grid import Stage
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

"""A learner's settings: its fields as JSON, those that came later where they are given.

The settings are a ledger's identity: they may not change by how a number was written, and must
change with everything that changes the probes.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.settings import Configured


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

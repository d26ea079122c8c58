"""Settings out of range are refused by name: those that learners share, and each one's own."""

import re
from dataclasses import fields
from typing import Any

import numpy as np

import unsoftmax as us

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

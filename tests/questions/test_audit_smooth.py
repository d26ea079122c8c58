"""Feed-forward layers with a smooth activation in an audit: their name and their cost."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.settings import Configured
from unsoftmax.probes import Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Outputs, Plan
from unsoftmax.questions import target_classes
from unsoftmax.report.page import page

D, M = 8, 20
NAME = "smooth feed-forward layer"
RMS = us.LayerNorm(np.ones(D), None, 1e-5, True, False)


def layer(phi, gated=False, norm=None, residual=True, seed=0):
    rng = np.random.default_rng(seed)
    A, G = rng.standard_normal((2, M, D)) / np.sqrt(D)
    a, g = rng.standard_normal((2, M)) / 2
    B = rng.standard_normal((D, M)) / np.sqrt(M)
    return us.FeedForward(A, a, B, np.ones(D), residual, norm, phi, (G, g) if gated else None)


@pytest.mark.parametrize("phi", ["gelu", "gelu_tanh", "silu", "softplus", "tanh", "sigmoid"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", [None, RMS])
@pytest.mark.few
def test_smooth_layers_have_a_name_and_a_cost(phi, gated, norm):
    result = us.audit(layer(phi, gated, norm), D)
    assert (result.target_class, result.certainty) == (NAME, "likely")
    square = gated and norm is None and phi not in ("tanh", "sigmoid")
    # a FeedForward refuses two tokens
    assert result.facts == ({"gated": 1} if square else {}) | {"most_tokens": 1}
    assert result.queries < 200
    assert result.cost is not None
    assert result.cost.learner["learner"] == "FeedForwardLearner"
    m, each = (8 * D // 3, 25) if square else (4 * D, 11)
    assert result.cost.queries == np.ceil(each * m) + 32
    assert f"{m} neurons; m neurons take about 11m, gated ones 25m" in result.cost.counted
    assert not any("another one" in note for note in result.notes)


def smooth_of(A, B):
    """Position-wise functions that are no layer of smooth neurons; what an audit names them."""
    w = A[0]
    sums = us.FeedForward(A, np.ones(M), B, np.ones(D), activation="gelu")

    def last(f):
        return lambda X: f(X[:, -1])

    yield "waves", last(lambda x: np.sin(x @ A.T) @ B.T), "none of these"
    yield "a cube", last(lambda x: (x @ A.T) ** 3 @ B.T), "none of these"
    yield "one number", last(lambda x: np.tanh(x @ A.T) @ B[0]), "none of these"
    yield "the mean", lambda X: sums(X.mean(axis=1)), "none of these"
    yield "ReLUs", last(lambda x: np.maximum(x @ A[:6].T, 0) @ B[:, :6].T), "ReLU network"
    yield "an affine map", last(lambda x: x @ A.T @ B.T + w[0]), "linear"
    yield "probabilities", last(lambda x: np.exp(-np.logaddexp(0, -x @ A.T @ B.T))), "probabilities"


A0, B0 = np.random.default_rng(1).standard_normal((2, M, D)) / np.sqrt(D)


@pytest.mark.parametrize("case", [*smooth_of(A0, B0.T)], ids=lambda case: case[0])
def test_others_are_not_named_so(case):
    _, target, name = case
    assert us.audit(target, D).target_class == name


@dataclass(frozen=True)
class Stand(Configured):
    """A learner of vectors that knows the layer, and asks whether it is."""

    layer: Any
    dim: int = D
    outputs: ClassVar[Outputs] = "vector"
    revision: ClassVar[int] = 1

    def settings(self):
        return {"learner": "Stand"}

    def plan(self):
        return Plan(None, 8, 8, 1, "8", most_tokens=1)

    def steps(self, checks):
        X = np.random.default_rng(0).standard_normal((8, 1, D))
        [y] = yield [Sequences(X, phase="look", purpose="check")]
        off = np.abs(self.layer(X) - y).max()
        if off > 1e-3:
            raise us.ModelMismatch("it answers otherwise")
        errors = {"constant": 1e-9, "slope": 1e-9}
        return Found(
            self.layer, Certificate(errors, ()), Evidence(8, float(off), float(off), 1e-9, True)
        )


@pytest.mark.parametrize("served", ["the same", "other for long tokens", "another"])
def test_recovery_takes_all_numbers_and_decides(served, monkeypatch):
    f = layer("gelu", seed=1)

    def target(X):
        y = f(X[:, -1:])
        far = np.linalg.norm(X[:, -1], axis=1) > 1e4
        return y * (1 + 1e-3 * far[:, None]) if served.startswith("other") else y

    known = layer("gelu", seed=2) if served == "another" else f
    rows: dict[Any, Any] = {**target_classes.LEARNERS, NAME: lambda *_: Stand(known)}
    monkeypatch.setattr(target_classes, "LEARNERS", rows)
    monkeypatch.setattr(target_classes, "typical_cost", lambda *_: (8, 8))
    result = us.audit(target, D, recover=True)
    if served == "the same":
        assert (result.target_class, result.certainty) == (NAME, "certain")
        assert result.facts == {"neurons": M}
        assert result.recovery is not None
        assert us.equivalent(result.recovery.model, f, rtol=0)
    else:
        assert (result.target_class, result.certainty) == ("undecided", "undecided")
        why = "misses" if served.startswith("other") else "Not recovered|was not recovered"
        assert any(word in result.reasons[0] for word in why.split("|"))


@pytest.mark.parametrize(("phi", "gated", "norm"), [("gelu", False, None), ("silu", True, RMS)])
def test_audits_recover_layers_by_themselves(phi, gated, norm):
    """The learner of that name finds weights, gates and eps: the name is certain then."""
    f = layer(phi, gated, norm, seed=3)
    gate = None if f.gate is None else (f.gate[0][:6], f.gate[1][:6])
    true = us.FeedForward(f.A[:6], f.b[:6], f.B[:, :6], f.c, True, norm, phi, gate)
    asked = 0

    def target(X):
        nonlocal asked
        asked += len(X)
        return true(X[:, -1:])

    result = us.audit(target, D, recover=True)
    assert (result.target_class, result.certainty) == (NAME, "certain")
    assert result.facts == {"neurons": 6} | ({"gated": 1} if gated else {})
    assert result.queries == asked
    assert result.recovery is not None
    assert us.equivalent(result.recovery.model, true, rtol=1e-6)


def test_the_page_says_what_it_costs(tmp_path):
    result = us.audit(layer("silu", gated=True), D)
    result.save(tmp_path)
    text = page(tmp_path)
    assert "smooth feed-forward layer" in text
    assert "can probably copy this model" in text
    assert "m neurons take about 11m, gated ones 25m" in text

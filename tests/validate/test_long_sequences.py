"""The long part of a hold-out: how many, how long, at what logits, and what is said of it."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unsoftmax as us
from unsoftmax.models.attention import token_scores
from unsoftmax.probes import Sequences
from unsoftmax.validate import long_sequences
from unsoftmax.validate.long_sequences import SHAPES, SequenceShape, draw_long, looked_at


def at_logits(model):
    """Scale offsets alone: logits of an rms."""

    def scaled(offsets, query, wanted):
        u = model.scores_of(query[None])[0]
        return np.vstack([wanted / np.sqrt(np.mean((offsets @ u) ** 2)) * offsets + query, query])

    return scaled


def head(W, w=None):
    return us.SingleHead(W, np.ones(len(W)), w)


def own_scores(model, X):
    """The query token's score of each head."""
    return token_scores(X[None, -1:], model.scores_of(X[None, -1])).ravel()


def test_every_kind_is_what_it_says():
    rng = np.random.default_rng(1)
    model = head(rng.standard_normal((5, 5)))
    drawn = dict(zip(SHAPES, draw_long(model, 99, rng, at_logits(model)), strict=True))
    for shape, X in drawn.items():
        scores = (X[:-1] - X[-1]) @ model.scores_of(X[-1:])[0]
        if shape.tokens > 1:
            assert np.sqrt(np.mean(scores**2)) == pytest.approx(shape.logits)
        if shape.kind == "repeats":
            assert len(np.unique(X.round(9), axis=0)) <= long_sequences.DISTINCT + 1
        if shape.kind == "near":
            spread = np.linalg.norm(X[:-1] - X[0], axis=1).max()
            assert 0 < spread < 0.05 * np.linalg.norm(X[0] - X[-1])
    shapes = list(drawn)
    at = next(n for n, shape in enumerate(shapes) if shape.kind == "permuted")
    before, X = drawn[shapes[at - 1]], drawn[shapes[at]]
    assert not np.array_equal(before, X)
    assert np.array_equal(before[-1], X[-1])
    assert np.array_equal(np.sort(before, axis=0), np.sort(X, axis=0))


@pytest.mark.parametrize(
    ("model", "scores"),
    [
        (head(-np.eye(4)), {-30.0}),
        (head(np.eye(4)), {30.0}),
        (head(np.zeros((4, 4)), np.ones(4)), {-30.0}),
        (head(np.eye(4), 20 * np.ones(4)), {-30.0}),
        (us.MultiHead(np.array([np.eye(4), -np.eye(4)]), np.ones((2, 4))), {-30.0, 30.0}),
        (head(np.zeros((4, 4))), {0.0}),
        (head(-1e-80 * np.eye(4)), {0.0}),  # no float32 number is so long
        (us.MultiHead(np.zeros((0, 4, 4)), np.zeros((0, 4))), set()),
    ],
)
def test_a_token_by_itself_has_a_low_score_where_it_can(model, scores, monkeypatch):
    """Nothing is left of the softmax but what is no token."""
    monkeypatch.setattr(long_sequences, "SHAPES", (SequenceShape(1, 30.0),))
    [X] = draw_long(model, 4, np.random.default_rng(2), at_logits(model))
    assert X.shape == (1, 4)
    assert {round(float(score), 9) for score in own_scores(model, X)} == scores


@dataclass
class OneVector:
    """Tokens are scored with u, whatever the query token."""

    u: np.ndarray

    @property
    def dim(self):
        return len(self.u)

    def scored(self, X):
        return X @ self.u


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 9), shift=st.floats(-100.0, 100.0))
def test_at_high_logits_two_tokens_have_high_scores(seed, dim, shift):
    """Scores clipped at 30 change no answer unless they do, wherever the scores' zero is."""
    rng = np.random.default_rng(seed)
    model = OneVector(rng.standard_normal(dim))
    high = tuple(shape for shape in SHAPES if shape.logits == 30 and shape.tokens > 1)

    def scaled(offsets, query, wanted):
        stretch = wanted / np.sqrt(np.mean((offsets @ model.u) ** 2))
        return np.vstack([stretch * offsets, 0 * query]) + shift * model.u / (model.u @ model.u)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_sequences, "SHAPES", high)
        drawn = draw_long(model, 99, rng, scaled)
    assert len(drawn) == len(high)
    for X in drawn:
        assert np.sort(X @ model.u)[-2] >= 30


def test_what_was_answered_is_said():
    rng = np.random.default_rng(3)
    model = head(np.eye(3))
    long = [Sequences(rng.standard_normal((2, n, 3)), phase="", purpose="check") for n in (9, 5)]
    answered = [(part.X, np.zeros(2)) for part in long]
    said = looked_at(model, answered, long)
    logits = np.abs((long[0].X - long[0].X[:, -1:]) @ long[0].X[:, -1, :, None]).max()
    assert f"up to 9 tokens, and logits up to {logits:.2g}:" in said
    assert "did not answer" not in said
    assert "did not answer those of 9 tokens" in looked_at(model, answered[1:], long)
    assert "up to 0 tokens" in looked_at(model, [], [])

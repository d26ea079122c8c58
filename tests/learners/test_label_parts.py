"""Parts of the label learner by hand: the hold-out at flips, ratios, the scale, the end checks."""

import numpy as np
import pytest

import unsoftmax as us
from unsoftmax.learners.single_head.labels import flips
from unsoftmax.learners.single_head.labels.bisection import read_labels
from unsoftmax.protocol import Certificate
from unsoftmax.validate.head_comparison import HeadAt
from unsoftmax.validate.judge import judge


def head(d, seed=0, scale=1.0):
    rng = np.random.default_rng([d, seed])
    v = rng.standard_normal(d)
    return us.SingleHead(scale * rng.standard_normal((d, d)), v / np.linalg.norm(v))


def certificate(W=0.0, v=0.0):
    return Certificate({"W": W, "v": v}, ())


# -- the hold-out


@pytest.mark.parametrize("W_error", [1e-13, 1e-9, 1e-5])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_sequences_are_just_outside_of_what_is_uncertain(d, W_error):
    model, known = head(d), certificate(W_error, 1e-14)
    families = flips.at_flips(model, known, 24, np.random.default_rng(1))
    assert sum(len(family) for family in families) == 24
    assert [family.tokens for family in families] == list(flips.LENGTHS)
    for family in families:
        off = flips.uncertainty(HeadAt.of(model, family.X), model.v, known)
        y = model(family.X)
        assert np.all(np.abs(y) >= flips.CERTAIN * off)
        # no further away than rounding of the tokens asks for
        assert np.median(np.abs(y) / off) < 1.5
        assert np.all(np.sign(y[::2]) > 0)
        assert np.all(np.sign(y[1::2]) < 0)


def test_a_head_within_the_certificate_has_all_labels_right_and_one_beyond_does_not():
    d, error = 5, 1e-6
    model = head(d)
    rng = np.random.default_rng(2)
    known = certificate(error)
    families = flips.at_flips(model, known, 40, rng)

    def judged(target):
        return judge(
            (flips.compare_labels(model, known, f.X, target(f.X) > 0) for f in families), 40
        )

    for _ in range(20):
        shift = rng.standard_normal((d, d))
        near = us.SingleHead(model.W + error * shift / np.linalg.norm(shift), model.v)
        judgement = judged(near)
        assert judgement.evidence.passed
        assert judgement.evidence.max_residual == 0
    far = us.SingleHead(model.W + 300 * error * shift / np.linalg.norm(shift), model.v)
    with pytest.raises(us.ModelMismatch, match="wrong label"):
        flips.refuse_wrong_labels(judged(far), d)


def test_where_nothing_is_known_nothing_is_telling():
    model, known = head(3), certificate(np.inf, 2.0)
    X = np.random.default_rng(3).standard_normal((6, 3, 3))
    judgement = judge(flips.compare_labels(model, known, X, model(X) > 0), 6)
    assert judgement.blunt
    flips.refuse_wrong_labels(judgement, 3)


@pytest.mark.parametrize("W_error", [0.0, 1e-8, 1e-3, 0.5])
def test_the_uncertainty_is_a_bound(W_error):
    rng, d = np.random.default_rng(4), 4
    model = head(d)
    X = rng.standard_normal((30, 4, d))
    off = flips.uncertainty(HeadAt.of(model, X), model.v, certificate(W_error, 1e-6))
    for _ in range(30):
        shift, turn = rng.standard_normal((d, d)), 0.5e-6 * rng.standard_normal(d) / np.sqrt(d)
        v = model.v + turn
        other = us.SingleHead(
            model.W + W_error * shift / np.linalg.norm(shift), v / np.linalg.norm(v)
        )
        assert np.linalg.norm(other.v - model.v) <= 1e-6
        assert np.all(np.abs(other(X) - model(X)) <= off)


# -- labels


def test_labels_are_ones_and_zeros_or_minus_ones():
    assert [part.tolist() for part in read_labels([np.array([1.0, 0.0]), np.zeros(0)])] == [
        [True, False],
        [],
    ]
    signs = np.array([1.0, -1.0, 0.0])
    assert [part.tolist() for part in read_labels([signs])] == [[True, False, False]]
    for wrong in (np.array([0.0, -2.0]), np.array([2.0]), np.array([1.0, 0.5])):
        with pytest.raises(us.ModelMismatch, match=r"us\.oracles\.labels"):
            read_labels([np.ones(3), wrong])

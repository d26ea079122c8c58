"""How far a head's answers move when its parameters do: within the bounds, and not far below."""

from dataclasses import replace

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import rotary_head
from unsoftmax.measure.precision import FLOAT32_UNIT, KAPPA, Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models.attention import token_scores
from unsoftmax.validate.head_comparison import (
    HeadAt,
    PositionErrors,
    for_any_error,
    of_straight,
    score_shift,
    sum_rounding,
    to_first_order,
)
from unsoftmax.validate.judge import judge

EXACT = Precision()


def head(d, rng, size=1.0):
    return us.SingleHead(size * rng.standard_normal((d, d)) / d, rng.standard_normal(d))


def known(model, v_error=0.0, precision=EXACT):
    return Values(model.v, model.c, np.full(model.dim, v_error), 0.0, precision)


def moved_by(model, W_error, rng):
    """A head whose W is another by exactly ``W_error``, in a random direction."""
    shift = rng.standard_normal(model.W.shape)
    W = model.W + W_error * shift / np.linalg.norm(shift)
    return us.SingleHead(W, model.v, model.w, model.c)


@pytest.mark.parametrize("W_error", [0.0, 1e-9, 1e-3, 0.3, 10.0, 1e6])
def test_no_head_within_the_bound_is_refused(W_error):
    rng = np.random.default_rng(0)
    for d in (1, 2, 6):
        model = head(d, rng)
        X = 3 * rng.standard_normal((40, 4, d))
        at = HeadAt.of(model, X)
        for _ in range(20):
            y = moved_by(model, W_error, rng)(X)
            assert judge(for_any_error(at, y, known(model), W_error), 40).evidence.passed


def test_a_head_beyond_the_bound_is_refused():
    rng = np.random.default_rng(1)
    model = head(1, rng)
    # one dimension: the worst direction is the only one
    X = rng.standard_normal((40, 2, 1))
    at = HeadAt.of(model, X)
    y = us.SingleHead(model.W + 1e-3, model.v)(X)
    # of two tokens the weight moves by p(1 − p)Δt; the bound is twice that
    assert judge(for_any_error(at, y, known(model), 0.52e-3), 40).evidence.passed
    judgement = judge(for_any_error(at, y, known(model), 0.48e-3), 40)
    assert judgement.refuses
    assert judgement.strain == pytest.approx(1 / 0.96, rel=1e-2)


def test_errors_of_the_values_are_the_answers_own():
    rng = np.random.default_rng(2)
    model, X = head(5, rng), rng.standard_normal((30, 3, 5))
    off = 1e-3 * rng.choice([-1, 1], 5)
    y = us.SingleHead(model.W, model.v + off)(X)
    for error, passes in ((1e-3, True), (1e-5, False)):
        values = known(model, error)
        at = HeadAt.of(model, X)
        errors = {"W": 0.0, "w": 0.0}
        assert judge(for_any_error(at, y, values, 0.0), 30).evidence.passed == passes
        first = to_first_order(at, y, values, errors)
        assert judge(first, 30).evidence.passed == passes
        assert np.all(first.own >= at.through_values(values.v_error))


@pytest.mark.parametrize("W_error", [1e-12, 1e-6, 1e-4])
def test_to_first_order_random_errors_stay_within_their_share(W_error):
    # certificates are loose: errors are an eighth of their bounds or less
    errors = {"W": 8 * W_error, "w": 0.0}
    rng = np.random.default_rng(3)
    strains = []
    for _ in range(50):
        model = head(8, rng)
        X = rng.standard_normal((30, 4, 8))
        y = moved_by(model, W_error, rng)(X)
        at = HeadAt.of(model, X)
        judgement = judge(to_first_order(at, y, known(model), errors), 30)
        assert judgement.evidence.passed
        strains.append(judgement.strain)
    # the bound is of the size of what it bounds
    assert 0.05 < max(strains) < 0.5


def test_what_the_certificate_leaves_open_is_not_telling(monkeypatch):
    rng = np.random.default_rng(4)
    model = head(4, rng)
    X = rng.standard_normal((20, 3, 4)) * 10.0 ** np.arange(-10, 10)[:, None, None]
    at = HeadAt.of(model, X)
    compared = to_first_order(at, model(X), known(model), {"W": 1e-3, "w": 0.0})
    assert compared.telling[:10].all()
    assert not compared.telling[-5:].any()
    # no finite bound: every sequence counts, and the head must be right to a share all the same
    errors = {"W": np.inf, "w": 0.0}
    free = to_first_order(at, 1.5 * model(X), known(model), errors)
    assert free.telling.all()
    assert np.isfinite(free.allowed).all()
    assert judge(free, 20).refuses
    monkeypatch.setattr("unsoftmax.validate.head_comparison.MOST_MOVED", np.inf)
    assert to_first_order(at, model(X), known(model), {"W": 1e-3, "w": 0.0}).telling.all()


def test_single_tokens_are_straight_within_the_precision():
    rng = np.random.default_rng(8)
    x, v = rng.standard_normal((9, 4)), rng.standard_normal(4)
    values = Values(v, 0.5, np.zeros(4), 0.0, EXACT)
    assert judge(of_straight(x, x @ v + 0.5, values), 9).evidence.passed
    bent = x @ v + 0.5 + 1e-9 * np.sum(x**2, axis=1)
    assert judge(of_straight(x, bent, values), 9).refuses
    coarse = replace(values, precision=Precision(absolute=1e-7))
    assert judge(of_straight(x, bent, coarse), 9).evidence.passed
    unsure = replace(values, v_error=np.full(4, 1e-8))
    assert judge(of_straight(x, bent, unsure), 9).evidence.passed


@pytest.mark.parametrize("tokens", [2, 64, 512, 4096])
def test_sums_one_by_one_in_float32_are_within_their_rounding(tokens):
    """Random terms, and equal ones, whose rounding does not average."""
    rng = np.random.default_rng(tokens)
    unit = FLOAT32_UNIT / 2
    worst = 0.0
    for seed in range(20):
        numerators = rng.random(tokens).astype(np.float32) if seed else np.full(tokens, 0.7)
        values = rng.standard_normal(tokens) if seed % 2 else np.full(tokens, 1.1)
        single = [x.astype(np.float32) for x in (numerators, numerators * values)]
        below, above = (float(np.cumsum(x, dtype=np.float32)[-1]) for x in single)
        weights = numerators / numerators.sum()
        allowed = 2 * KAPPA * unit * np.abs(values).max() + sum_rounding(weights, values, unit)
        worst = max(worst, abs(above / below - weights @ values) / float(allowed))
    assert worst <= 1
    assert bool(sum_rounding(weights, values, unit)) == (tokens > 20)


@pytest.mark.parametrize("biases", [0.0, 0.3])
def test_with_positions_errors_count_by_distance(biases):
    rng, turned = np.random.default_rng(6), rotary_head(8, 4, 0, biases=biases)
    plain = us.SingleHead(turned.W_at(1), turned.v)
    X = rng.standard_normal((30, 40, 8))
    sizes = plain.score_sizes(X)[:, 0]
    vectors = np.linalg.norm(plain.scores_of(X[:, -1]), axis=1)
    assert np.allclose(sizes, np.linalg.norm(X, axis=2) * vectors[:, None], rtol=1e-13)
    at = HeadAt.of(turned, X)
    errors, near = {"W": 1e-6, "w": 0.0}, PositionErrors(1e-8, 1e-9, bool(biases))
    arrays = turned.arrays()
    arrays["Q"] = arrays["Q"] * (1 + 1e-9)
    y = us.RotaryHead.from_arrays(arrays)(X)
    values = known(turned)
    compared = to_first_order(at, y, values, errors, near)
    assert judge(compared, 30).evidence.passed
    wider = to_first_order(at, y, values, errors, replace(near, turning=1e-7))
    assert np.all(wider.allowed > compared.allowed)
    # without a bound the head must be right
    none = PositionErrors(np.inf, np.inf)
    free = to_first_order(at, y, values, {"W": np.inf}, none)
    assert free.telling.all()
    assert np.all(free.allowed < compared.allowed)


@pytest.mark.parametrize("seed", range(5))
def test_errors_of_W_and_w_move_scores_within_the_bound(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((9, 5, 3)) * 10.0 ** rng.uniform(-3, 3, (9, 5, 1))
    dW, dw = rng.standard_normal((3, 3)), rng.standard_normal(3)
    moved = token_scores(X - X[:, -1:], X[:, -1] @ dW.T + dw)
    bound = score_shift(X, np.linalg.norm(dW, 2), np.linalg.norm(dw))
    assert np.all(np.abs(moved) <= bound * (1 + 1e-12))
    np.testing.assert_array_equal(bound[:, -1], 0.0)

"""Certificates under hostile errors: what measurements and W are off by is never above the bound.

The truth is built first, W, v, w, c; then every answer and every entry of v is wrong by as much
as the precision allows, one error of v shared by all answers.
"""

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from unsoftmax.measure.offsets import Offsets
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.measure.two_tokens import TwoTokenAnswers, Vectors
from unsoftmax.probes import Array, Grid
from unsoftmax.solve.dense import solve, solve_error

SIGNS = ("worst", "plus", "minus", "random")


class Block:
    """Answers to every offset z_i with every query token b_j, each token at its own scale."""

    def __init__(self, seed, d, nu, precision, spread=0.0):
        rng = np.random.default_rng([seed, d])
        self.rng = rng
        self.Z = np.linalg.qr(rng.standard_normal((d, d)))[0] + 0.3 * rng.standard_normal((d, d))
        self.B = rng.standard_normal((d + 1, d))
        self.W = rng.standard_normal((d, d)) * 10.0 ** (spread * rng.uniform(-1, 1, d))
        self.v = rng.standard_normal(d) + 2 * np.sign(rng.standard_normal(d))
        self.measured = (self.B @ self.W.T) @ self.Z.T
        octaves = np.round(np.log2(1 / np.abs(self.measured).max(axis=1)))
        self.alpha: Array = np.exp2(np.maximum(octaves, 0))[:, None] * np.ones(d)
        self.beta: Array = np.exp2(np.minimum(octaves, 0))[:, None] * np.ones(d)
        self.shift = nu * np.sign(rng.standard_normal(d))
        error = np.full(d, nu) + UNIT * np.abs(self.v)
        self.values = Values(self.v + self.shift, 0.0, error, 0.0, precision)
        self.look()

    def look(self):
        """See offsets and query tokens through v̂."""
        self.a = Vectors.of(self.Z, self.values)
        self.b = Vectors.of(self.B, self.values).take((slice(None), None))
        self.scale = self.alpha * self.beta

    def ask_a_head(self, Z, B):
        """Answers of a real head, at scale 1, and the error of the logits read from them."""
        self.Z, self.B = (np.round(x * 2.0**20) / 2.0**20 for x in (Z, B))  # a + b is exact
        self.alpha, self.beta = np.ones((2, len(B), len(Z)))
        self.look()
        one = np.ones(len(B))
        grid = Grid(self.Z, self.B, one, one, phase="W", purpose="data")
        y = us.SingleHead(self.W, self.v)(grid[:]).reshape(len(B), len(Z))
        gates = self.read(y)
        W, Z, B = (x.astype(np.longdouble) for x in (self.W, self.Z, self.B))
        return y, float(np.linalg.norm((gates.logit - B @ W.T @ Z.T).astype(float)))

    def truth(self):
        p = expit(self.scale * self.measured)
        return self.beta * (self.B @ self.v)[:, None] + p * self.alpha * (self.Z @ self.v), p

    def answers(self, signs):
        y, p = self.truth()
        eta = self.values.precision.absolute
        push = -self.beta * (self.B @ self.shift)[:, None] - p * self.alpha * (self.Z @ self.shift)
        pattern = {
            "worst": np.where(push < 0, -1.0, 1.0),
            "plus": np.ones_like(y),
            "minus": -np.ones_like(y),
            "random": self.rng.choice([-1.0, 1.0], y.shape),
        }
        return y + (1 - 1e-5) * eta * pattern[signs]  # less what the test itself rounds

    def answered(self, y):
        return TwoTokenAnswers(y, self.a, self.b, self.alpha, self.beta, self.values)

    def read(self, y):
        return self.answered(y).gates()

    def bound(self, y):
        columns = np.linalg.norm(self.B @ self.W.T, axis=1)[:, None]
        stretch = float(np.linalg.norm(self.Z, 2))
        return self.answered(y).reading(self.beta * columns, stretch).total


@pytest.mark.few
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("d", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("eta", "nu"), [(1e-9, 0.0), (1e-10, 1e-7), (1e-6, 1e-6), (1e-3, 1e-4), (1e-2, 0.0)]
)
def test_measurements_are_within_their_bound(eta, nu, d, signs, trials):
    looseness = []
    for seed in range(trials(3, 300)):
        block = Block(seed, d, nu, Precision(unit=0.0, absolute=eta), spread=seed % 3)
        y = block.answers(signs)
        gates = block.read(y)
        done = np.linalg.norm(gates.logit / block.scale - block.measured)
        bound = block.bound(y)
        assert np.isinf(bound) if np.any(gates.margin <= 0) else np.isfinite(bound)
        if np.isfinite(bound):
            assert done <= bound
            looseness.append(bound / done)
    if eta < 1e-3:
        assert np.median(looseness) < 20


def test_one_answer_without_a_bound_leaves_none():
    block = Block(0, 3, 0.0, Precision(absolute=1e-6))
    y, _ = block.truth()
    y[1, 2] = block.beta[1, 2] * (block.B @ block.v)[1]  # p = 0
    gates = block.read(y)
    assert np.count_nonzero(~(gates.margin > 0)) == 1
    assert block.bound(y) == float("inf")
    y[1, 2] = np.nan
    assert block.bound(y) == float("inf")


def test_each_kind_of_error_counts():
    """More of any one error is never a smaller bound, and none of them is without effect."""
    base = {"unit": 1e-12, "relative": 1e-12, "absolute": 1e-12}

    def bound(nu=1e-12, **changes):
        block = Block(1, 4, 0.0, Precision(**{**base, **changes}))
        error = np.full(4, nu)
        block.values = Values(block.v, 0.0, error, 0.0, block.values.precision)
        block.look()
        y, _ = block.truth()
        return block.bound(y)

    plain = bound()
    for changed in (bound(1e-9), *(bound(**{name: 1e-9}) for name in base)):
        assert changed > 10 * plain


@pytest.mark.parametrize("d", [2, 8, 32])
def test_float64_answers_are_within_the_bound(d, trials):
    """A real head in float64, W known: the errors are rounding, of scores and values alike."""
    for seed in range(trials(3, 300)):
        block = Block(seed, d, 0.0, Precision(), spread=seed % 3)
        block.W *= 0.5 / np.abs(block.measured).max()
        y, done = block.ask_a_head(block.Z, block.B)
        assert done <= block.bound(y)


def test_the_rounding_of_large_scores_counts():
    """Offsets almost orthogonal to W b: the scores cancel in the logit, their rounding does not."""
    d, beyond = 8, 0
    for seed in range(20):
        block = Block(seed, d, 0.0, Precision())
        across = np.linalg.qr(block.rng.standard_normal((d, d)))[0][0]
        block.W = 3e3 * np.outer(across, block.rng.standard_normal(d)) / d
        Z = block.Z - 0.9999 * np.outer(block.Z @ across, across)
        y, done = block.ask_a_head(Z, block.B)
        assert done <= block.bound(y)
        block.W = np.zeros((d, d))  # as if the scores were exact
        beyond += done > block.bound(y)
    assert beyond > 10


# -- from measurements to W


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e9])
def test_solving_divides_by_the_smallest_singular_value(condition):
    rng = np.random.default_rng(0)
    d = 6
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in "UV")
    singular = np.geomspace(1.0, 1 / condition, d)
    Z, W = U * singular @ V, rng.standard_normal((d, d))
    error = 1e-3 * np.outer(U[:, -1], [1, 0, 0, 0, 0, 0])  # the worst direction
    solved = np.linalg.solve(Z, Z @ W + error)
    smallest, largest = np.linalg.svd(Z, compute_uv=False)[[-1, 0]]
    bound = solve_error(1e-3, smallest, largest, float(np.linalg.norm(solved)))
    done = np.linalg.norm(solved - W)
    assert 0.999 < done / (1e-3 * condition) < 1.001
    assert done <= bound < 1.01 * done


@pytest.mark.parametrize("d", [1, 2, 8, 32, 64])
def test_the_rounding_of_solving_is_within_its_bound(d, trials):
    """Small integers, so that M = Z W is exact: all that is left is the solver's rounding."""
    for seed in range(trials(3, 300)):
        rng = np.random.default_rng([seed, d])
        Z, W = rng.integers(-1000, 1000, (2, d, d)).astype(float)
        smallest, largest = np.linalg.svd(Z, compute_uv=False)[[-1, 0]]
        solved = np.linalg.solve(Z, Z @ W)
        size = float(np.linalg.norm(solved))
        assert np.linalg.norm(solved - W) <= solve_error(0.0, smallest, largest, size)


def test_no_error_and_no_bound():
    assert solve_error(0.0, 1.0, 1.0, 0.0) == 0.0
    assert solve_error(float("inf"), 1.0, 1.0, 1.0) == float("inf")
    assert solve_error(1e-3, 0.5, 1.0, 0.0) == pytest.approx(2e-3)


# -- from readings to matrices


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5])
@pytest.mark.parametrize("eta", [1e-10, 1e-7, 1e-4])
def test_a_matrix_solved_from_readings_is_within_its_error(eta, condition, signs, trials):
    """Answers off by all that they may be, offsets of any condition: Ŵ is within its bound."""
    for seed in range(trials(2, 100)):
        d = 6
        block = Block(seed, d, eta, Precision(unit=0.0, absolute=eta))
        U, V = (np.linalg.qr(block.rng.standard_normal((d, d)))[0] for _ in "UV")
        block.Z, block.B = U * np.geomspace(1.0, 1 / condition, d) @ V, np.eye(d)
        block.measured = block.W.T @ block.Z.T
        block.alpha, block.beta = np.ones((2, d, d))
        block.look()
        y = block.answers(signs)
        lengths = np.linalg.norm(block.W, axis=0)[:, None]
        read = block.answered(y).reading(lengths, 1.0)
        found = solve(Offsets(block.Z, 1 / condition, 1.0), read.value)
        bound = found.error(read.total)
        assert np.isfinite(bound) == np.all(block.read(y).margin > 0)
        if read.bounded:
            assert np.all(np.abs(read.value - block.measured) <= read.error)
            assert np.linalg.norm(found.matrix - block.W) <= bound


def test_the_shift_of_a_bias_is_taken_off_and_its_error_counts_for_every_token():
    block = Block(2, 5, 0.0, Precision(absolute=1e-10))
    y, _ = block.truth()
    answered, lengths = block.answered(y), np.ones((6, 1))
    shift = 1e-3 * block.rng.standard_normal(5)
    plain, moved = (answered.reading(lengths, 1.0, s) for s in (0.0, shift))
    np.testing.assert_allclose(plain.value - moved.value, shift / block.beta, rtol=1e-6)
    assert moved.total == plain.total
    unsure = answered.reading(lengths, 1.0, shift, 1e-3)
    repeated = np.sqrt(np.sum(block.beta[:, 0] ** -2.0))
    assert unsure.total - plain.total == pytest.approx(1e-3 * repeated)
    np.testing.assert_allclose(unsure.error - plain.error, 1e-3 / block.beta, rtol=1e-5)


def test_one_unbounded_reading_leaves_the_others_their_bounds():
    block = Block(0, 3, 0.0, Precision(absolute=1e-6))
    y, _ = block.truth()
    y[1, 2] = np.nan
    read = block.answered(y).reading(np.ones((4, 1)), 1.0)
    assert read.total == np.inf
    assert not read.bounded
    assert np.isinf(read.error[1, 2])
    assert np.count_nonzero(np.isfinite(read.error)) == 11

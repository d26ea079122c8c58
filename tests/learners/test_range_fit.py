"""Maps fitted to all answers, on synthetic answers: errors of the start in, better maps out."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.attention_layers import layer as drawn_layer
from unsoftmax.learners.attention_layer.key_answers import KeyAnswers
from unsoftmax.learners.attention_layer.range_fit import (
    RangeFit,
    fitted_maps,
    refine,
    step,
    whitening,
)
from unsoftmax.learners.attention_layer.value_answers import (
    AffineAnswers,
    GateAnswers,
    HeadMaps,
    LayerMap,
    OffsetAnswers,
    ValueAnswers,
)
from unsoftmax.measure.token_map import AnswerNoise, TokenMapAnswers


def answers(heads, rank, dim, noise, *, keys, thin=1.0, residual=False, seed=0):
    """Answers of a random layer, errors of relative size ``noise`` in them, and its maps."""
    rng = np.random.default_rng(seed)
    target = drawn_layer(heads, rank, dim, seed, residual=residual)
    parts = [head.arrays() for head in target.heads]
    U = [np.linalg.qr(one["O"])[0] for one in parts]
    U[1] = np.linalg.qr(U[0] + thin * U[1])[0]  # thin: two ranges are nearly dependent
    V = [rng.standard_normal((rank, dim)) / np.sqrt(dim) for _ in range(heads)]
    M = sum(U_h @ V_h for U_h, V_h in zip(U, V, strict=True)) + residual * np.eye(dim)

    def off(y):
        size = noise * np.linalg.norm(y, axis=-1, keepdims=True) / np.sqrt(dim)
        return y + size * rng.standard_normal(y.shape)

    def pooled(tokens):  # (Q, heads, dim) to answers
        return sum(tokens[:, h] @ V[h].T @ U[h].T for h in range(heads))

    plain = residual * np.eye(dim)
    units = off(M.T * 2.0**10)
    zeros = np.zeros((2, dim))
    tokens = TokenMapAnswers(np.zeros(dim), units, 2.0**10, zeros, zeros, zeros)
    gates = np.vstack([np.eye(heads), np.ones(heads)])
    a, b = 2.0**10 * rng.standard_normal(dim), rng.standard_normal((len(gates), dim))
    y = pooled(b[:, None] + gates[:, :, None] * a) + b @ plain.T
    seen = GateAnswers(a, b, off(y), gates)
    steps = np.linalg.norm(a) / 8 * np.linalg.qr(rng.standard_normal((dim, dim)))[0][: rank + 3]
    open_, each = np.eye(heads)[: heads - 1], []
    for gate in open_:
        x = b[0] + gate[None, :, None] * (a + steps)[:, None]
        each.append(off(pooled(x) + b[0] @ plain.T))
    one = np.ones((heads - 1, len(steps)))
    opening = np.tile(b[0], (heads, 1))
    offsets = OffsetAnswers(a, steps, one, opening, heads - 1, np.array(each))
    values = ValueAnswers(AffineAnswers(tokens, residual), seen, offsets, (rank,) * heads, False)
    blocks, T = -(-dim // keys), 2 * dim
    A = rng.standard_normal((blocks, keys, dim))
    query = rng.standard_normal((T, dim)) / dim
    token, block = np.divmod(np.arange(blocks * T), blocks)
    weights = rng.uniform(0.5, 1.5, (len(token), heads, keys)) / (keys + 1)
    x = query[token][:, None] + np.einsum("qhn,qnd->qhd", weights, A[block])
    y = off(pooled(x) + query[token] @ plain.T)
    keyed = KeyAnswers(A, query, block, token, np.ones(len(token)), y)
    start = [np.linalg.qr(u + 1e-4 * rng.standard_normal(u.shape))[0] for u in U]
    layer = LayerMap.of(tokens, residual)
    return values, keyed, layer, HeadMaps.of_spans(start, layer), HeadMaps(U, V)


def missed(values, truth):
    pairs = zip(values.U, values.V, truth.U, truth.V, strict=True)
    return max(float(np.linalg.norm(U @ V - O @ N)) for U, V, O, N in pairs)  # noqa: E741


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("thin", [1.0, 0.03])
def test_maps_come_nearer(thin, residual):
    noise = 1e-7
    seen, keyed, layer, start, truth = answers(
        3, 4, 14, noise, keys=2, thin=thin, residual=residual
    )
    found, values = fitted_maps(layer, start, seen, [keyed], AnswerNoise(noise))
    assert missed(start, truth) > 1e-4
    # the fit of nearly dependent ranges converges slowly
    assert missed(values, truth) < (1e-6 if thin == 1 else missed(start, truth) / 4)
    M = sum(U @ V for U, V in zip(values.U, values.V, strict=True)) + residual * np.eye(14)
    np.testing.assert_allclose(found.M, M, atol=1e-14)
    for U in values.U:
        np.testing.assert_allclose(U.T @ U, np.eye(4), atol=1e-13)


def test_exact_answers_give_exact_maps():
    seen, keyed, layer, start, truth = answers(2, 4, 12, 0.0, keys=3)
    _, values = fitted_maps(layer, start, seen, [keyed], AnswerNoise(1e-15))
    assert missed(values, truth) < 1e-7 < 1e-4 < missed(start, truth)


def test_maps_that_were_read_in_all_directions_stay():
    seen, keyed, layer, start, _ = answers(2, 4, 12, 1e-7, keys=2)
    whole = replace(seen, whole=True)
    assert fitted_maps(layer, start, whole, [keyed], AnswerNoise(1e-7)) == (layer, start)


def test_the_derivative_is_one_and_its_transpose_too():
    seen, keyed, layer, start, _ = answers(3, 4, 14, 1e-7, keys=2, residual=True)
    at = RangeFit(layer, start, seen, [keyed], AnswerNoise(1e-7))
    rng = np.random.default_rng(3)
    rows = rng.standard_normal(len(at.residual))
    x = rng.standard_normal(len(at.back(rows)))
    assert rows @ at.forward(x) == pytest.approx(at.back(rows) @ x, rel=1e-9)


# -- gauss–Newton by conjugate gradients, on synthetic problems: as good as a solver, never worse


@dataclass(frozen=True)
class Curved:
    """Answers y to A θ + bent (A θ)², coordinates θ = T x."""

    A: np.ndarray
    y: np.ndarray
    theta: np.ndarray
    T: np.ndarray
    bent: float = 0.0

    @property
    def residual(self):
        z = self.A @ self.theta
        return self.y - z - self.bent * z**2

    def _slope(self):
        return 1 + 2 * self.bent * (self.A @ self.theta)

    def forward(self, x):
        return self._slope() * (self.A @ (self.T @ x))

    def back(self, rows):
        return self.T.T @ (self.A.T @ (self._slope() * rows))

    def moved(self, x):
        return Curved(self.A, self.y, self.theta + self.T @ x, self.T, self.bent)


def problem(condition, noise, seed=0, bent=0.0):
    rng = np.random.default_rng(seed)
    A = np.linalg.qr(rng.standard_normal((40, 8)))[0] * np.geomspace(1, 1 / condition, 8)
    theta = rng.standard_normal(8)
    z = A @ theta
    y = z + bent * z**2 + noise * rng.standard_normal(40)
    return Curved(A, y, theta + rng.standard_normal(8) / 10, whitening(A.T @ A), bent), theta


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_linear_problems_are_solved_whatever_their_condition(condition):
    start, _ = problem(condition, 1e-9)
    best = np.linalg.lstsq(start.A, start.y, rcond=None)[0]
    found = refine(start)
    missed = np.linalg.norm(start.y - start.A @ best)
    assert np.linalg.norm(found.residual) <= missed * (1 + 1e-6)
    assert np.linalg.norm(start.A @ (found.theta - best)) < 1e-12


def test_bent_problems_take_further_steps():
    start, theta = problem(10.0, 0.0, bent=0.1)
    first = start.moved(step(start))
    found = refine(start, steps=5)
    assert np.linalg.norm(found.theta - theta) < 1e-9
    assert np.linalg.norm(first.theta - theta) > 1e-6


def test_a_step_that_does_not_help_is_not_taken():
    """The derivative has the wrong sign: every step leads away."""

    class Misled(Curved):
        def moved(self, x):
            return Misled(self.A, self.y, self.theta - self.T @ x, self.T, self.bent)

    start, _ = problem(10.0, 0.0)
    misled = Misled(start.A, start.y, start.theta, start.T)
    assert refine(misled) is misled
    nowhere = Misled(start.A, np.full_like(start.y, np.nan), start.theta, start.T)
    assert refine(nowhere) is nowhere

"""All heads at once, from estimates: exact answers, noise, close heads, ties."""

import numpy as np
import pytest
from scipy.special import expit

from unsoftmax.solve.head_equations import HeadEquations, fit_heads


def drawn(heads, dim, tokens, noise=1e-15, seed=0, apart=None):
    """Equations of heads at moderate logits; the second close to the first."""
    rng = np.random.default_rng([heads, dim, tokens, seed])
    M = rng.standard_normal((heads, dim, tokens)) / np.sqrt(tokens)
    v = rng.standard_normal((heads, dim))
    if apart is not None:
        M[1] = (1 + apart) * M[0]
    n = 2 * M.size + v.size + 20
    a, q = rng.standard_normal((n, dim)), rng.standard_normal((n, tokens))
    shift = np.where(np.arange(n) % 2, 0.0, np.log(3.0))
    gates = expit(np.einsum("ni,hij,nj->nh", a, M, q) + shift[:, None])
    y = np.sum((a @ v.T) * (gates - expit(shift)[:, None]), axis=1)
    y = y + noise * rng.standard_normal(n)
    return HeadEquations(a, q, shift, y, np.full(n, noise)), M, v, rng


@pytest.mark.parametrize("noise", [1e-10, 1e-6])
def test_deviations_are_those_of_the_noise(noise, trials):
    ratios = []
    for seed in range(trials(3, 100)):
        equations, M, v, _ = drawn(2, 3, 3, noise=noise, seed=seed)
        found = fit_heads(equations, M)
        of_M, of_v = found.deviations(equations)
        off = [(np.abs(found.M - M) / of_M).ravel(), (np.abs(found.v - v) / of_v).ravel()]
        ratios.append(np.concatenate(off))
    assert 0.5 < float(np.sqrt(np.mean(np.square(ratios)))) < 1.5


def test_tied_heads_are_found_from_further_away(trials):
    """Two heads 1 % apart: from a rough direction, the same for both."""
    free, tied = 0, 0
    runs = trials(2, 60)
    for seed in range(runs):
        equations, M, _, rng = drawn(2, 4, 4, seed=seed, apart=1e-2)
        rough = M[:1] + 0.05 * rng.standard_normal(M[:1].shape)
        ties = np.array([[1.0], [1.01]])
        near = fit_heads(equations, rough, ties=ties)
        np.testing.assert_allclose(near.M[1], 1.01 * near.M[0])
        tied += fit_heads(equations, near.M).missed < 5
        moved = rough + 1e-3 * rng.standard_normal(M.shape)
        free += fit_heads(equations, moved).missed < 5
    assert tied >= 0.9 * runs - trials(1, 0)
    assert tied >= free

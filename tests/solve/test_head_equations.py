"""Equations between heads, gates, blocks of keys and planes that turn."""

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from unsoftmax.solve.gate_columns import gate_columns
from unsoftmax.solve.head_equations import HeadEquations, fit_heads
from unsoftmax.solve.key_blocks import KeyAims, chosen_keys
from unsoftmax.solve.soft_gates import columns_at, distinct, nearest_gates
from unsoftmax.solve.turning_planes import turning_planes


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


# -- gates in a span, without a layer: of zeros and ones, and between them


def gates(rows, heads, seed=0):
    drawn = np.random.default_rng([rows, heads, seed]).integers(0, 2, (rows, heads)).astype(float)
    drawn[0] = 1
    return drawn


def span_of(columns, seed=0, noise=0.0):
    """An orthonormal basis, as an SVD of answers gives it."""
    rng = np.random.default_rng(seed)
    mixed = columns @ rng.standard_normal((columns.shape[1], 40))
    mixed += noise * rng.standard_normal(mixed.shape)
    return np.linalg.svd(mixed, full_matrices=False)[0][:, : columns.shape[1]]


def as_set(columns):
    return {tuple(column) for column in columns.T}


@pytest.mark.parametrize("heads", [1, 2, 5, 12, 15])
@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_all_columns_are_found_and_no_others(heads, noise):
    true = gates(heads + 40, heads)
    assert as_set(gate_columns(span_of(true, noise=noise))) == as_set(true)


def test_a_column_of_halves_makes_every_complement_a_column():
    true = gates(40, 3)
    true[1:, 2] = 1 / 2
    found = as_set(gate_columns(span_of(true)))
    flipped = true[:, :2].copy()
    flipped[1:] = 1 - flipped[1:]
    assert found >= as_set(true[:, :2]) | as_set(flipped)


def test_spans_without_such_columns_have_none():
    rng = np.random.default_rng(1)
    assert gate_columns(rng.standard_normal((30, 4))).shape == (30, 0)


# -- between 0 and 1


def drawn_gates(heads, coordinates, rows, seed=0, size=1.0):
    """True gates, and what is known of the questions."""
    rng = np.random.default_rng([heads, coordinates, rows, seed])
    theta = size * rng.standard_normal((heads, 1 + coordinates))
    s = rng.standard_normal((rows, coordinates))
    design = np.hstack([np.ones((rows, 1)), s / np.linalg.norm(s, axis=1, keepdims=True)])
    return theta, design, np.log(rng.choice([1 / 32, 1 / 8, 1 / 2, 1, 2, 8, 32], rows))


def soft_span(theta, design, shift, noise=0.0, seed=0):
    return span_of(columns_at(theta, design, shift).T, seed, noise)


def searched(span, design, shift, most, seed=1):
    starts = 2 * np.random.default_rng(seed).standard_normal((400, design.shape[1]))
    return distinct(nearest_gates(span, design, shift, starts), most)


def farthest(theta, found):
    return max(np.min(np.linalg.norm(found - one, axis=1)) for one in theta)


@pytest.mark.parametrize(("heads", "coordinates"), [(1, 1), (2, 2), (5, 4), (12, 6)])
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
def test_all_gates_are_found_and_no_others(heads, coordinates, size):
    theta, design, shift = drawn_gates(heads, coordinates, heads + coordinates + 12, size=size)
    found = searched(soft_span(theta, design, shift), design, shift, 1e-9)
    assert found.shape == theta.shape
    assert farthest(theta, found) < 1e-7


def test_spans_without_gates_have_none():
    rng = np.random.default_rng(2)
    _, design, shift = drawn_gates(3, 3, 30)
    span = np.linalg.qr(rng.standard_normal((31, 3)))[0]
    assert not len(searched(span, design, shift, 1e-6))


# -- keys that read all heads' weights and scores well


def frames(heads, rank, dim, seed=0):
    return list(np.random.default_rng(seed).standard_normal((heads, rank, dim)))


def conditions(keys, aims):
    return [np.linalg.cond(V @ block.T) for V in aims.frames for block in keys]


def test_every_block_is_far_from_singular_and_all_span_everything():
    aims = KeyAims(frames(4, 8, 32), [np.eye(32)])
    rng = np.random.default_rng(1)
    keys = chosen_keys(aims, 4, 8, rng)
    random = rng.standard_normal(keys.shape)
    assert max(conditions(keys, aims)) < 8 < max(conditions(random, aims)) / 3
    assert np.linalg.cond(keys.reshape(-1, 32)) < 4
    assert np.mean(np.sum(keys**2, axis=2)) == pytest.approx(1)


def test_keys_are_aimed_at_the_columns_that_are_asked_for():
    columns = [np.linalg.qr(C.T)[0] for C in frames(3, 5, 24, 7)]
    aims = KeyAims(frames(3, 6, 24), columns)
    [block] = chosen_keys(aims, 1, 6, np.random.default_rng(2))
    assert max(np.linalg.cond(C.T @ block.T) for C in columns) < 10
    assert max(conditions([block], aims)) < 20


# -- planes that a matrix turns, from exact and from slightly wrong matrices


def turning(frequencies, odd, seed):
    """P R P⁻¹ of a random P; ``odd`` directions do not turn."""
    rng = np.random.default_rng(seed)
    r = 2 * len(frequencies) + odd
    R = np.eye(r)
    R[: r - odd, : r - odd] = us.Rotary(frequencies).turned(np.eye(r - odd), 1.0).T
    P = rng.standard_normal((r, r))
    return P @ R @ np.linalg.inv(P)


def rebuilt(found):
    """The matrix that the planes found make."""
    r, turns = len(found.P), 2 * len(found.angles)
    R = np.eye(r)
    R[:turns, :turns] = us.Rotary(found.angles).turned(np.eye(turns), 1.0).T
    return found.P @ R @ np.linalg.inv(found.P)


@pytest.mark.parametrize("odd", [0, 1, 3])
@pytest.mark.parametrize(
    "frequencies", [[1.0, 0.1, 0.01], [3.0, 2.0], [np.pi, np.pi, 0.5], [1.0, 1.0], [1e-3, 1e-5], []]
)
def test_planes_make_the_matrix_again(frequencies, odd):
    for seed in range(4):
        T = turning(frequencies, odd, seed)
        if not T.size:
            continue
        found = turning_planes(T, 1e-9)
        cond = np.linalg.cond(T) * np.linalg.cond(found.P)
        assert np.linalg.norm(rebuilt(found) - T) <= 1e-13 * cond * np.linalg.norm(T)
        assert np.allclose(found.angles, sorted(frequencies, reverse=True), rtol=0, atol=1e-7)
        assert found.off_circle <= 1e-7


def test_what_turns_too_slowly_to_tell_does_not_turn():
    T = turning([1.0, 1e-6], 0, 0)
    assert len(turning_planes(T, 0.0).angles) == 2
    assert len(turning_planes(T, 1e-3).angles) == 1


def test_what_grows_is_off_the_circle():
    assert turning_planes(1.1 * turning([1.0], 0, 0), 0.0).off_circle == pytest.approx(0.1)


def test_errors_move_planes_by_as_much():
    T, rng = turning([1.0, 0.3], 0, 2), np.random.default_rng(0)
    for size in (1e-12, 1e-8):
        off = size * rng.standard_normal(T.shape)
        assert np.linalg.norm(rebuilt(turning_planes(T + off, 0.0)) - T) <= 1e4 * size

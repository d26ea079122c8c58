"""Heads with rotary positions to recover, and functions that are nearly one."""

import numpy as np

import unsoftmax as us


def rotary_head(d, r, seed, *, base=1e4, turning=1.0, biases=0.0, scale=1.0):
    """A random head; ``turning`` is the share of planes that turn, ``biases`` their spread."""
    rng = np.random.default_rng([d, r, seed])
    K, Q = rng.standard_normal((2, r, d)) * np.sqrt(scale) / (d * r) ** 0.25
    frequencies = us.Rotary.of(base, r).frequencies.copy()
    frequencies[int(len(frequencies) * turning) :] = 0.0
    v = rng.standard_normal(d)
    k_bias, q_bias = biases * rng.standard_normal((2, r))
    return us.SingleHead.from_factors(
        K,
        Q,
        v,
        c=0.3 if biases else 0.0,
        rotary=us.Rotary(frequencies),
        k_bias=k_bias,
        q_bias=q_bias,
    )


def scores_apart(found, true, distances):
    """Largest difference of W(Δ), biases included, over their size at Δ = 1."""
    size = np.linalg.norm(true.scores.whole(1))
    apart = [np.linalg.norm(found.scores.whole(n) - true.scores.whole(n)) for n in distances]
    return max(apart) / size


def within_bounds(recovery, target):
    """Whether W(Δ) up to Δ = 20, biases included where there are, v and c are within bounds."""
    model, errors = recovery.model, recovery.certificate.errors
    apart = max(np.linalg.norm(model.scores.whole(n) - target.scores.whole(n)) for n in range(21))
    return (
        apart <= errors["W"]
        and np.linalg.norm(model.v - target.v) <= errors["v"]
        and abs(model.c - target.c) <= errors["c"]
    )


def several_rotary(H, d, r, seed, *, base=1e4, scale=1.0, turning=1.0):
    """Random heads that share their frequencies."""
    heads = [
        rotary_head(d, r, 1000 * seed + h, base=base, scale=scale, turning=turning)
        for h in range(H)
    ]
    return us.RotaryHeads.of(heads, d)


def longest_miss(found, target, seed):
    """Largest error at two fresh sequences of 512 tokens, over the size of their terms."""
    rng = np.random.default_rng([seed, 77])
    X = rng.standard_normal((2, 512, target.dim)) / np.sqrt(target.dim)
    X *= np.array([1.0, 3.0])[:, None, None]
    size = np.linalg.norm(X, axis=2).max(axis=1) * np.linalg.norm(target.v)
    return np.max(np.abs(found(X) - target(X)) / size)


def changed(model, **arrays):
    """The same heads with other arrays."""
    return us.RotaryHeads.from_arrays({**model.arrays(), **arrays})


def biased(H, d, r, seed, spread, **settings):
    """Random heads whose biases have a deviation of ``spread``; no constant where that is 0."""
    like = several_rotary(H, d, r, seed, **settings)
    if not spread:
        return like
    rng = np.random.default_rng([seed, 7])
    biases = {name: spread * rng.standard_normal((H, r)) for name in ("k_bias", "q_bias")}
    return changed(like, c=0.3, **biases)

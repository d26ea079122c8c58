"""Attention layers with rotary positions to recover, and functions that are nearly one."""

import numpy as np
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from tests.rotary_services import in_float32


def rotary_layer(d, H, G, r, seed, *, base=1e4, residual=False, turning=1.0, m=None, biases=0.0):
    """A random layer; ``turning`` is the share of planes that turn, ``biases`` their spread."""
    rng, m = np.random.default_rng([d, H, G, r, seed]), m or d
    O = rng.standard_normal((H, m, r)) / np.sqrt(H * r)  # noqa: E741 - the projections' own names
    V, K = rng.standard_normal((2, G, r, d)) / np.sqrt(d)
    Q = rng.standard_normal((H, r, d)) / np.sqrt(d)
    frequencies = us.Rotary.of(base, r).frequencies.copy()
    frequencies[int(len(frequencies) * turning) :] = 0.0
    size = (d / r) ** 0.5 if r else 1.0
    return us.AttentionLayer.from_factors(
        O,
        V,
        K * size,
        Q,
        rng.standard_normal(m),
        rotary=us.Rotary(frequencies),
        k_bias=biases * rng.standard_normal((G, r)),
        q_bias=biases * rng.standard_normal((H, r)),
        residual=residual,
    )


def matched(model, target):
    """Pairs of heads, found and true, matched by their maps."""
    assert model.H == target.H
    heads = range(model.H)
    far = np.array(
        [[(model.values_of(f) - target.values_of(t)).norm for t in heads] for f in heads]
    )
    return list(zip(*linear_sum_assignment(far), strict=True))


def largest_errors(model, target, distances=range(21)):
    """The largest error of M_h, of W_h(Δ), of what biases add to scores, and of c."""
    pairs = matched(model, target)
    apart = [
        model.scores_of(f).whole(n) - target.scores_of(t).whole(n)
        for f, t in pairs
        for n in distances
    ]
    return {
        "M": max((model.values_of(f) - target.values_of(t)).norm for f, t in pairs),
        "W": max(float(np.linalg.norm(one[:-1, :-1])) for one in apart),
        "w": max(float(np.linalg.norm([*one[-1], *one[:-1, -1]])) for one in apart),
        "c": float(np.linalg.norm(model.c - target.c)),
    }


def relative_errors(model, target, distances=range(21)):
    """The same of M_h and W_h(Δ), over the smallest of each."""
    errors = largest_errors(model, target, distances)
    return errors["M"] / target.parameter_norm("M"), errors["W"] / target.parameter_norm("W")


def whole_error(model, target, distances=range(21)):
    """The largest error of W_h(Δ) with biases, over the smallest head's."""
    errors = largest_errors(model, target, distances)
    sizes = [float(np.linalg.norm(target.scores_of(h).whole(1))) for h in range(target.H)]
    return float(np.hypot(errors["W"], errors["w"]) / min(sizes))


def share_of_bounds(recovery, target):
    """The largest share of its bound that an error of a parameter takes."""
    errors, bounds = largest_errors(recovery.model, target), recovery.certificate.errors
    return max(errors[name] / bounds[name] for name in bounds)


def longest_miss(found, target, seed):
    """Largest error at two fresh sequences of 512 tokens, over the answers' size."""
    X = np.random.default_rng([seed, 77]).standard_normal((2, 512, target.dim))
    X *= np.array([1.0, 3.0])[:, None, None] / np.sqrt(target.dim)
    y = target(X)
    return float(np.max(np.linalg.norm(found(X) - y, axis=1) / np.linalg.norm(y, axis=1)))


def hidden_in_float32(layer):
    """A layer as libraries compute it, all in float32; the answers do not show it."""
    service = in_float32(layer)
    return lambda X: service(X).astype(np.float64)

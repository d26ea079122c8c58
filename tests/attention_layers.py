"""Attention layers to recover: random ones, and how far a recovery is from them."""

import numpy as np
from scipy.optimize import linear_sum_assignment

import unsoftmax as us
from tests.questions.layer_services import served


def factors(heads, rank, dim, seed=0, outputs=None, score_rank=None):
    """Make O, V, K, Q, w of random heads, maps and scores of unit tokens of about 1."""
    rng = np.random.default_rng([heads, rank, dim, seed])
    m, s = outputs or dim, score_rank or rank
    drawn = []
    for _ in range(heads):
        U, V = rng.standard_normal((m, rank)), rng.standard_normal((rank, dim))
        K, Q = rng.standard_normal((2, s, dim)) / dim**0.25
        w = K.T @ rng.standard_normal(s) / 3
        drawn.append([U / np.sqrt(heads * rank), V / np.sqrt(dim / rank), K, 2 * Q / np.sqrt(s), w])
    return drawn


def built(drawn, c=None, residual=False):
    """Make a layer of factors; c is random unless given."""
    m = len(drawn[0][0])
    c = np.random.default_rng(m).standard_normal(m) if c is None else c
    return us.AttentionLayer([us.LayerHead.from_factors(*head) for head in drawn], c, residual)


def layer(heads, rank, dim, seed=0, outputs=None, residual=False):
    """Draw a layer."""
    return built(factors(heads, rank, dim, seed, outputs), residual=residual)


def in_float32(target):
    """A layer as libraries compute it, all in float32; the answers do not show it."""
    service = served(target, np.float32)
    return lambda X: service(X).astype(np.float64)


def matched(model, target):
    """Pairs of heads, found and true, matched by their maps."""
    assert model.H == target.H
    far = np.array([[np.linalg.norm(f.M - t.M) for t in target.heads] for f in model.heads])
    rows, columns = linear_sum_assignment(far)
    return [(model.heads[f], target.heads[t]) for f, t in zip(rows, columns, strict=True)]


def largest_errors(model, target):
    """The largest error of each parameter over heads, by name."""
    pairs = matched(model, target)
    found = {
        name: max(
            (float(np.linalg.norm(getattr(f, name) - getattr(t, name))) for f, t in pairs),
            default=0.0,
        )
        for name in ("M", "W", "w")
    }
    return found | {"c": float(np.linalg.norm(model.c - target.c))}


def relative_errors(model, target):
    """The largest relative errors of M_h and of [W_h w_h]."""
    pairs = matched(model, target)

    def scores(head):
        return np.hstack([head.W, head.w[:, None]])

    def worst(part):
        return max(np.linalg.norm(part(f) - part(t)) / np.linalg.norm(part(t)) for f, t in pairs)

    return float(worst(lambda head: head.M)), float(worst(scores))


def share_of_bounds(recovery, target):
    """The largest share of its bound that an error takes: of parameters, and of predictions."""
    errors = largest_errors(recovery.model, target)
    bounds = recovery.certificate.errors
    shares = [errors[name] / bounds[name] for name in bounds]
    return max(*shares, predicted_share(recovery, target))


def predicted_share(recovery, target):
    """The largest share of its bound that a prediction is off by, up to 40 tokens."""
    rng, shares = np.random.default_rng(7), []
    for length in (1, 2, 7, 40):
        sizes = 10.0 ** rng.uniform(-1.5, 0.5, (8, 1, 1))
        X = sizes * rng.standard_normal((8, length, target.dim))
        y = target(X)
        off = np.linalg.norm(recovery.model(X) - y, axis=1)
        rounding = 1e-13 * (np.linalg.norm(y, axis=1) + np.linalg.norm(X, axis=2).max(axis=1))
        allowed = recovery.model.moved_at_most(X, recovery.certificate.errors)
        shares.append(np.max(off / (allowed + rounding)))
    return float(max(shares))


def count_refused(targets, learner):
    """Count targets, all of which must be refused by name: pairs of a name and a target."""
    refused = 0
    for name, target in targets:
        try:
            us.learn(lambda X, target=target: target(X), learner)
        except (us.ModelMismatch, us.NotIdentifiable):
            refused += 1
        else:
            raise AssertionError(f"{name}: presented as right")
    return refused

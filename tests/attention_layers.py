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


# -- attention layers behind a LayerNorm to recover, and how far a recovery is from them


def normalised(heads, rank, dim, seed=0, **settings):
    """Draw a layer with a residual, a LayerNorm behind it."""
    return behind(built(factors(heads, rank, dim, seed)), seed, **settings)


def behind(layer, seed=0, scale=None, eps=1e-12, centred=True):
    """Put a residual and a norm behind a layer; scale and shift are random unless given."""
    rng = np.random.default_rng([layer.dim, seed])
    drawn = 1 + 0.3 * rng.standard_normal(layer.dim)
    shift = 0.1 * rng.standard_normal(layer.dim)
    norm = us.LayerNorm(drawn if scale is None else scale, shift, eps, centred=centred)
    return us.AttentionLayer(layer.heads, layer.c, residual=True, norm=norm)


def errors_behind(model, target):
    """The error of every parameter, the worst head's, the mean over outputs taken off M and c."""
    apart = {name: 0.0 for name in ("M", "W", "w")}
    for found, true in matched(_without_mean(model), _without_mean(target)):
        for name in apart:
            missed = np.linalg.norm(getattr(found, name) - getattr(true, name))
            apart[name] = max(apart[name], float(missed))
    apart["c"] = float(np.linalg.norm(_centred(model.c) - _centred(target.c)))
    for name in ("scale", "shift"):
        pair = (getattr(one.norm, name) for one in (model, target))
        apart[name] = float(np.linalg.norm(np.subtract(*pair)))
    return apart | {"eps": abs(model.norm.eps - target.norm.eps)}


def share_behind(recovery, target):
    """The largest share of its bound that an error takes: of parameters, and of predictions."""
    apart, bounds = errors_behind(recovery.model, target), recovery.certificate.errors
    assert apart.keys() == bounds.keys()
    shares = [apart[name] / bounds[name] for name in bounds]
    return max(*shares, predicted_share(recovery, target))


def relative_behind(model, target):
    """Relative errors: the worst head's P M_h and [W_h w_h], the worst entry of the scale."""
    pairs = matched(_without_mean(model), _without_mean(target))

    def worst(part):
        return max(np.linalg.norm(part(f) - part(t)) / np.linalg.norm(part(t)) for f, t in pairs)

    scale = np.max(np.abs(model.norm.scale / target.norm.scale - 1))
    return np.array([worst(lambda h: h.M), worst(lambda h: np.hstack([h.W, h.w[:, None]])), scale])


def _centred(M):
    return M - np.mean(M, axis=0)


def _without_mean(layer):
    heads = [us.LayerHead(_centred(head.M), head.W, head.w) for head in layer.heads]
    return us.AttentionLayer(heads, layer.c)


# -- attention layers after a norm to recover, and how far a recovery is from them


def prenorm(heads, rank, dim, seed=0, **settings):
    """Draw a layer with a residual, a LayerNorm before it."""
    return after(built(factors(heads, rank, dim, seed)), seed, **settings)


def after(layer, seed=0, eps=1e-5, residual=True, centred=True):
    """Put a norm before a layer; scale and shift are random."""
    rng = np.random.default_rng([layer.dim, seed])
    scale, shift = 1 + 0.3 * rng.standard_normal(layer.dim), 0.1 * rng.standard_normal(layer.dim)
    norm = us.LayerNorm(scale, shift, eps, before=True, centred=centred)
    return us.AttentionLayer(layer.heads, layer.c, residual, norm)


def share_after(recovery, target):
    """The largest share of its bound that an error takes, of parameters in canonical form."""
    true = us.canonical(target)
    apart, bounds = largest_errors(recovery.model, true), recovery.certificate.errors
    apart["eps"] = abs(recovery.model.norm.eps - true.norm.eps)
    assert apart.keys() == bounds.keys()
    shares = [apart[name] / bounds[name] for name in bounds]
    return max(*shares, predicted_share(recovery, target))

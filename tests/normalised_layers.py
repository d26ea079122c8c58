"""Attention layers behind a LayerNorm to recover, and how far a recovery is from them."""

import numpy as np

import unsoftmax as us
from tests.attention_layers import built, factors, matched, predicted_share


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

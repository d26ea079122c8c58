"""Attention layers after a norm to recover, and how far a recovery is from them."""

import numpy as np

import unsoftmax as us
from tests.attention_layers import built, factors, largest_errors, predicted_share


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

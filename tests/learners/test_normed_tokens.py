"""Tokens that a norm maps to chosen ones."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.by_hand import driven
from tests.prenorm_layers import prenorm
from unsoftmax.learners.attention_layer.norm_before import find_normed_tokens, kind_of
from unsoftmax.learners.normed_tokens import NormedKind, TokensBefore
from unsoftmax.probes import Sequences


def found_for(target, kind, seed=0):
    """Run the search for eps on a target."""
    steps = find_normed_tokens(target.dim, kind, np.random.default_rng(seed))
    return driven(steps, target)[0]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("eps", [1.0, 1e-5, 1e-12, 1e-18])
def test_eps_is_found_to_its_error_and_tokens_are_mapped_to_those_wanted(centred, eps):
    target = prenorm(2, 4, 12, eps=eps, centred=centred)
    normed = found_for(target, NormedKind(True, centred))
    assert abs(normed.eps / eps - 1) <= 12 * normed.eps_error(0.0) <= 1e-11
    k = normed.frame.shape[1]
    assert k == 12 - centred
    t = np.random.default_rng(1).standard_normal((20, 3, k))
    t *= np.linspace(0, 0.999, 20)[:, None, None] * normed.radius
    t /= np.linalg.norm(t, axis=2, keepdims=True).clip(1)
    probes = TokensBefore(
        Sequences(t, phase="", purpose="data"),
        normed.frame + normed.means,
        normed.eps,
        phase="",
        purpose="data",
    )
    norm = us.LayerNorm(np.ones(12), None, eps, before=True, centred=centred)
    assert np.allclose(norm(probes[0:20]), t @ normed.frame.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_the_kind_of_a_norm_shows_in_three_tokens(residual, centred):
    target = prenorm(2, 4, 12, residual=residual, centred=centred)
    rng = np.random.default_rng(3)
    u, v = 256 * (rng.standard_normal((2, 12)) + np.array([[1.0], [0.5]]))
    tokens = np.array([u, v, u + v])
    zero, y = target(np.zeros((1, 1, 12)))[0], target(tokens[:, None])
    assert kind_of(tokens, y, zero) == NormedKind(residual, centred)
    plain = us.AttentionLayer(target.heads, target.c, residual)
    assert kind_of(tokens, plain(tokens[:, None]), plain.c) is None


def test_a_layer_of_normalised_tokens_is_one_of_tokens():
    target = prenorm(2, 4, 12)
    normed = found_for(target, NormedKind(True, True))
    E, heads = normed.frame, []
    for head in us.canonical(target).heads:
        U, sizes, Vt = np.linalg.svd(head.M)
        heads.append(
            us.LayerHead.from_factors(
                O=U * sizes, V=Vt @ E, K=head.W.T @ E, Q=np.eye(12) @ E, w=E.T @ head.w
            )
        )
    plain = us.AttentionLayer(heads, us.canonical(target).c)
    assert us.equivalent(normed.layer(plain), target, rtol=1e-9)

"""Smooth layers behind a norm: recovered from directions, with bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest

import unsoftmax as us
from tests.smooth_layers import smooth_errors, smooth_layer


def behind(d, m, seed, activation, gated=False, eps=1e-5, centred=True):
    """Draw a layer behind a norm; of a LayerNorm's B and c the mean, which does not show, is 0."""
    f, rng = smooth_layer(d, m, seed, activation, gated), np.random.default_rng([d, m, seed])
    scale = np.exp(0.3 * rng.standard_normal(d)) * (1 if centred else np.sign(rng.normal(size=d)))
    shift = 0.3 * rng.standard_normal(d) if centred else None
    norm = us.LayerNorm((-1) ** seed * scale, shift, eps, centred=centred)
    B, c = (one - centred * one.mean(axis=0) for one in (f.B, f.c))
    return us.FeedForward(f.A, f.b, B, c, True, norm, activation, f.gate)


def learned(target, dim, **settings):
    return us.learn(target, us.learners.FeedForwardLearner(dim, **settings))


def share(recovery, true, reach):
    """Return the largest share of its bound that an error takes: of parameters and answers."""
    found, bounds = recovery.model, recovery.certificate.errors
    errors = smooth_errors(found, true)
    errors |= {name: getattr(found.norm, name) - getattr(true.norm, name) for name in ("scale",)}
    errors |= {"shift": found.norm.shift - true.norm.shift, "eps": found.norm.eps - true.norm.eps}
    shares = [np.linalg.norm(off) / max(bounds[name], 1e-300) for name, off in errors.items()]
    rng = np.random.default_rng(7)
    x = rng.standard_normal((200, true.dim))
    x *= (reach * rng.uniform(size=200) ** 3 / np.linalg.norm(x, axis=1))[:, None]
    apart = found.sums(x) - true.sums(x)
    apart -= true.norm.centred * apart.mean(axis=1, keepdims=True)
    allowed = bounds["constant"] + bounds["slope"] * np.linalg.norm(x, axis=1)
    moved = np.linalg.norm(found(x) - true(x), axis=1)
    shares += [np.max(np.linalg.norm(apart, axis=1) / allowed)]
    shares += [np.max(moved / found.moved_at_most(x, bounds))]
    return max(shares), errors


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_wide_layers_are_right_to_rounding(activation, trials):
    for seed in range(trials(1, 20)):
        true = behind(16, 64, seed, activation)
        recovery = learned(true, 16, norm="post", seed=seed)
        worst, errors = share(recovery, true, 100.0)
        assert worst <= 1
        assert np.max(errors["A"]) < 1e-13
        assert recovery.model.activation == activation
        assert recovery.queries <= 18 * 64


KINDS = [
    ("gelu_tanh", False, True, None),
    ("softplus", False, False, "post"),
    ("tanh", False, True, "post"),
    ("silu", True, False, "post"),
    ("sigmoid", True, True, "post"),
]


@pytest.mark.parametrize(("activation", "gated", "centred", "norm"), KINDS)
def test_any_kind_is_found_within_its_bounds(activation, gated, centred, norm, trials):
    for seed in range(trials(2, 20)):
        true = behind(10, 14, seed, activation, gated, centred=centred)
        recovery = learned(true, 10, norm=norm, seed=seed)
        worst, errors = share(recovery, true, 10.0)
        assert worst <= 1
        assert np.max(errors["A"]) < 1e-12


def test_a_given_activation_is_kept_and_another_one_refused():
    true = behind(8, 12, 1, "quick_gelu")
    for norm in (None, "post"):
        found = learned(true, 8, norm=norm, activation="quick_gelu").model
        assert found.activation == "quick_gelu"
        assert us.equivalent(found, true, rtol=1e-9)
    for settings in ({"activation": "gelu"}, {"activation": "relu"}, {"gated": True}):
        with pytest.raises(us.ModelMismatch):
            learned(true, 8, norm="post", **settings)


@pytest.mark.parametrize("eps", [1e-3, 1e-7, 1e-8])
def test_of_a_small_eps_lengths_are_coarse_and_the_layer_is_not(eps):
    true = behind(12, 24, 2, "gelu", eps=eps)
    recovery = learned(true, 12, norm="post")
    worst, errors = share(recovery, true, 30.0)
    assert worst <= 1
    assert np.max(errors["A"]) < 1e-12


def test_where_eps_does_not_show_the_layer_is_refused():
    with pytest.raises(us.ModelMismatch, match="lengths, which behind a norm eps alone tells"):
        learned(behind(12, 24, 2, "gelu", eps=1e-12), 12, norm="post")


def test_neurons_of_two_activations_are_refused():
    true = behind(8, 16, 0, "gelu")

    def target(X):
        x = X[:, -1]
        z = x @ true.A.T + true.b
        h = np.where(np.arange(16) % 2, np.tanh(z), z * (1 + np.tanh(z / 2)) / 2)
        return true.norm(x + h @ true.B.T + true.c)

    with pytest.raises(us.ModelMismatch, match="bend everywhere"):
        learned(target, 8, norm="post")

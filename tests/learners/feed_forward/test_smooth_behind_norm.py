"""Smooth layers behind a norm: recovered from directions, with bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtr

import unsoftmax as us
from tests.smooth_layers import learned, share_of_bounds_behind, smooth_errors
from tests.smooth_layers import smooth_behind as behind
from tests.truth import Counted


def share(recovery, true, reach):
    """Return the largest share of a bound, and errors of parameters."""
    return share_of_bounds_behind(recovery, true, reach), smooth_errors(recovery.model, true)


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
    for seed in range(trials(1 if gated else 2, 20)):
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


FAR = ("gelu", "gelu_tanh", "silu", "softplus")


@pytest.mark.parametrize("activation", FAR)
def test_where_eps_does_not_show_the_layer_is_found_from_far(activation, trials, evidence):
    """As ReLUs first: no answer tells a length."""
    d, m = (16, 64) if trials(0, 1) else (10, 24)
    shares, errors, queries = [], [], []
    for seed in range(trials(2, 100)):
        eps, centred = [1e-12, 0.0, 1e-10][seed % 3], seed % 4 != 3
        true = behind(d, m, seed, activation, eps=eps, centred=centred)
        recovery = learned(true, d, norm="post" if seed % 2 else None, seed=seed)
        worst, off = share(recovery, true, 100.0)
        assert worst <= 1
        assert recovery.model.activation == activation
        shares.append(worst)
        errors.append([np.max(off[name]) for name in ("A", "b", "B")])
        queries.append(recovery.queries / m)
    assert np.max(errors) < 1e-7
    assert np.median(errors) < 1e-9
    assert np.mean(queries) < (16 if m == 64 else 25)
    evidence(
        f"Smooth layers of {m} neurons behind a norm without an eps to see, {activation}, d = {d}",
        layers=len(shares),
        queries_per_neuron=float(np.mean(queries)),
        median_error=float(np.median(errors)),
        largest_error=float(np.max(errors)),
        largest_share_of_bounds=float(max(shares)),
    )


@pytest.mark.parametrize("m", [1, 2])
def test_few_neurons_are_found_from_far(m, trials):
    refused = 0
    for seed in range(trials(1, 50)):
        true = behind(8, m, seed, "gelu", eps=1e-12)
        try:
            recovery = learned(true, 8, norm="post", seed=seed)
        except us.ModelMismatch:
            refused += 1
            continue
        assert share(recovery, true, 100.0)[0] <= 1
    assert refused <= trials(0, 5)


def test_sizes_and_biases_from_far(trials):
    """Rows of sizes a hundred apart, no biases, and large ones, in other units."""
    for seed in range(trials(1, 30)):
        f, rng = behind(8, 12, seed, "silu", eps=1e-12), np.random.default_rng([12, seed])
        sizes = np.exp(1.5 * rng.standard_normal((12, 1)))
        for A, b, c in (
            (sizes * f.A, f.b, f.c),
            (f.A, 0 * f.b, 0 * f.c),
            (1e4 * f.A, 9 * f.b, f.c),
        ):
            true = us.FeedForward(A, b, f.B, c, True, f.norm, "silu")
            recovery = learned(true, 8, norm="post", seed=seed)
            assert share(recovery, true, 100.0)[0] <= 1


@pytest.mark.parametrize(
    ("activation", "gated", "settings", "says"),
    [
        ("tanh", False, {"activation": "tanh"}, "lengths, which behind a norm eps alone tells"),
        ("silu", True, {"gated": True}, "lengths, which behind a norm eps alone tells"),
        ("tanh", False, {}, "too small to tell lengths"),
        ("silu", True, {}, "too small to tell lengths.*bend everywhere"),
        ("silu", False, {"activation": "gelu"}, "gelu is the nearest"),
    ],
)
def test_what_is_no_relu_from_far_is_refused_where_eps_does_not_show(
    activation, gated, settings, says
):
    true = behind(8, 8, 1, activation, gated, eps=1e-12)
    with pytest.raises(us.ModelMismatch, match=says):
        learned(true, 8, norm="post", **settings)


def half_relu(z):
    return np.where(np.arange(16) % 2, np.maximum(z, 0), z * ndtr(z))


@pytest.mark.parametrize(
    "phi",
    [
        half_relu,
        lambda z: np.where(np.arange(16) < 1, np.maximum(z, 0), z * ndtr(z)),
        lambda z: np.where(np.arange(16) % 2, z * expit(z), z * ndtr(z)),
        lambda z: np.where(np.arange(16) < 1, z * expit(z), z * ndtr(z)),
        lambda z: z * np.tanh(np.logaddexp(0, z)),
        lambda z: z * ndtr(z) + 1e-2 * z,
        lambda z: z * ndtr(z) + 1e-5 * np.sin(z),
    ],
    ids=["half ReLU", "one ReLU", "half SiLU", "one SiLU", "Mish", "leaky", "a ripple"],
)
def test_other_activations_are_refused_from_far(phi, trials):
    for seed in range(trials(1, 20)):
        true = behind(8, 16, seed, "gelu", eps=1e-12)

        def target(X, true=true):
            x = X[:, -1]
            return true.norm(x + phi(x @ true.A.T + true.b) @ true.B.T + true.c)

        with pytest.raises(us.ModelMismatch):
            learned(target, 8, norm="post", seed=seed)


def test_neurons_of_two_activations_are_refused():
    true = behind(8, 16, 0, "gelu")
    assert true.norm is not None
    norm = true.norm

    def target(X):
        x = X[:, -1]
        z = x @ true.A.T + true.b
        h = np.where(np.arange(16) % 2, np.tanh(z), z * (1 + np.tanh(z / 2)) / 2)
        return norm(x + h @ true.B.T + true.c)

    with pytest.raises(us.ModelMismatch, match="bend everywhere"):
        learned(target, 8, norm="post")


def test_one_relu_among_neurons_is_refused(trials):
    """Where no token is within the bend of a very sharp GELU it is a ReLU, and as sharp as any."""
    for seed in range(23, 23 + trials(1, 200)):
        rng = np.random.default_rng(seed)
        A, b = rng.standard_normal((6, 8)) / np.sqrt(8), 0.5 * rng.standard_normal(6)
        B, c = rng.standard_normal((8, 6)) / np.sqrt(6), 0.3 * rng.standard_normal(8)

        def target(X, A=A, b=b, B=B, c=c):
            x = X[:, -1]
            z = x @ A.T + b
            u = x + np.where(np.arange(6) < 1, np.maximum(z, 0), z * ndtr(z)) @ B.T + c
            return u / np.sqrt(np.mean(u * u, axis=1, keepdims=True) + 1e-5)

        with pytest.raises(us.ModelMismatch):
            learned(target, 8, seed=seed)


def test_a_layer_behind_a_norm_is_not_looked_for_without_one():
    """Far answers fade as a norm makes them: what it hides is said at once."""
    true, asked = behind(12, 24, 0, "gelu"), []
    assert true.norm is not None
    norm = us.LayerNorm(true.norm.scale * (np.arange(12) > 1), true.norm.shift, true.norm.eps)

    def target(X):
        asked.extend(X)
        x = X[:, -1]
        return norm(x + us.FeedForward(true.A, true.b, true.B, true.c, activation="gelu")(X))

    with pytest.raises(us.ModelMismatch, match=r"2 of 12 outputs.*a norm: Answers to long"):
        learned(target, 12)
    assert len(asked) < 300


@pytest.mark.parametrize(
    "change", ["one is sharp", "one is far behind", "one is far ahead", "three are sharp"]
)
def test_bends_that_ordinary_tokens_do_not_show_are_refused_or_bounded(change, trials, evidence):
    """From far all neurons are ReLUs: how one bends shows where tokens cross its bend alone."""
    refused, mildest, worst, count = 0, np.inf, 0.0, trials(3, 60)
    for seed in range(count):
        rng = np.random.default_rng([seed, 41])
        true, by = behind(8, 6, seed, "gelu", eps=0.0), 10.0 ** rng.uniform(0, 3)
        A, b, B = true.A.copy(), true.b.copy(), true.B.copy()
        which = slice(0, 3 if "three" in change else 1)
        if "sharp" in change:
            A[which], b[which], B[:, which] = by * A[which], by * b[which], B[:, which] / by
        else:
            b[0] = by if "ahead" in change else -by
        true = us.FeedForward(A, b, B, true.c, True, true.norm, "gelu")
        try:
            recovery = learned(true, 8, norm="post", seed=seed)
        except us.ModelMismatch:
            refused, mildest = refused + 1, min(mildest, by)
            continue
        assert recovery.model.activation == "gelu"
        worst = max(worst, share_of_bounds_behind(recovery, true, 8 * np.sqrt(8)))
        assert worst <= 1, (seed, by)
    assert mildest > 2
    evidence(
        f"smooth layers from far, {change} by 1 to 1,000",
        runs=count,
        broken=0,
        largest_share_of_the_certificate=worst,
        refused=refused,
    )


def test_a_bend_that_is_taken_for_kinks_is_refused_early():
    """One neuron's bend is far out: from where its bias is it looks like hundreds of kinks."""
    true, rng = behind(8, 6, 63, "gelu", eps=0.0), np.random.default_rng([63, 41])
    b = true.b.copy()
    b[0] = 10.0 ** rng.uniform(0, 3)
    target = Counted(us.FeedForward(true.A, b, true.B, true.c, True, true.norm, "gelu"))
    with pytest.raises(us.ModelMismatch, match="bend everywhere"):
        learned(target, 8, norm="post", seed=63)
    assert target.queries <= 1_000


@pytest.mark.parametrize(("d", "m"), [(8, 2), (16, 64)])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_gates_that_jump_from_far_are_refused_early(activation, d, m, trials):
    """From far such a gate is a step: no place of the line is asked as closely as floats tell."""
    for seed in range(trials(1, 20)):
        target = Counted(behind(d, m, seed, activation, True, eps=1e-12))
        with pytest.raises(us.ModelMismatch, match=r"too small to tell lengths.*answers jump"):
            learned(target, d, norm="post", seed=seed)
        assert target.queries <= 150 + 60 + 20 * m

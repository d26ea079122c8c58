"""A feed-forward layer after a norm: a plain layer on a ball, by chords through it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

import unsoftmax as us
from tests.feed_forward import (
    KINDS,
    after,
    behind,
    in_float32,
    layer,
    off_after,
    parameter_errors,
    seen_through,
    share_after,
)
from tests.truth import Counted
from unsoftmax.learners.feed_forward.ball_opening import LastPiece
from unsoftmax.learners.feed_forward.found_neurons import BallPart, FoundNeurons
from unsoftmax.learners.feed_forward.known_neurons import HiddenNeurons, LateNeurons, where_active
from unsoftmax.theory.counts import feed_forward_after_norm_queries


def learner(dim, seed=0, norm="pre"):
    return us.learners.FeedForwardLearner(dim, norm=norm, seed=seed)


def hidden(target):
    """Nothing but a callable."""
    return lambda X: target(X)


def relative_errors(found, true):
    """Return what A and B are off by, relatively."""
    errors = parameter_errors(found, seen_through(true))
    return [errors[name] / np.linalg.norm(getattr(found, name)) for name in "AB"]


# -- accuracy and cost


@pytest.mark.few(1)
@pytest.mark.parametrize(("d", "m"), [(64, 256), (128, 512)])
def test_about_nine_queries_for_each_neuron(d, m, trials, evidence):
    queries, function, accuracy, shares = [], [], [], []
    count, refused = trials(1, 12), 0
    for seed in range(count):
        target = after(layer(d, m, d, seed), seed, residual=bool(seed % 3), centred=seed % 2 == 0)
        oracle = Counted(hidden(target))
        try:
            recovery = us.learn(oracle, learner(d, seed))
        except us.ModelMismatch:
            refused += 1
            continue
        assert oracle.queries == recovery.queries
        queries.append(oracle.queries / m)
        function.append(off_after(recovery.model, target))
        accuracy += relative_errors(recovery.model, target)
        shares.append(share_after(recovery, target))
    assert refused <= count / 10 + trials(1, 0)
    assert np.median(queries) <= 1.1 * feed_forward_after_norm_queries(d, m) / m <= 10.6
    assert max(function) <= 1e-9
    assert max(accuracy) <= 1e-9
    assert max(shares) < 1
    evidence(
        f"Feed-forward layer after a norm, d = {d}, {m} neurons, with its hold-out",
        refused=refused,
        layers=count,
        queries_per_neuron=f"{np.median(queries):.2f} in the median, {max(queries):.2f} at most",
        largest_error_of_A_and_B=f"{max(accuracy):.1e}",
        function=f"{max(function):.1e}",
        largest_share_of_the_certificate=f"{max(shares):.2f}",
    )


SHAPES = [
    (8, 16, 8),
    (16, 32, 16),
    (16, 40, 24),
    (24, 48, 12),
    (32, 8, 32),
    (16, 1, 16),
    (7, 30, 7),
]
USUAL = [kind for kind in KINDS if kind not in ("other units", "trained-like")]


@pytest.mark.few
@pytest.mark.parametrize("centred", [True, False], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("kind", USUAL)
def test_every_kind_is_recovered_within_its_certificate(kind, centred, trials, evidence):
    worst, share, refused, count = 0.0, 0.0, 0, trials(2, 100)
    for seed in range(count):
        d, m, d_out = SHAPES[seed % len(SHAPES)]
        m = max(m, 8) if kind == "dead" else m
        target = after(
            layer(d, m, d_out, seed, kind),
            seed,
            centred,
            eps=[1e-5, 1e-12, 1e-3][seed % 3],
            residual=d == d_out and seed % 2 == 1,
        )
        try:
            recovery = us.learn(hidden(target), learner(d, seed))
        except us.ModelMismatch:
            refused += 1
            continue
        model = recovery.model
        assert model.norm.before
        assert (model.norm.centred, model.residual) == (centred, target.residual)
        assert us.equivalent(model, target, rtol=1e-6)
        worst = max(worst, off_after(model, target))
        if kind != "dead":  # neurons that never switch are not the model's
            share = max(share, share_after(recovery, target))
    assert share < 1
    assert refused <= count / 10 + trials(1, 0)
    assert worst < 1e-6  # the worst of 100 correlated layers; its certificate says so
    name = "LayerNorm" if centred else "RMSNorm"
    evidence(
        f"Feed-forward layer after a {name}, {kind}",
        refused=refused,
        layers=count,
        function=f"{worst:.1e}",
        largest_share_of_the_certificate=f"{share:.2f}",
    )


@pytest.mark.few(4)
@pytest.mark.parametrize("eps", [1e-12, 1e-8, 1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("residual", [True, False])
def test_eps_is_recovered(eps, residual):
    target = after(layer(16, 32, 16, 0), eps=eps, residual=residual)
    recovery = us.learn(hidden(target), learner(16))
    error = abs(recovery.model.norm.eps - eps)
    assert error <= recovery.certificate.errors["eps"] <= 1e-10 * eps


# -- what is determined


def with_neuron(f, bias, seed=0):
    """Add a neuron with a bias, in lengths of its row times the longest normalised token."""
    rng = np.random.default_rng(seed)
    a, column = rng.standard_normal((2, f.dim))
    row = (a - a.mean()) if f.norm.centred else a
    A = np.vstack([f.A, row / f.norm.scale])
    b = np.append(f.b, bias * np.sqrt(f.dim) * np.linalg.norm(row) - A[-1] @ f.norm.shift)
    return us.FeedForward(A, b, np.column_stack([f.B, column]), f.c, f.residual, f.norm)


@pytest.mark.parametrize("bias", [-1.5, 1.5])
def test_neurons_that_never_switch_are_silent_or_linear(bias):
    f = after(layer(8, 16, 8, 0))
    target = with_neuron(f, bias)
    recovery = us.learn(hidden(target), learner(8))
    assert us.equivalent(recovery.model, target, rtol=1e-7)
    assert bool(us.equivalent(recovery.model, f, rtol=1e-7)) == (bias < 0)
    assert (len(recovery.model.b) == 16) == (bias < 0)
    assert any("linear part" in note for note in recovery.notes) == (bias > 0)
    assert np.isfinite(recovery.certificate.errors["A"]) == (bias < 0)


def test_layers_differ_by_neurons_that_switch_alone():
    f = after(layer(8, 16, 8, 0))
    assert us.equivalent(with_neuron(f, -1.01), f)
    assert not us.equivalent(with_neuron(f, -0.9), f)
    assert not us.equivalent(with_neuron(f, 1.01), f)
    for bias in (-1.01, -0.9, 0.9, 1.01):
        assert us.equivalent(us.canonical(with_neuron(f, bias)), with_neuron(f, bias))


def test_the_certificate_says_what_tokens_would_show():
    recovery = us.learn(hidden(after(layer(8, 16, 8, 0))), learner(8))
    assert any("showed no other neuron" in said for said in recovery.certificate.assumes)


# -- without being told where the norm is


@pytest.mark.few
@pytest.mark.parametrize("centred", [True, False], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("kind", ["random", "no biases"])
def test_the_place_of_the_norm_is_found(kind, eps, centred):
    f = layer(16, 32, 16, 0, kind)
    targets = [behind(f, 0, centred, eps), after(f, 0, centred, eps)]
    targets.append(after(f, 0, centred, eps, residual=False))
    for target in targets:
        assert target.norm is not None
        recovery = us.learn(hidden(target), learner(16, norm=None))
        assert (recovery.model.norm.before, recovery.model.norm.centred) == (
            target.norm.before,
            centred,
        )
        assert recovery.model.residual == target.residual


def test_plain_layers_cost_no_more():
    for residual in (True, False):
        target = layer(16, 32, 16, 0, residual=residual)
        recovery = us.learn(hidden(target), learner(16, norm=None))
        assert recovery.model.norm is None
        assert recovery.counts["data"] + recovery.counts.get("pilot", 0) <= 330


# -- other targets


def gelu(z):
    return z * scipy.special.ndtr(z)


IMPOSTORS = {
    "GELU": (lambda f, x: x + gelu(f.norm(x) @ f.A.T + f.b) @ f.B.T, "bend wherever"),
    "tanh beside": (lambda f, x: f(x) + 1e-3 * np.tanh(f.norm(x)), "bend wherever"),
    "two layers": (
        lambda f, x: x + np.maximum(f(x) - x, 0) @ f.B[:, :12].T,
        "hidden layer|answers jump",
    ),
    "steps": (lambda f, x: x + (f.norm(x) @ f.A.T + f.b > 0) @ f.B.T, "bend wherever|jump"),
    "half a mean": (lambda f, x: f(x - 0.5 * x.mean(axis=1, keepdims=True)) + 0.0, "."),
    "half a residual": (lambda f, x: f(x) - x / 2, "not as tokens do"),
    "no norm": (lambda f, x: f.norm.shift + x @ f.A[:12].T, "not as tokens do"),
    "a norm behind": (lambda f, x: behind(layer(12, 24, 12, 0))(x), "not as tokens do"),
    "no neuron": (lambda f, x: x + 1.0, "no neuron is seen"),
    "one number": (lambda f, x: f(x)[:, 0], "one number"),
    "noise": (
        lambda f, x: f(x) + 1e-12 * np.random.default_rng().standard_normal(x.shape),
        "bend wherever",
    ),
    "decimals": (lambda f, x: np.round(f(x), 8), "too coarse"),
    "float32": (lambda f, x: in_float32(f)(f.norm(x)[:, None]), "too coarse"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_other_targets_are_refused_by_name(name, trials):
    answer, words = IMPOSTORS[name]
    for seed in range(trials(1, 10)):
        f = after(layer(12, 24, 12, seed), seed)
        with pytest.raises(us.ModelMismatch, match=words):
            us.learn(lambda X, f=f: answer(f, X[:, 0]), learner(12, seed))


def test_an_eps_of_nothing_is_not_identifiable():
    target = after(layer(12, 24, 12, 0), eps=0.0)
    with pytest.raises(us.NotIdentifiable, match="no token is short") as refused:
        us.learn(hidden(target), learner(12))
    assert refused.value.determined.keys() == {"c"}


# -- parts


def last_piece(eps, bends=()):
    """Return answers along a direction, affine in τ but for bends, and what eps is read as."""
    rng = np.random.default_rng(0)
    v = 2e-5 * 2.0 ** np.arange(0.0, 13)
    tau = 1 / np.sqrt(1 + eps / v)
    y = 1 + tau[:, None] * rng.standard_normal(6)
    for at, size in bends:
        y += size * np.maximum(0.0, at - tau)[:, None] * rng.standard_normal(6)
    return LastPiece.of(y, v, 1e-16)


def test_ratios_along_a_direction_tell_eps():
    piece = last_piece(1e-5)
    eps, error = piece.eps(2e-5)
    assert len(piece.v) == 12
    assert abs(eps / 1e-5 - 1) <= 10 * error <= 1e-12


def test_what_is_beyond_a_bend_is_left_out():
    piece = last_piece(1e-5, bends=[(0.9, 1.0)])
    assert piece.outside < piece.v[-1]
    eps, error = piece.eps(2e-5)
    assert abs(eps / 1e-5 - 1) <= 10 * error <= 1e-11


def neurons(count, k, d_out, seed=0):
    """Return neurons with columns of norm 1, and a function of all of them."""
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((count, d_out))
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    found = FoundNeurons(
        rows=rng.standard_normal((count, k)),
        row_error=np.full(count, 1e-3),
        bias=rng.standard_normal(count) - 1,
        bias_error=np.full(count, 1e-3),
        columns=columns,
        column_error=np.zeros(count),
        first=np.zeros((d_out, k)),
        first_error=0.0,
    )
    return found, BallPart(np.zeros(k), np.zeros(d_out), found)


def test_values_at_tokens_tell_rows():
    true, f = neurons(5, 4, 9)
    t = 2 * np.random.default_rng(1).standard_normal((200, 4))
    shown = HiddenNeurons(t, f(t), true.columns, true.column_error, 1e-14, 2.0)
    values = shown.values()
    assert not np.any(values.others)
    np.testing.assert_array_equal(values.shown, t @ true.rows.T + true.bias > 0)
    found, which = shown.told()
    np.testing.assert_array_equal(which, np.arange(5))
    np.testing.assert_allclose(found.rows, true.rows, atol=1e-12)
    np.testing.assert_allclose(found.bias, true.bias, atol=1e-12)


def test_a_neuron_of_another_column_is_seen():
    true, f = neurons(5, 4, 9)
    t = np.random.default_rng(1).standard_normal((80, 4))
    shown = HiddenNeurons(t, f(t), true.columns[1:], true.column_error[1:], 1e-14, 2.0)
    active = t @ true.rows[0] + true.bias[0] > 0
    np.testing.assert_array_equal(shown.values().others, active)
    assert shown.of(true.columns, np.full(5, 1e-9)).tolist() == [-1, 0, 1, 2, 3]


def test_rows_get_better_where_few_are_active():
    true, f = neurons(12, 4, 9)
    rough = FoundNeurons(
        true.rows + 1e-6,
        true.row_error,
        true.bias,
        true.bias_error,
        true.columns,
        true.column_error,
        true.first,
        0.0,
    )
    t = np.random.default_rng(1).standard_normal((400, 4))
    better = LateNeurons(t, f(t), rough, 1e-14).solved()
    np.testing.assert_allclose(better.rows, true.rows, atol=1e-11)
    assert np.all(better.row_error < 1e-11)


def test_a_token_where_neurons_are_active():
    true, _ = neurons(3, 8, 9)
    token = where_active(true, 20.0)
    np.testing.assert_allclose(np.linalg.norm(token), 20.0)
    assert np.sum(true.rows @ token + true.bias > 0) >= 1

"""Smooth and gated layers after a LayerNorm or RMSNorm: recovered with eps, bounded, or refused."""

import re

import numpy as np
import pytest
from scipy.special import expit, ndtr

import unsoftmax as us
from tests.feed_forward import after, seen_through, share_after
from tests.smooth_layers import GATED, PLAIN, in_family, learned, smooth_errors, smooth_layer
from tests.truth import Counted

KINDS = [*((name, False) for name in PLAIN), *((name, True) for name in GATED)]


def layer_after(d, m, seed, activation, gated=False, **settings):
    """Draw a smooth layer after a norm: every other one with x, and two in four centred."""
    eps = 10.0 ** np.random.default_rng([seed, d]).uniform(-12, -2)
    kind = {"residual": seed % 2 == 0, "centred": seed // 2 % 2 == 0, "eps": eps, **settings}
    return after(smooth_layer(d, m, seed, activation, gated, False), seed, **kind)


@pytest.mark.few(3)
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_layers_are_recovered(activation, gated, trials, evidence):
    """All of a layer, and the norm, found from nothing but that it is before."""
    many = trials(0, 1)
    d, m = (16, 42 if gated else 64) if many else (10, 7 if gated else 16)
    refused, shares, errors, queries, off_eps = [], [], [], [], []
    # few: with x and without, centred and not
    for seed in range(trials(1, 0), trials(3, 20)):
        true = layer_after(d, m, seed, activation, gated)
        oracle = Counted(true)
        try:
            recovery = learned(oracle, d, norm="pre", seed=seed)
        except us.ModelMismatch:
            refused.append(seed)
            continue
        model = recovery.model
        assert recovery.evidence.passed
        assert (model.norm.centred, model.residual) == (true.norm.centred, true.residual)
        off = smooth_errors(model, seen_through(true))
        assert model.activation == in_family(true).activation
        assert max(np.max(one) for one in off.values()) < 1e-5
        off_eps.append(abs(model.norm.eps / true.norm.eps - 1))
        errors.append(max(float(np.median(one)) for one in off.values()))
        shares.append(share_after(recovery, true, smooth_errors))
        queries.append(oracle.queries / m)
    assert len(refused) <= trials(0, 1)
    # softplus bends least of all
    assert np.median(errors) < (2e-8 if activation == "softplus" else 1e-8)
    assert max(off_eps) < 1e-6
    assert max(shares) <= 1
    if many:
        assert np.median(queries) <= (30 if gated else 16)
    evidence(
        f"Smooth layers of {m} {'gated ' if gated else ''}neurons after a norm, {activation}, "
        f"d = {d}",
        layers=len(shares),
        queries_per_neuron=float(np.mean(queries)),
        median_error=float(np.median(errors)),
        largest_error_of_eps=float(max(off_eps)),
        largest_share_of_bounds=float(max(shares)),
        refused=len(refused),
    )


def small_gated(d, m, seed):
    """A gated layer after a norm whose weights are small: nearly a quadratic."""
    one, k = smooth_layer(d, m, seed, "silu", True), 0.3
    arrays = k * one.A, k * one.b, k * one.B, k * one.c
    assert one.gate is not None
    G, g = one.gate
    small = us.FeedForward(*arrays, True, None, "silu", (k * G, k * g))
    return after(small, seed, centred=bool(seed % 2))


@pytest.mark.parametrize("norm", ["pre", None])
def test_gated_neurons_of_small_weights_are_no_relus(norm, trials):
    d, m = trials((8, 4), (12, 16))
    for seed in (1, 3)[: trials(1, 2)]:
        true = small_gated(d, m, seed)
        recovery = learned(true, d, norm=norm, seed=seed)
        assert recovery.model.activation == "silu"
        assert share_after(recovery, true, smooth_errors) <= 1


def test_a_refusal_says_what_was_tried():
    """Answers that are bounded and bend everywhere: of ReLUs with a norm, or of smooth neurons."""
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 40, 6))

    def target(X):
        x = X[:, -1]
        n = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5)
        return np.tanh(np.tanh(n @ A.T) @ A) @ A.T @ B

    with pytest.raises(us.ModelMismatch) as refused:
        learned(target, 6)
    assert refused.value.reason == "NEITHER_BENT_NOR_SMOOTH"
    said = str(refused.value)
    ways = re.findall(r"(?<=\. )(ReLUs|Smooth neurons)( \w+ a norm)?:", said)
    assert [*dict.fromkeys(ways)] == ways, "each way is said once"
    assert ("Smooth neurons", " after a norm") in ways
    assert ("Smooth neurons", " without a norm") in ways
    assert ways[0][0] == "ReLUs"


@pytest.mark.parametrize(
    ("settings", "gated"),
    [
        ({}, False),
        ({"norm": "pre", "activation": "gelu"}, False),
        ({"activation": "gelu"}, False),
        ({"norm": "pre", "gated": True}, True),
    ],
)
def test_whatever_is_given_it_is_found(settings, gated):
    d, m = (8, 5) if gated else (10, 9)
    true = layer_after(d, m, 3, "gelu", gated, residual=True)
    recovery = learned(true, d, **settings)
    assert us.equivalent(recovery.model, true, rtol=1e-6)
    assert recovery.model.norm.before
    assert any("RMSNorm of eps" in note for note in recovery.notes)
    assert any("for every x" in said for said in recovery.certificate.assumes)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_bounded_layers_without_a_norm_are_taken_for_none(activation):
    """Their answers do not grow either."""
    true = smooth_layer(10, 12, 1, activation, residual=False)
    oracle = Counted(true)
    model = learned(oracle, 10, activation=activation).model
    assert model.norm is None
    assert us.equivalent(model, true, rtol=1e-6)
    # what the search after a norm takes is not spent
    assert oracle.queries < 700


def test_small_scales_of_rows_are_refused():
    """Within the ball such neurons are quadratics, as far as differences show."""
    bare = smooth_layer(10, 16, 0, "gelu", residual=False)
    flat = us.FeedForward(0.03 * bare.A, bare.b, bare.B, bare.c, activation="gelu")
    with pytest.raises(us.ModelMismatch):
        learned(after(flat, 0), 10, norm="pre", activation="gelu")


def impostors(seed, d, m):
    """Functions of normalised tokens that are no layer of one activation."""
    true = layer_after(d, m, seed, "gelu", residual=False, centred=False)
    gates = layer_after(d, m // 2, seed, "silu", True, residual=False, centred=False)
    A, b, B, norm = true.A, true.b, true.B, true.norm
    rng = np.random.default_rng(seed)
    sums = gates.A, gates.b, gates.B, gates.c, False, gates.norm
    half = np.arange(m) < m // 2

    def neurons(phi):
        return lambda x: phi(norm(x) @ A.T + b) @ B.T

    def by_sums(x):
        """Divide by the sum of the deviation and √eps, not by the root of the squares' sum."""
        n = x / (np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + np.sqrt(norm.eps))
        z = (norm.scale * n + norm.shift) @ A.T + b
        return z * ndtr(z)

    yield "half SiLU", neurons(lambda z: np.where(half, z * expit(z), z * ndtr(z)))
    yield "Mish", neurons(lambda z: z * np.tanh(np.logaddexp(0, z)))
    yield "sine", neurons(np.sin)
    yield "bilinear", us.FeedForward(*sums, activation="identity", gate=gates.gate)
    yield "gates beside neurons", lambda x: gates(x) + neurons(np.tanh)(x)
    yield "two layers", lambda x: neurons(np.tanh)(np.tanh(true(x)))
    yield "another norm", lambda x: by_sums(x) @ B.T
    yield "sizes beside", lambda x: true(x) + 1e-3 * np.sum(norm(x) ** 2, axis=1, keepdims=True)
    yield "noise", lambda x: true(x) + 1e-5 * rng.standard_normal((len(x), d))
    yield "float32", lambda x: true(x).astype(np.float32)


NAMES = [name for name, _ in impostors(0, 2, 2)]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", NAMES)
def test_impostors_are_refused(name, trials, evidence):
    count, (d, m) = trials(1, 20), trials((8, 10), (10, 16))
    for seed in range(count):
        [target] = [f for known, f in impostors(seed, d, m) if known == name]
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            learned(lambda X, f=target: f(X[:, -1]), d, norm="pre", seed=seed)
    evidence(f"Nearly smooth layers after a norm refused: {name}", targets=count, refused=count)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["noise", "sine", "length"])
@pytest.mark.parametrize("size", [1e-11, 1e-12, 1e-10, 1e-9])
def test_bounds_hold_or_the_target_is_refused(kind, size, trials):
    """Errors of answers, by chance or as a function, are in the bounds of parameters and eps."""
    for seed in range(trials(1, 40)):
        true = layer_after(10, 16, seed, "gelu")
        rng = np.random.default_rng(seed)

        def answer(X, f=true, rng=rng):
            x, n = X[:, -1], f.norm.normalised(X[:, -1])
            beside = {
                "noise": lambda: rng.standard_normal((len(x), 10)),
                "sine": lambda: np.sin(3 * n @ f.A[:1].T),
                "length": lambda: np.cos(np.linalg.norm(n, axis=1, keepdims=True)),
            }
            return f(x) + size * beside[kind]()

        try:
            recovery = learned(answer, 10, norm="pre", activation="gelu", seed=seed)
        except us.ModelMismatch:
            continue
        x = rng.standard_normal((200, 10)) * np.sqrt(true.norm.eps)
        off = np.linalg.norm(recovery.model(x) - answer(x[:, None]), axis=1)
        bound = recovery.model.moved_at_most(x, recovery.certificate.errors)
        assert np.all(off <= bound + 10 * size)
        assert share_after(recovery, true, smooth_errors) <= 1


def test_an_activation_that_answers_hardly_tell_is_said(trials):
    """Of sums from 1 to 7 a tanh is 1 less an exponential, and so is a softplus."""
    for seed in range(1, 1 + trials(2, 30)):
        f = smooth_layer(10, 2, seed, "tanh")
        A, b = f.A / np.linalg.norm(f.A, axis=1, keepdims=True), np.full(2, 4.0)
        norm = us.LayerNorm(np.ones(10), None, 1e-5, before=True, centred=False)
        true = us.FeedForward(A, b, f.B, f.c, True, norm, "tanh")
        found = us.learn(true, us.learners.FeedForwardLearner(10, norm="pre", seed=seed))
        if found.model.activation != "tanh":
            assert "Answers hardly tell softplus from tanh." in found.notes

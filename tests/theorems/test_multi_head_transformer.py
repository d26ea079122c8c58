"""Several heads before a ReLU network, from scalar values: heads, first layers, and their price."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy

import unsoftmax as us
from tests.heads import row
from tests.truth import Counted, hidden, share
from unsoftmax.theory import counts

Learner = us.learners.MultiHeadTransformerLearner


def transformer(heads, dim, neurons, seed, change=None):
    """Make a target of generic weights; ``change`` returns arrays in the place of some."""
    rng = np.random.default_rng([heads, dim, neurons, seed])
    arrays = {
        "W": rng.standard_normal((heads, dim, dim)) / np.sqrt(dim),
        "B": rng.standard_normal((heads, neurons, dim)) / np.sqrt(dim),
        "w_o": rng.standard_normal(neurons),
        "b": rng.standard_normal(neurons),
        "w": rng.standard_normal((heads, dim)),
        "c": rng.standard_normal(),
    }
    if change is not None:
        arrays |= change(SimpleNamespace(**arrays), rng)
    return us.MultiHeadTransformer(**arrays)


@dataclass(frozen=True)
class Errors:
    """How far a recovery is from its target."""

    W: float
    w: float
    function: float
    """Largest error of 600 sequences of 1 to 64 tokens, over their largest answer."""
    share: float
    """Of the certificate."""


def compared(recovery, target):
    """Match heads by W, then compare."""
    found, truth = recovery.model, us.canonical(target)
    assert found.H == truth.H
    places = [int(np.argmin(np.linalg.norm(found.W - W, axis=(1, 2)))) for W in truth.W]
    assert len(set(places)) == truth.H
    rng = np.random.default_rng(5)
    missed, answers = [], []
    for tokens in (1, 2, 4, 8, 16, 64):
        X = rng.standard_normal((100, tokens, target.dim)) / np.sqrt(target.dim)
        answers.append(target(X))
        missed.append(found(X) - answers[-1])
    return Errors(
        float(np.abs(found.W[places] - truth.W).max(initial=0.0)),
        float(np.abs(found.w[places] - truth.w).max(initial=0.0)),
        float(np.max(np.abs(missed)) / np.max(np.abs(answers))),
        share(found, truth, recovery.certificate.errors),
    )


def learned(target, seed=0, heads=None, **settings):
    """Return a recovery of a target that shows nothing but its answers, counted at its side."""
    oracle = Counted(hidden(target))
    recovery = us.learn(oracle, Learner(target.dim, heads or target.H + 2, seed=seed, **settings))
    assert oracle.queries == recovery.queries
    return recovery


# -- accuracy and cost

SHAPES = [(2, 4, 8, 5.0), (3, 4, 16, 3.0), (6, 8, 32, 1.4), (4, 16, 64, 1.25), (8, 32, 64, 1.1)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("heads", "dim", "neurons", "price"), SHAPES)
def test_about_one_query_for_each_parameter(heads, dim, neurons, price, trials, evidence):
    """W to 1e-9, w to 1e-7, the function to 1e-8, in every target."""
    few = {4: 2, 8: 1, 16: 1, 32: 1}[dim]
    prices, errors = [], []
    for seed in range(trials(few, 20)):
        target = transformer(heads, dim, neurons, seed)
        recovery = learned(target, seed)
        asked = recovery.queries - recovery.counts["check"]
        prices.append(asked / counts.multi_head_transformer(dim, heads, neurons))
        errors.append(compared(recovery, target))
        assert us.equivalent(recovery.model, target, rtol=1e-6)
    # the median of a few varies
    assert np.median(prices) <= price * trials(1.03, 1)
    assert max(e.W for e in errors) <= 1e-9
    assert max(e.w for e in errors) <= 1e-7
    assert max(e.function for e in errors) <= 1e-8
    assert max(e.share for e in errors) <= 1
    evidence(
        f"{heads} heads before a network, d = {dim}, {neurons} neurons",
        targets=len(errors),
        queries_per_parameter=f"{np.median(prices):.2f} in the median, {max(prices):.2f} at most",
        W=max(e.W for e in errors),
        w=max(e.w for e in errors),
        function=max(e.function for e in errors),
        largest_share_of_the_certificate=max(e.share for e in errors),
    )


def test_the_certificate_holds(trials, evidence):
    """Random shapes and scales, a third with a residual.

    A refusal breaks no certificate, but is counted.
    """
    count, refused, shares, loose = trials(2, 1000), 0, [], []
    for seed in range(count):
        rng = np.random.default_rng([17, seed])
        heads, dim, neurons = (int(n) for n in rng.integers((1, 2, 1), (5, 7, 13)))
        size = float(10 ** rng.uniform(-1, 0.5))

        def scaled(a, rng, size=size, residual=seed % 3 == 0):
            return {"W": size * a.W} | (_residual(a, rng) if residual else {})

        target = transformer(heads, dim, neurons, seed, scaled)
        try:
            recovery = learned(target, seed)
        except us.UnsoftmaxError:
            refused += 1
            continue
        errors = compared(recovery, target)
        shares.append(errors.share)
        loose.append(recovery.certificate.errors["W"] / max(errors.W, 1e-300))
    assert max(shares) <= 1
    assert refused <= count / 20 + trials(1, 0)
    assert np.median(loose) <= trials(10_000, 1000)
    evidence(
        "Heads before a network: certificates of random shapes",
        refused=refused,
        targets=count,
        largest_share=max(shares),
        bound_of_W_over_its_error=f"{np.median(loose):.0f} in the median",
    )


@pytest.mark.parametrize(("heads", "dim", "neurons"), [(2, 4, 8), (3, 4, 16), (6, 8, 32)])
def test_polished_to_the_last_digits(heads, dim, neurons, trials, evidence):
    """Everywhere to 1e-13, for 1.1 queries more per parameter."""
    prices, errors = [], []
    for seed in range(trials(int(dim < 8), 20 if dim < 8 else 6)):
        target = transformer(heads, dim, neurons, seed)
        recovery = learned(target, seed, polish=True)
        asked = recovery.queries - recovery.counts["check"]
        prices.append(asked / counts.multi_head_transformer(dim, heads, neurons))
        errors.append(compared(recovery, target))
    if not errors:
        return
    assert max(e.W for e in errors) <= 1e-13
    assert max(e.w for e in errors) <= 1e-13
    assert max(e.function for e in errors) <= 1e-13
    assert max(e.share for e in errors) <= 1
    evidence(
        f"{heads} heads before a network, d = {dim}, {neurons} neurons, polished",
        targets=len(errors),
        queries_per_parameter=np.median(prices),
        W=max(e.W for e in errors),
        w=max(e.w for e in errors),
        function=max(e.function for e in errors),
    )


# -- what is less, or otherwise


def neuron(B: Any, by: Any, m: Any = 0) -> Any:
    """Return first layers with those of one neuron replaced."""
    B = B.copy()
    B[:, m] = by
    return B


def _mean(a: Any, _: Any) -> Any:
    return {"W": row(a.W, 0, 0), "w": row(a.w, 0, 0)}


def _low_rank(a: Any, rng: Any) -> Any:
    K, Q = rng.standard_normal((2, 4, 2, 6))
    return {"W": K.transpose(0, 2, 1) @ Q / 2, "w": np.zeros((4, 6))}


def _values(a: Any, rng: Any) -> Any:
    return {"B": rng.standard_normal((12, 6)) @ (rng.standard_normal((4, 6, 6)) / 6)}


def _no_biases(a: Any, _: Any) -> Any:
    return {"b": 0 * a.b, "w": 0 * a.w, "c": 0.0}


def _residual(a: Any, rng: Any) -> Any:
    return {"residual": rng.standard_normal(a.B[0].shape)}


def _residual_of_values(a: Any, rng: Any) -> Any:
    changed = _values(a, rng)
    return changed | {"residual": changed["B"][0] @ rng.standard_normal((6, 6))}


def _residual_around_the_network(a: Any, rng: Any) -> Any:
    """Add l·x_N to the answer: two neurons that no head reaches."""
    R, out = np.zeros(a.B[0].shape), np.array([1.0, -1.0])
    R[:2] = np.outer(out, rng.standard_normal(6))
    b, w_o = (np.concatenate([first, x[2:]]) for first, x in ((np.zeros(2), a.b), (out, a.w_o)))
    return {"B": neuron(a.B, 0, slice(2)), "b": b, "w_o": w_o, "residual": R}


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "W beside −W": lambda a, _: {"W": row(a.W, -a.W[0]), "w": row(a.w, -a.w[0])},
    "W beside 2W": lambda a, _: {"W": row(a.W, 2 * a.W[0]), "w": row(a.w, 2 * a.w[0])},
    "a head W = 0": _mean,
    "equal heads": lambda a, _: {"W": row(a.W, a.W[0]), "w": row(a.w, a.w[0])},
    "B = A V": _values,
    "W of rank 2": _low_rank,
    "no biases": _no_biases,
    "b × 30": lambda a, _: {"b": 30 * a.b},
    "b × 1000": lambda a, _: {"b": 1000 * a.b},
    "Σ B_h 1 % of B_h": lambda a, _: {"B": a.B - 0.99 * a.B.mean(axis=0)},
    "W from 0.01 to 3": lambda a, _: {"W": a.W * np.geomspace(0.01, 3, 4)[:, None, None]},
    "B × 0.001": lambda a, _: {"B": 1e-3 * a.B},
    "w × 30": lambda a, _: {"w": 30 * a.w},
    "a dead neuron": lambda a, _: {"B": neuron(a.B, 0)},
    "parallel neurons": lambda a, _: {"B": neuron(a.B, 2 * a.B[:, 0], 1)},
    "a residual": _residual,
    "a residual of 1e-6": lambda a, rng: {"residual": 1e-6 * _residual(a, rng)["residual"]},
    "B = A V and R = A V": _residual_of_values,
    "a residual beside W = 0": lambda a, rng: _mean(a, rng) | _residual(a, rng),
    "a residual around the network": _residual_around_the_network,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHANGES)
def test_special_targets(name, trials, evidence):
    """They are recovered as they are; merged heads and dead neurons are gone."""
    errors, count, refused = [], trials(1, 20), 0
    for seed in range(count):
        target = transformer(4, 6, 12, seed, CHANGES[name])
        try:
            recovery = learned(target, seed)
        except us.UnsoftmaxError:
            refused += 1
            continue
        errors.append(compared(recovery, target))
    assert refused <= count / 10 + trials(1, 0)
    assert max(e.share for e in errors) <= 1
    assert max(e.function for e in errors) <= 3e-7
    evidence(
        f"Heads before a network, {name}",
        refused=refused,
        targets=count,
        W=max(e.W for e in errors),
        function=max(e.function for e in errors),
    )


def test_a_residual_is_found_for_its_parameters(trials, evidence):
    """R is found, not told: a query for each of its numbers."""
    prices, errors, (H, d, m) = [], [], (6, 8, 32)
    for seed in range(trials(1, 20)):
        target = transformer(H, d, m, seed, _residual)
        recovery = learned(target, seed)
        free = counts.multi_head_transformer(d, H, m, residual=True)
        prices.append((recovery.queries - recovery.counts["check"]) / free)
        errors.append(compared(recovery, target))
        assert any("residual" in note for note in recovery.notes)
        assert us.equivalent(recovery.model, target, rtol=1e-6)
    assert np.median(prices) <= 1.38
    assert max(e.share for e in errors) <= 1
    assert max(e.function for e in errors) <= 1e-8
    evidence(
        "6 heads and a residual before a network, d = 8, 32 neurons",
        targets=len(errors),
        queries_per_parameter=np.median(prices),
        W=max(e.W for e in errors),
        function=max(e.function for e in errors),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("low", "price"), [(False, 1.9), (True, 2.2)])
def test_value_matrices_save_queries(low, price, trials, evidence):
    """B_h = A V_h is found, not told; ``price`` is for each parameter that is left."""
    prices, errors, (H, d, m) = [], [], (6, 8, 32)
    for seed in range(trials(1, 20)):

        def values(a, rng):
            V = rng.standard_normal((H, d, d)) / d
            if low:
                V = rng.standard_normal((H, d, 2)) @ rng.standard_normal((H, 2, d)) / d
            return {"B": rng.standard_normal((m, d)) @ V}

        target = transformer(H, d, m, seed, values)
        recovery = learned(target, seed)
        free = counts.multi_head_transformer(d, H, m, inputs=d, value_rank=2 if low else None)
        prices.append((recovery.queries - recovery.counts["check"]) / free)
        errors.append(compared(recovery, target))
    assert np.median(prices) <= price
    assert max(e.share for e in errors) <= 1
    assert max(e.function for e in errors) <= 1e-8
    evidence(
        f"6 heads before a network of d = 8 inputs, values of {'rank 2' if low else 'full rank'}",
        targets=len(errors),
        queries_per_parameter=np.median(prices),
        function=max(e.function for e in errors),
    )


def test_a_direction_that_all_heads_hardly_reach(trials, evidence):
    """As trained layers have them: the gradient tells it with its errors over 2e-4."""
    errors, (H, d, m, r) = [], (4, 12, 40, 3)
    for seed in range(trials(1, 20)):

        def values(a, rng):
            left, sizes, right = np.linalg.svd(rng.standard_normal((d, H * r)))
            sizes[-1] = 2e-4 * sizes[0]
            U = ((left * sizes) @ right).reshape(d, H, r).transpose(1, 0, 2)
            V = rng.standard_normal((H, d, r)) @ U.transpose(0, 2, 1) / d
            return {"B": rng.standard_normal((m, d)) @ V}

        target = transformer(H, d, m, seed, values)
        errors.append(compared(learned(target, seed), target))
    functions = [e.function for e in errors]
    assert max(e.share for e in errors) <= 1
    assert np.median(functions) <= 1e-8
    assert max(functions) <= 2e-7
    evidence(
        f"{H} heads before a network whose values reach a direction by 2e-4 of the others",
        targets=len(errors),
        function=f"{np.median(functions):.1e} in the median, {max(functions):.1e} at most",
    )


@pytest.mark.few(3)
@pytest.mark.parametrize(("heads", "neurons"), [(1, 1), (1, 9), (2, 3), (5, 1)])
@pytest.mark.parametrize("dim", [2, 5])
def test_few_heads_neurons_and_dimensions(dim, heads, neurons):
    target = transformer(heads, dim, neurons, 0)
    recovery = learned(target)
    assert us.equivalent(recovery.model, target, rtol=1e-6)
    assert compared(recovery, target).share <= 1


def test_one_head_is_a_transformer():
    rng = np.random.default_rng(0)
    network = us.ReluNetwork(rng.standard_normal((5, 7)), np.ones(7), rng.standard_normal(7))
    target = us.Transformer(rng.standard_normal((5, 5)) / 2, network)
    recovery = learned(us.MultiHeadTransformer.of(target))
    assert us.equivalent(recovery.model, target, rtol=1e-7)


def test_without_biases_nothing_is_left_of_them():
    target = transformer(3, 5, 8, 0, _no_biases)
    recovery = learned(target, biases=False)
    assert not np.any(recovery.model.w)
    assert us.equivalent(recovery.model, target, rtol=1e-7)


def test_a_polish_that_gains_nothing_is_left_out():
    """Biases that may be there, and are not, put the polish where no head shows."""
    target = transformer(1, 4, 8, 0, _no_biases)
    recovery = learned(target, polish=True)
    assert us.equivalent(recovery.model, target, rtol=1e-7)
    assert any("gained nothing" in note for note in recovery.notes)


def test_a_constant_is_a_layer_without_heads():
    recovery = us.learn(lambda X: np.full(len(X), 2.5), Learner(4, 3))
    assert recovery.model.H == 0
    assert recovery.model.c == 2.5
    assert "constant" in recovery.notes[0]


def test_max_heads():
    with pytest.raises(us.ModelMismatch, match="raise max_heads"):
        learned(transformer(4, 5, 8, 0), heads=2)


# -- what is nearly of its class


def layer(target, act=lambda z: np.maximum(z, 0), scores=lambda s: s):
    """Return the target with another activation, or other scores."""

    def answered(X):
        logits = scores(target.scores_of(X[:, -1]) @ X.transpose(0, 2, 1))
        pooled = scipy.special.softmax(logits, axis=2) @ X
        return act(np.einsum("bhd,hmd->bm", pooled, target.B) + target.b) @ target.w_o + target.c

    return answered


def _gelu(z: Any) -> Any:
    return z * scipy.special.ndtr(z)


def _cancelling(a: Any, _: Any) -> Any:
    return {"B": a.B - a.B.mean(axis=0)}


def _unseen(a: Any, _: Any) -> Any:
    return {"B": row(a.B, row(a.B[0], a.B[0, 0] - a.B[:, 0].sum(axis=0), 0), 0)}


TARGET = transformer(3, 5, 10, 0)
IMPOSTORS: dict[str, Any] = {
    "GELU": (layer(TARGET, _gelu), us.ModelMismatch, "smooth"),
    "tanh after the layer": (lambda X: np.tanh(TARGET(X)), us.ModelMismatch, "kinks"),
    "another layer": (lambda X: np.maximum(TARGET(X), 0) + TARGET(X), us.ModelMismatch, "ReLU"),
    "clipped scores": (
        layer(TARGET, scores=lambda s: np.clip(s, -20, 20)),
        us.ModelMismatch,
        "softmax",
    ),
    "scores of positions": (
        layer(TARGET, scores=lambda s: s + 0.3 * np.cos(np.arange(s.shape[2]))),
        us.ModelMismatch,
        "depend on positions",
    ),
    "a network of the last token": (
        lambda X: TARGET.on_single_tokens(X[:, -1]),
        us.ModelMismatch,
        "last token alone",
    ),
    "the last token squared": (lambda X: TARGET(X) + X[:, -1, 0] ** 2, us.ModelMismatch, "smooth"),
    "float32": (lambda X: TARGET(X).astype(np.float32), us.NotIdentifiable, "float64"),
    "six decimals": (us.oracles.rounded(TARGET, 6), us.NotIdentifiable, "float64"),
    "noise": (us.oracles.noisy(TARGET, 1e-9, 0), us.NotIdentifiable, "float64"),
    "first layers that cancel": (transformer(3, 5, 10, 0, _cancelling), us.ModelMismatch, "single"),
    "a neuron unseen": (transformer(3, 5, 10, 0, _unseen), us.ModelMismatch, "no single token"),
    "heads alone": (us.MultiHead(TARGET.W, TARGET.B[:, 0]), us.ModelMismatch, "MultiHeadLearner"),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", IMPOSTORS)
def test_what_is_no_such_layer_is_refused(name):
    oracle, error, words = IMPOSTORS[name]
    with pytest.raises(error, match=words):
        us.learn(hidden(oracle), Learner(5, 5))


SHARED = ["one orientation", "opposite orientations", "cancelling", "cancelling but for l·x"]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", SHARED)
def test_neurons_that_share_a_hyperplane_at_single_tokens_are_named(kind, trials, evidence):
    """One sum over heads of first layers, up to a factor: they switch apart in sequences."""
    count, named = trials(1, 60), 0
    for seed in range(count):
        heads, dim, neurons = [(2, 4, 6), (3, 5, 8), (2, 6, 12), (4, 3, 10), (2, 2, 4)][seed % 5]

        def shared(a, rng):
            apart = rng.standard_normal(a.B[:, 0].shape) / 2
            factor = rng.uniform(0.5, 2) * (-1 if kind in SHARED[1::2] else 1)
            B = neuron(a.B, factor * (a.B[:, 0] + apart - apart.mean(axis=0)), 1)
            changed = {"B": B, "b": row(a.b, factor * a.b[0])}
            if "cancelling" in kind:  # w relu(z) − w relu(z), or w relu(z) − w relu(−z)
                changed["w_o"] = row(a.w_o, -a.w_o[0] / abs(factor))
            return changed

        target = transformer(heads, dim, neurons, seed, shared)
        try:
            model = learned(target, seed).model
        except us.ModelMismatch as refusal:
            said = str(refusal)
            named += "switch apart" in said or "cancel there" in said
            continue
        # another search may have found them apart, and then all is right
        X = np.random.default_rng(seed).standard_normal((4000, 7, dim))
        y = target(X)
        assert np.max(np.abs(model(X) - y)) <= 1e-9 * np.sqrt(np.mean(y**2)), seed
    assert named >= 0.9 * count - trials(1, 0)
    evidence(
        f"Heads before a network, neurons that share a hyperplane, {kind}: refused by name",
        targets=count,
        named=named,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-4, 1e-5])
def test_first_layers_that_are_nearly_alike_are_no_single_neuron(share, trials):
    """A thousandth apart they still are told from one; closer ones are, or hardly matter."""
    for seed in range(trials(1, 60)):

        def close(a, rng):
            apart = share * rng.standard_normal(a.B[:, 0].shape)
            B = neuron(a.B, a.B[:, 0] + apart - apart.mean(axis=0), 1)
            return {"B": B, "b": row(a.b, a.b[0])}

        target = transformer(3, 5, 8, seed, close)
        try:
            recovery = learned(target, seed)
        except us.ModelMismatch:
            continue
        assert share < 1e-3, seed
        assert any("may count as one" in said for said in recovery.certificate.assumes)
        X = np.random.default_rng(seed).standard_normal((4000, 7, 5))
        y = target(X)
        assert np.max(np.abs(recovery.model(X) - y)) <= 1e-6 * np.sqrt(np.mean(y**2))


@pytest.mark.parametrize("format", ["float32", "six decimals"])
def test_coarse_answers_are_refused_by_name(format, trials, evidence):
    """Float64 is asked for, whatever else is found, where four first answers differ."""
    count, named, networks = trials(1, 300), 0, 0
    for seed in range(count):
        rng = np.random.default_rng([32, seed])
        heads, dim, neurons = (int(n) for n in rng.integers((2, 2, 1), (5, 7, 13)))
        target = transformer(heads, dim, neurons, seed)
        coarse: dict[str, Any] = {
            "float32": lambda X, f=target: f(X).astype(np.float32),
            "six decimals": us.oracles.rounded(target, 6),
        }
        with pytest.raises((us.NotIdentifiable, us.ModelMismatch)) as refusal:
            us.learn(hidden(coarse[format]), Learner(dim, 5, seed=seed))
        named += "float64" in str(refusal.value)
        networks += "network" in getattr(refusal.value, "determined", {})
    assert named >= 0.9 * count - trials(1, 0)
    evidence(
        f"Heads before a network, {format}: too coarse",
        refused=count,
        by_this_name=named,
        with_their_network=networks,
    )


def test_one_dimension_is_refused_by_name():
    with pytest.raises(us.NotIdentifiable, match="fewer than two dimensions") as refusal:
        learned(transformer(2, 1, 3, 0))
    assert isinstance(refusal.value.determined["network"], us.ReluNetwork)


def test_random_impostors_are_refused(trials, evidence):
    """A layer that answers otherwise by a little, in many ways."""
    count = trials(1, 500)
    for seed in range(count):
        rng = np.random.default_rng([6, seed])
        target = transformer(int(rng.integers(2, 4)), 4, int(rng.integers(2, 8)), seed)
        size = 10 ** rng.uniform(-4, 0)
        other = [
            lambda X, f=target, e=size: f(X) + e * np.sin(f(X)),
            lambda X, f=target, e=size: f(X) + e * (X[:, 0] * X[:, -1]).sum(axis=1),
            layer(target, scores=lambda s, e=size: s - e * np.arange(s.shape[2])[::-1]),
            layer(target, scores=lambda s, e=size: s / (1 + e * np.log(s.shape[2]))),
            lambda X, f=target, e=size: f(X) + e * np.linalg.norm(X.mean(axis=1), axis=1),
            lambda X, f=target, e=size: f(X) + e * len(X[0]),
        ][seed % 6]
        with pytest.raises(us.UnsoftmaxError):
            us.learn(other, Learner(4, 5, seed=seed))
    evidence("Targets that nearly are heads before a network: refused", refused=count)


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [((0, 2), {}), ((3, -1), {}), ((3, 2), {"rank": 4}), ((3, 2), {"rank": 0})],
)
def test_arguments(arguments, settings):
    with pytest.raises(ValueError, match=r"must be"):
        Learner(*arguments, **settings)


def test_constant_and_slope_bound_the_network_alone():
    """Put max‖x_i‖ in the place of ‖p‖, and whole answers are missed by many times as much."""
    rng = np.random.default_rng(2)
    W, B = rng.standard_normal((3, 4, 4)), rng.standard_normal((3, 6, 4))
    target = us.MultiHeadTransformer(W, B, *rng.standard_normal((2, 6)))
    recovery = us.learn(target, us.learners.MultiHeadTransformerLearner(4))
    errors, X = recovery.certificate.errors, 2 * rng.standard_normal((4000, 5, 4))
    read = errors["constant"] + errors["slope"] * np.linalg.norm(X, axis=2).max(axis=1)
    assert np.max(np.abs(recovery.model(X) - target(X)) / read) > 1
    [said] = [line for line in recovery.certificate.assumes if "constant + slope" in line]
    assert "no bound on the answer to a sequence" in said

"""A feed-forward layer with a residual and a norm behind: neurons from directions of vectors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

import unsoftmax as us
from tests.feed_forward import KINDS, behind, layer, share_behind
from tests.truth import Counted
from unsoftmax.arrangement.direction_kinks import DirectionPiece, affine_of_directions
from unsoftmax.learners.feed_forward.found_neurons import ResidualPart, sides_of
from unsoftmax.learners.feed_forward.hyperplane_spots import CrossedPieces


def learner(dim, seed=0):
    return us.learners.FeedForwardLearner(dim, norm="post", seed=seed)


def hidden(target):
    """Nothing but a callable."""
    return lambda X: target(X)


def off_by(found, true, scale=1.0):
    """Return the largest error of an answer, relative to the scale."""
    rng = np.random.default_rng(1)
    x = scale * rng.standard_normal((300, true.dim)) * 10.0 ** rng.uniform(-1, 3, (300, 1))
    return float(np.max(np.abs(found(x) - true(x)) / np.abs(true.norm.scale)))


# -- accuracy and cost


def test_nine_queries_for_each_neuron(trials, evidence):
    """At (128, 512), where one line does."""
    queries, shares, function = [], [], []
    for seed in range(1, 1 + trials(1, 20)):
        target = behind(layer(128, 512, 128, seed), seed)
        oracle = Counted(hidden(target))
        recovery = us.learn(oracle, learner(128, seed))
        assert oracle.queries == recovery.queries
        queries.append(oracle.queries / 512)
        shares.append(share_behind(recovery, target))
        function.append(off_by(recovery.model, target))
        assert us.equivalent(recovery.model, target, rtol=1e-6)
    assert np.median(queries) <= 9.1
    assert max(shares) < 1
    assert max(function) < 1e-8
    evidence(
        "Feed-forward layer behind a LayerNorm, d = 128, 512 neurons, with its hold-out",
        layers=len(queries),
        queries_per_neuron=f"{np.median(queries):.2f} in the median, {max(queries):.2f} at most",
        function=f"{max(function):.1e}",
        largest_share_of_the_certificate=f"{max(shares):.2f}",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [5, 6], ids=["kinks 4e-7 apart", "a crossing that goes astray"])
def test_crossings_that_contradict_the_line_are_repeated_on_it(seed):
    """A second line would make it 18 queries for each neuron or more."""
    target = behind(layer(128, 512, 128, seed), seed)
    oracle = Counted(hidden(target))
    recovery = us.learn(oracle, learner(128, seed))
    assert oracle.queries <= 12 * 512
    assert off_by(recovery.model, target) < 1e-8
    assert share_behind(recovery, target) < 1


SHAPES = [(12, 24), (32, 64), (16, 40), (7, 9), (16, 2), (16, 1), (24, 48), (32, 8), (5, 5)]


@pytest.mark.few
@pytest.mark.parametrize("centred", [True, False], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_recovered_within_its_certificate(kind, centred, trials, evidence):
    worst, share, refused, count = 0.0, 0.0, 0, trials(1, 100)
    units = 50.0 if kind == "other units" else 1.0
    for seed in range(count):
        d, m = SHAPES[seed % len(SHAPES)]
        target = behind(
            layer(d, m, d, seed, kind), seed, centred, eps=[1e-5, 1e-12, 0.01][seed % 3]
        )
        try:
            recovery = us.learn(hidden(target), learner(d, seed))
        except us.ModelMismatch:
            refused += 1
            continue
        assert recovery.model.norm.centred == centred
        share = max(share, share_behind(recovery, target, units))
        worst = max(worst, off_by(recovery.model, target, units))
    assert share < 1
    assert refused <= count / 10 + trials(1, 0)
    assert worst < 1e-4
    name = "LayerNorm" if centred else "RMSNorm"
    evidence(
        f"Feed-forward layer behind a {name}, {kind}",
        refused=refused,
        layers=count,
        function=f"{worst:.1e}",
        largest_share_of_the_certificate=f"{share:.2f}",
    )


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0])
def test_eps_is_recovered(eps):
    target = behind(layer(16, 32, 16, 0), eps=eps)
    recovery = us.learn(hidden(target), learner(16))
    error = abs(recovery.model.norm.eps - eps)
    assert error <= recovery.certificate.errors["eps"] <= max(0.1 * eps, 1e-12)


def test_scales_of_four_decades():
    f = layer(12, 24, 12, 3)
    norm = us.LayerNorm(np.logspace(-2, 2, 12), np.linspace(-1, 1, 12), 1e-5)
    target = us.FeedForward(f.A, f.b, f.B, f.c, True, norm)
    recovery = us.learn(hidden(target), learner(12))
    assert share_behind(recovery, target) < 1
    assert off_by(recovery.model, target) < 1e-5


# -- other targets


def gelu(z):
    return z * scipy.special.expit(1.702 * z)


def with_norm(f, norm, sums):
    return lambda X: norm(sums(f, X[:, 0]))


IMPOSTORS = {
    "GELU": (lambda f, x: x + gelu(x @ f.A.T + f.b) @ f.B.T, "bend everywhere"),
    "tanh beside": (lambda f, x: x + f(x) + 1e-3 * np.tanh(x), "bend everywhere"),
    "no residual": (lambda f, x: f(x), "residual|too few directions"),
    "another layer": (lambda f, x: x + np.maximum(x + f(x), 0) @ f.B[:, :12].T, "."),
    "steps": (lambda f, x: x + (x @ f.A.T + f.b > 0) @ f.B.T, "."),
    "no neuron": (lambda f, x: x @ f.A[:12] + 1.0, "nothing bends"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_other_sums_are_refused(name, trials):
    sums, words = IMPOSTORS[name]
    for seed in range(trials(1, 10)):
        f = layer(12, 24, 12, seed)
        target = with_norm(f, behind(f, seed).norm, sums)
        with pytest.raises(us.ModelMismatch, match=words):
            us.learn(target, learner(12, seed))


def softened(u):
    return np.tanh(u / np.linalg.norm(u, axis=1, keepdims=True))


OTHERS = {
    "no norm": (lambda f, x: f(x) + x, "grow with tokens"),
    "fewer outputs": (lambda f, x: f(x)[:, :5], "5 numbers and tokens 12"),
    "an output of scale 0": (
        lambda f, x: behind(f)(x) * (np.arange(12) > 0),
        "scale is 0",
    ),
    "another function behind": (lambda f, x: softened(f(x) + x), "no ellipsoid|one point"),
    "noise": (
        lambda f, x: behind(f)(x) + 1e-9 * np.random.default_rng().standard_normal(x.shape),
        "too coarse|no ellipsoid|one point",
    ),
    "float32": (
        lambda f, x: behind(f)(x.astype(np.float32)).astype(np.float32),
        "too coarse|no ellipsoid",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_norms_are_refused(name):
    answer, words = OTHERS[name]
    f = layer(12, 24, 12, 0)
    with pytest.raises(us.ModelMismatch, match=words):
        us.learn(lambda X: answer(f, X[:, 0]), learner(12))


class Drifting:
    """Answers that grow by a share with every thousand queries."""

    def __init__(self, target, rate):
        self.target, self.rate, self.asked = target, rate, 0

    def __call__(self, X):
        self.asked += len(X)
        return self.target(X) * (1 + self.rate * self.asked / 1000)


@pytest.mark.parametrize("rate", [0.0, 1e-12, 1e-11])
def test_a_drift_that_directions_hide_widens_the_norms_bounds(rate):
    """An RMSNorm without a shift: what grows as a whole keeps its direction."""
    for seed in range(2):
        target = behind(layer(8, 12, 8, seed), seed, centred=False)
        recovery = us.learn(Drifting(target, rate), learner(8))
        assert share_behind(recovery, target) <= 1
        drifts = any("drift" in sentence for sentence in recovery.certificate.assumes)
        assert drifts == (rate > 0)


def test_a_drift_that_ends_the_search_is_named():
    for seed in range(2):
        target = Drifting(behind(layer(8, 12, 8, seed), seed), 1e-9)
        with pytest.raises(us.ModelMismatch, match="the target drifts or is noisy"):
            us.learn(target, learner(8))


def test_too_few_dimensions_are_a_wrong_argument():
    with pytest.raises(ValueError, match="dim must be 5 or more"):
        learner(4)
    with pytest.raises(ValueError, match="norm must be one of"):
        us.learners.FeedForwardLearner(8, norm="before")


# -- parts


def test_three_directions_tell_a_piece_but_for_a_factor():
    rng = np.random.default_rng(0)
    at, slope = rng.standard_normal((2, 9))
    t = np.array([0.5, 0.7, 2.0])
    p = at + t[:, None] * slope
    w = p / np.linalg.norm(p, axis=1, keepdims=True)
    piece = affine_of_directions(t, w, 1e-16)
    assert isinstance(piece, DirectionPiece)
    there = piece.at(-3.0)
    expected = at - 3.0 * slope
    np.testing.assert_allclose(
        there / np.linalg.norm(there), expected / np.linalg.norm(expected), atol=1e-13
    )
    assert affine_of_directions(t, w * [[1.0], [-1.0], [1.0]], 1e-16) is None


def test_five_directions_tell_a_bend():
    rng = np.random.default_rng(0)
    at, slope, bend = rng.standard_normal((3, 4, 9)) * [[[1.0]], [[0.1]], [[0.05]]]
    values = [at + s * slope + bend * max(0.0, s + 0.03) for s in (0.0, 0.5, 1.0, -0.5, -1.0)]
    w = [p / np.linalg.norm(p, axis=1, keepdims=True) for p in values]
    across = CrossedPieces.of(*w)
    np.testing.assert_allclose(across.place, -0.03, atol=1e-12)
    size = np.linalg.norm(values[1], axis=1, keepdims=True)
    np.testing.assert_allclose(size * across.bend, bend, atol=1e-12)


@pytest.mark.parametrize("rows", [False, True])
def test_a_residual_of_any_share_is_found(rows):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 10, 6))
    back = rng.random(10) < 0.5
    shares = rng.standard_normal(6) if rows else np.full(6, -0.3)
    first = np.diag(shares) - B[back].T @ A[back]
    part = ResidualPart(np.eye(6), free=True, rows=rows)
    sides = sides_of(A, B, first, 1e-13, residual=part)
    np.testing.assert_array_equal(sides.back, back)
    np.testing.assert_allclose(np.resize(sides.added, 6), shares, atol=1e-12)
    assert sides.linear is None

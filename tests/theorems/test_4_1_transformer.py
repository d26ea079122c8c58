"""Section 4.1: a one-layer Transformer, by the paper's reduction and through the known network."""

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import unsoftmax as us
from tests.networks import KINDS, network, within
from tests.truth import Counted, hidden, relative
from unsoftmax.probes import Singles
from unsoftmax.protocol import Certificate, Evidence, Found, Plan

Learner = us.learners.TransformerLearner
SIZES = [(16, 32), (32, 64), (64, 128), (128, 256)]


def transformer(kind, d, m, seed, biases=True, size=1.0, bias=0.0, rank=None):
    """Make a target with ‖W‖₂ = size and ‖w‖ = bias·‖W‖_F/√d."""
    rng = np.random.default_rng([d, m, seed, 5])
    K, Q = rng.standard_normal((2, rank or d, d))
    K *= size / np.linalg.norm(K.T @ Q, 2)
    w = K.T @ rng.standard_normal(len(K))
    w *= bias * np.linalg.norm(K.T @ Q) / np.sqrt(d) / np.linalg.norm(w)
    g = network(kind, d, m, seed, biases)
    if rank is None:
        return us.Transformer(K.T @ Q, g, w)
    return us.Transformer.from_factors(K, Q, g, w)


def error_on_sequences(found, target, count=200):
    """Largest error on sequences of 1 to 8 tokens over the root mean square of the answers."""
    rng = np.random.default_rng(77)
    missed, answers = [], []
    for length in range(1, 9):
        X = rng.standard_normal((count, length, target.dim)) / np.sqrt(target.dim)
        answers.append(target(X))
        missed.append(found(X) - answers[-1])
    return float(np.max(np.abs(missed)) / np.sqrt(np.mean(np.square(answers))))


def asked_for_attention(oracle, recovery, learner, d):
    """Queries beyond the network's own and the hold-out, by the oracle's count."""
    alone = Counted(oracle.target)
    us.learn(alone, us.learners.ReluNetworkLearner(d, seed=learner.seed), holdout=0)
    return oracle.queries - recovery.counts["check"] - alone.queries


# -- the claims of the local way


@pytest.mark.few
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("kind", KINDS)
def test_one_query_per_entry_of_W(kind, size, trials, evidence):
    errors, prices, functions = [], [], []
    for (d, m), seed in itertools.product(SIZES[: trials(1, 4)], range(trials(1, 2))):
        target = transformer(kind, d, m, seed, size=size)
        learner, oracle = Learner(d, seed=seed), Counted(hidden(target))
        recovery = us.learn(oracle, learner)
        assert oracle.queries == recovery.queries
        errors.append(relative(recovery.model.W, target.W))
        prices.append(asked_for_attention(oracle, recovery, learner, d) / d**2)
        functions.append(error_on_sequences(recovery.model, target))
        assert errors[-1] <= recovery.certificate.W_error / np.linalg.norm(target.W)
        assert not np.any(recovery.model.w)
    assert max(errors) <= 5e-9
    assert max(prices) <= 1.2
    assert max(functions) <= trials(1e-8, 2e-9)
    evidence(
        f"Transformer, {kind} network, ‖W‖ = {size:g}",
        largest_error_of_W=max(errors),
        queries_per_entry=max(prices),
        largest_error_on_sequences=max(functions),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e2])
def test_anchored_to_1e_12(size, trials, evidence):
    errors, prices = [], []
    for kind, (d, m) in itertools.product(KINDS, SIZES[: trials(1, 4)]):
        target = transformer(kind, d, m, 3, size=size)
        learner, oracle = Learner(d, anchored=True), Counted(hidden(target))
        recovery = us.learn(oracle, learner)
        errors.append(relative(recovery.model.W, target.W))
        prices.append(asked_for_attention(oracle, recovery, learner, d) / d**2)
        assert errors[-1] <= recovery.certificate.W_error / np.linalg.norm(target.W)
    assert max(errors) <= 1e-12
    assert round(max(prices), 1) <= 2.1
    evidence(
        f"Transformer, anchored, ‖W‖ = {size:g}",
        largest_error_of_W=max(errors),
        queries_per_entry=max(prices),
    )


def test_query_biases(trials):
    for kind, (d, m) in itertools.product(KINDS, SIZES[: trials(1, 3)]):
        target = transformer(kind, d, m, 1, bias=1.0)
        head = us.learners.ExactHead(d, biases=True)
        recovery = us.learn(hidden(target), Learner(d, head=head, anchored=True))
        assert relative(recovery.model.W, target.W) <= 1e-9
        assert relative(recovery.model.w, target.w) <= 1e-9
        assert np.linalg.norm(recovery.model.w - target.w) <= recovery.certificate.errors["w"]


@pytest.mark.parametrize("biases", [False, True], ids=["no query biases", "query biases"])
def test_low_rank_composes(biases, trials):
    for d, m, r in ((16, 32, 2), (32, 64, 8), (48, 20, 1))[: trials(1, 3)]:
        target = transformer("random", d, m, 2, rank=r, bias=float(biases))
        learner = Learner(d, head=us.learners.LowRankHead(d, r, biases=biases), anchored=True)
        oracle = Counted(hidden(target))
        recovery = us.learn(oracle, learner)
        assert relative(recovery.model.W, target.W) <= 1e-9
        assert relative(recovery.model.w, target.w) <= 1e-9
        assert recovery.model.arrays()["K"].shape == (r, d)
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
        price = asked_for_attention(oracle, recovery, learner, d)
        assert price <= 2 * (r * (2 * d - r) + r * biases) + 3 * d


def test_the_certificate_holds(trials, evidence):
    """Random targets of all kinds; a refusal breaks no certificate, but is counted."""
    count, refused, loose = trials(5, 600), 0, []
    for seed in range(count):
        rng = np.random.default_rng([8, seed])
        d, m = int(rng.integers(1, 14)), int(rng.integers(1, 20))
        biased = bool(rng.integers(2))
        rank = int(rng.integers(1, d + 1)) if rng.integers(2) else None
        target = transformer(
            KINDS[seed % 4], d, m, seed, bool(rng.integers(2)), 10 ** rng.uniform(-2, 2),
            float(biased), rank,
        )  # fmt: skip
        head = _head(d, rank, biased)
        learner = Learner(d, head=head, anchored=bool(rng.integers(2)), seed=seed)
        try:
            recovery = us.learn(hidden(target), learner)
        except us.UnsoftmaxError:
            refused += 1
            continue
        errors = recovery.certificate.errors
        missed = np.linalg.norm(recovery.model.W - target.W)
        assert missed <= errors["W"], seed
        assert np.linalg.norm(recovery.model.w - target.w) <= errors["w"], seed
        g = us.Recovery(recovery.model.network, *_rest_of(recovery))
        assert within(g, target.network, d, True), seed
        assert recovery.evidence.passed
        if missed:
            loose.append(errors["W"] / missed)
    assert refused <= 0.05 * count + trials(1, 0)
    evidence(
        "certificate of a Transformer",
        trials=count,
        broken=0,
        refused=refused,
        median_looseness=np.median(loose),
    )


def _head(d, rank, biases):
    """What the attention is like."""
    if rank is None:
        return us.learners.ExactHead(d, biases=biases)
    return us.learners.LowRankHead(d, rank, biases=biases)


def _rest_of(recovery):
    """Everything of a recovery but its model."""
    parts = (getattr(recovery, name) for name in recovery.__dataclass_fields__)
    return tuple(parts)[1:]


# -- the paper's way


@pytest.mark.parametrize(("d", "m"), [(1, 1), (2, 3), (8, 12), (16, 32)])
def test_the_antisymmetric_part_is_a_single_head(d, m, trials):
    for seed in range(trials(1, 3)):
        target = transformer("random", d, m, seed, biases=False)
        oracle = Counted(hidden(target))
        recovery = us.learn(oracle, Learner(d, attention="antisymmetric", seed=seed))
        assert relative(recovery.model.W, target.W) <= 1e-11
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
        alone = Counted(hidden(target))
        g = us.learners.ReluNetworkLearner(d, biases=False, seed=seed)
        us.learn(alone, g, holdout=0)
        again = recovery.counts.get("again", 0)
        checks = recovery.counts["check"]
        assert checks <= 32
        assert oracle.queries == alone.queries + 2 * (d + d * d) + again + checks


def test_any_generator_of_a_single_head_learns_it():
    d, r = 24, 2
    target = transformer("random", d, 30, 0, biases=False, rank=r)
    head = us.learners.LowRankHead(d)
    oracle = Counted(hidden(target))
    recovery = us.learn(oracle, Learner(d, head=head, attention="antisymmetric"))
    assert relative(recovery.model.W, target.W) <= 1e-10
    assert recovery.model.arrays()["K"].shape == (r, d)


def cancelled(d, h, seed):
    """A w_o = 0: neurons in pairs of opposite signs."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, h))
    w_o = np.abs(rng.standard_normal(h)) + 0.5
    g = us.ReluNetwork(np.hstack([A, -A]), np.append(w_o, w_o))
    return us.Transformer(rng.standard_normal((d, d)) / np.sqrt(d), g)


def test_where_A_w_o_is_0_the_local_way_is_named_and_works():
    for d, h in ((6, 4), (12, 20)):
        target = cancelled(d, h, d)
        with pytest.raises(us.NotIdentifiable, match='attention="local"') as refusal:
            us.learn(hidden(target), Learner(d, attention="antisymmetric"))
        assert us.equivalent(refusal.value.determined["network"], target.network)
        for g in (None, us.learners.ReluNetworkLearner(d, biases=False)):
            recovery = us.learn(hidden(target), Learner(d, network=g))
            assert relative(recovery.model.W, target.W) <= 5e-9


def test_biases_are_refused_by_the_papers_way():
    target = transformer("random", 6, 9, 0)
    for g in (None, us.learners.ReluNetworkLearner(6)):
        with pytest.raises(us.ModelMismatch, match=r"biases"):
            us.learn(hidden(target), Learner(6, network=g, attention="antisymmetric"))


# -- another A_FFN


@dataclass(frozen=True)
class Axes:
    """Learns Σ_k s_k·relu(x_k) + t_k·relu(−x_k) from x = ±e_k: d-dimensional, 2d queries."""

    dim: int
    bounded: bool = True
    revision: ClassVar[int] = 1

    def settings(self):
        return {"learner": "Axes", "dim": self.dim}

    def plan(self):
        return Plan(2 * self.dim, 2 * self.dim, 2 * self.dim, 1, "2d")

    def steps(self, checks):
        eye = np.eye(self.dim)
        [y] = yield [Singles(np.vstack([eye, -eye]), phase="axes", purpose="data")]
        errors = {"constant": 0.0, "slope": 1e-15} if self.bounded else {}
        return Found(
            us.ReluNetwork(np.hstack([eye, -eye]), y),
            Certificate(errors, ("The network has one neuron per half axis.",)),
            Evidence.of(0, np.zeros(0), np.zeros(0)),
        )


def test_any_learner_of_a_network_may_take_the_role_of_A_FFN():
    rng = np.random.default_rng(0)
    eye = np.eye(7)
    g = us.ReluNetwork(np.hstack([eye, -eye]), rng.standard_normal(14))
    target = us.Transformer(rng.standard_normal((7, 7)), g)
    for attention in ("local", "antisymmetric"):
        oracle = Counted(hidden(target))
        recovery = us.learn(oracle, Learner(7, network=Axes(7), attention=attention))
        assert relative(recovery.model.W, target.W) <= 1e-12
        assert oracle.queries <= 2 * 7 + 2 * (7 + 49) + 32 + 14
    recovery = us.learn(hidden(target), Learner(7, network=Axes(7, bounded=False)))
    assert relative(recovery.model.W, target.W) <= 1e-12
    assert recovery.certificate.W_error == np.inf
    assert any("No bound on W" in sentence for sentence in recovery.certificate.assumes)


def test_a_network_that_is_not_the_targets_is_refused():
    target = transformer("random", 7, 9, 0, biases=False)
    with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
        us.learn(hidden(target), Learner(7, network=Axes(7)))


# -- the smallest, and what is refused


@pytest.mark.few(4)
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (1, 4), (2, 1), (3, 2), (16, 1)])
def test_the_smallest(d, m, biases, trials):
    for seed in range(trials(1, 20)):
        target = transformer("random", d, m, seed, biases)
        g = us.learners.ReluNetworkLearner(d, biases=biases)
        recovery = us.learn(hidden(target), Learner(d, network=g, seed=seed))
        # one neuron in 16 dimensions: most tokens reach it from afar only
        assert us.equivalent(recovery.model, target, rtol=5e-9 if d < 16 else 1e-7)


def test_a_linear_network_is_the_single_head(trials):
    for d in (1, 2, 9):
        rng = np.random.default_rng(d)
        head = us.SingleHead(rng.standard_normal((d, d)), rng.standard_normal(d), None, 0.5)
        recovery = us.learn(hidden(head), Learner(d))
        assert us.equivalent(recovery.model, head, rtol=1e-11)
        assert us.equivalent(head, recovery.model, rtol=1e-11)


@pytest.mark.parametrize("attention", ["local", "antisymmetric"])
@pytest.mark.parametrize("constant", [0.0, 2.0])
def test_a_constant_network_leaves_W_free(constant, attention):
    target = us.Transformer(np.eye(4), us.ReluNetwork(np.zeros((4, 0)), [], None, constant))
    expected = us.ModelMismatch if constant and attention == "antisymmetric" else us.NotIdentifiable
    with pytest.raises(expected) as refusal:
        us.learn(hidden(target), Learner(4, attention=attention))
    if isinstance(refusal.value, us.NotIdentifiable):
        assert refusal.value.determined["network"].c == constant


def test_a_learner_that_finds_no_network_is_named():
    learner = Learner(3, network=us.learners.ExactHead(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ReluNetwork"):
        us.learn(us.SingleHead(np.eye(3), np.ones(3)), learner)


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
def test_extreme_W(size):
    g = network("random", 6, 9, 0)
    target = us.Transformer(size * np.linalg.qr(np.vander(np.arange(1.0, 7.0)))[0], g)
    recovery = us.learn(hidden(target), Learner(6))
    assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
    assert np.linalg.norm(recovery.model.W - target.W) <= 1e-9 * max(size, 1e-9)


def test_answers_in_float32_reach_what_they_allow(trials):
    found = 0
    for seed in range(trials(3, 6)):
        target = transformer("random", 6, 6, seed)
        try:
            recovery = us.learn(lambda X, T=target: T(X).astype(np.float32), Learner(6, seed=seed))
        except us.NotIdentifiable:
            continue
        found += 1
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
        assert relative(recovery.model.W, target.W) <= 1e-3
    assert found >= trials(1, 3)


def impostors():
    d = 6
    rng = np.random.default_rng(0)
    one, two = (transformer("random", d, 9, seed) for seed in (0, 1))
    other = us.Transformer(two.W, one.network)
    W = rng.standard_normal((d, d))

    def positional(X):
        shift = 0.1 * np.arange(X.shape[1])[:, None]
        return one(X + shift - shift[-1:])

    def residual(X):
        return one(X) + X[:, -1] @ W[0]

    def normalised(X):
        return one(X / np.maximum(1, np.linalg.norm(X, axis=2, keepdims=True)))

    def hard(X):
        best = np.einsum("bnd,de,be->bn", X, W, X[:, -1]).argmax(axis=1)
        return one.network(X[np.arange(len(X)), best])

    return {
        "two heads before one network": lambda X: one.network(
            (pooled(one, X) + pooled(other, X)) / 2
        ),
        "two Transformers": lambda X: one(X) + other(X),
        "a weak second one": lambda X: one(X) + 1e-4 * other(X),
        "positions": positional,
        "a residual connection": residual,
        "normalised tokens": normalised,
        "hard attention": hard,
        "a temperature that depends on the length": lambda X: us.Transformer(
            one.W * np.sqrt(X.shape[1]), one.network
        )(X),
        "query biases": us.Transformer(one.W, one.network, rng.standard_normal(d)),
    }


def pooled(model, X):
    return np.einsum("bn,bnd->bd", model.attention(X), X)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", tuple(impostors()))
def test_what_is_no_transformer_is_refused(name, trials):
    target = impostors()[name]
    for seed, anchored in itertools.product(range(trials(1, 10)), (False, True)):
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(hidden(target), Learner(6, anchored=anchored, seed=seed))


def far_bent(seed, d=6, m=2):
    """A network that is constant up to distance 30."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, m))
    return us.ReluNetwork(A, np.ones(m), -30 * np.linalg.norm(A, axis=0), 0.3)


@pytest.mark.few(1)
@pytest.mark.parametrize("wrong", ["rank", "bias", "two heads", "only the query token"])
def test_a_network_that_is_flat_near_0_hides_nothing(wrong, trials):
    """The hold-out must ask where answers depend on the attention."""
    for seed in range(trials(1, 30)):
        g = far_bent(seed)
        head: us.learners.LowRankHead | None = None
        rng = np.random.default_rng(seed)
        one, two = (us.Transformer(rng.standard_normal((6, 6)), g) for _ in range(2))
        target: Any = one
        if wrong == "rank":
            head = us.learners.LowRankHead(6, 3)
        elif wrong == "bias":
            target = us.Transformer(one.W, g, rng.standard_normal(6))
        elif wrong == "two heads":
            target = lambda X, a=one, b=two: (a(X) + b(X)) / 2  # noqa: E731
        else:
            target = lambda X, a=one: a(X if X.shape[1] < 3 else X[:, -1:])  # noqa: E731
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(hidden(target), Learner(6, head=head, seed=seed))


def test_a_network_that_is_flat_near_0_is_learned(trials):
    count, found = trials(1, 30), 0
    for seed in range(count):
        target = us.Transformer(np.random.default_rng(seed).standard_normal((6, 6)), far_bent(seed))
        try:
            recovery = us.learn(hidden(target), Learner(6, seed=seed))
        except us.NotIdentifiable:
            continue
        found += 1
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
    assert found >= 0.9 * count


def test_noise_is_in_the_certificate_of_anchored_entries(trials):
    found = 0
    for seed in range(trials(3, 50)):
        target, noise = transformer("random", 5, 6, seed), np.random.default_rng(seed)
        try:
            recovery = us.learn(
                lambda X, T=target, z=noise: T(X) + 1e-10 * z.standard_normal(len(X)),
                Learner(5, anchored=True, seed=seed),
            )
        except us.UnsoftmaxError:
            continue
        found += 1
        assert np.linalg.norm(recovery.model.W - target.W) <= recovery.certificate.W_error
    assert found >= trials(1, 25)


def test_a_large_query_bias_does_not_hide_W(trials):
    """Rank 3 is claimed of rank 4, with w in W's range and 300 times as large."""
    for seed in range(trials(3, 20)):
        target = transformer("random", 8, 12, seed, bias=300.0, rank=4)
        head = us.learners.LowRankHead(8, 3, biases=True)
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(hidden(target), Learner(8, head=head, seed=seed))


def test_W_of_0_anchored(trials):
    for seed in range(trials(4, 40)):
        target = us.Transformer(np.zeros((6, 6)), network("random", 6, 9, seed))
        recovery = us.learn(hidden(target), Learner(6, anchored=True, seed=seed))
        assert np.linalg.norm(recovery.model.W) <= recovery.certificate.W_error <= 1e-9


def test_a_higher_rank_is_refused():
    for excess in (1.0, 1e-3, 1e-5):
        target = transformer("random", 8, 9, 0, rank=2)
        rng = np.random.default_rng(1)
        more = np.outer(rng.standard_normal(8), rng.standard_normal(8))
        higher = us.Transformer(
            target.W + excess * np.linalg.norm(target.W) * more / 8, target.network
        )
        with pytest.raises((us.ModelMismatch, us.NotIdentifiable)):
            us.learn(hidden(higher), Learner(8, head=us.learners.LowRankHead(8, 2)))


def test_the_plan_bounds_what_is_asked(trials):
    every = itertools.product((False, True), (False, True), (None, 1, 5))
    for anchored, biases, rank in itertools.islice(every, 0, None, trials(5, 1)):
        head = _head(5, rank, biases)
        g = us.learners.ReluNetworkLearner(5, max_neurons=12)
        learner = Learner(5, network=g, head=head, anchored=anchored)
        target = transformer("correlated", 5, 12, 1, bias=float(biases), rank=rank)
        oracle = Counted(hidden(target))
        us.learn(oracle, learner, holdout=0)
        assert oracle.queries <= learner.plan().at_most
        assert oracle.tokens <= learner.plan().tokens

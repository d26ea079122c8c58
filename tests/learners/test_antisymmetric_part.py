"""f(X) − f(−X) as a learner of its own: a head behind networks that nobody can learn."""

import numpy as np
import pytest
import scipy

import unsoftmax as us
from tests.truth import Counted, relative
from tests.vector_learners import LinearMap

Antisymmetric, Exact = us.learners.Antisymmetric, us.learners.ExactHead

ODD = {
    "GELU": lambda z: z * scipy.special.ndtr(z),
    "SiLU": lambda z: z * scipy.special.expit(z),
    "softplus": lambda z: np.logaddexp(0.0, z),
    "ReLU": lambda z: np.maximum(z, 0.0),
}
"""Neurons with φ(z) − φ(−z) = z."""


def layer(d, m, seed, neuron, rank=None, bias=0.0):
    """One head before m neurons, and the head that f(X) − f(−X) is."""
    rng = np.random.default_rng([d, m, seed])
    W = rng.standard_normal((d, d)) / np.sqrt(d)
    if rank is not None:
        W = W[:, :rank] @ W[:rank]
    A, w_o = rng.standard_normal((d, m)) / np.sqrt(d), rng.standard_normal(m)
    pooled = [us.SingleHead(W, unit) for unit in np.eye(d)]
    head = us.SingleHead(W, A @ w_o)

    def target(X):
        p = np.stack([one(X) for one in pooled], axis=1)
        return neuron(p @ A + bias) @ w_o

    return target, head


def errors(recovery, head):
    return (float(np.linalg.norm(getattr(recovery.model, n) - getattr(head, n))) for n in "Wv")


@pytest.mark.parametrize("neuron", ODD)
def test_a_head_behind_a_network_that_nobody_can_learn(neuron, trials):
    for seed in range(trials(2, 100)):
        d, m = (1, 3) if seed % 6 == 5 else (8, 20)
        target, head = layer(d, m, seed, ODD[neuron])
        oracle = Counted(target)
        recovery = us.learn(oracle, Antisymmetric(Exact(d, seed=seed)))
        W_error, v_error = errors(recovery, head)
        assert W_error <= 1e-11 * max(1.0, recovery.certificate.W_error / 1e-11)
        assert W_error <= recovery.certificate.W_error <= 1e-8
        assert v_error <= recovery.certificate.v_error
        again, checks = recovery.counts.get("again", 0), recovery.counts["check"]
        assert recovery.queries == oracle.queries == 2 * (d + d * d) + again + checks
        assert checks == 32
        assert again % 2 == 0
        assert any("A w_o" in note for note in recovery.notes)
    assert relative(recovery.model.W, head.W) <= 1e-11


def test_with_gelu_W_is_as_exact_as_by_hand(evidence):
    found = []
    for seed in range(12):
        target, head = layer(8, 16, seed, ODD["GELU"])
        recovery = us.learn(target, Antisymmetric(Exact(8, seed=seed)))
        found.append(relative(recovery.model.W, head.W))
    assert np.median(found) <= 5e-14
    evidence("W behind GELU, antisymmetric part, d = 8", median=np.median(found))


def test_any_learner_of_a_head_serves():
    target, head = layer(16, 30, 0, ODD["GELU"], rank=2)
    oracle = Counted(target)
    recovery = us.learn(oracle, Antisymmetric(us.learners.LowRankHead(16, 2)), holdout=0)
    assert relative(recovery.model.W, head.W) <= 1e-10
    assert oracle.queries == 2 * (16 + 2 * (32 - 2)) + recovery.counts.get("again", 0)
    coarse = us.oracles.rounded(target, 4)
    near = us.learners.ApproximateHead(16, 1e-4)  # two answers, each within 5e-5
    recovery = us.learn(coarse, Antisymmetric(near))
    assert relative(recovery.model.W, head.W) <= 1e-6


def test_an_even_part_costs_digits_and_the_certificate_says_so():
    """f + 3·‖pooled token‖²: differences lose as much of their precision."""
    for seed in range(8):
        target, head = layer(6, 10, seed, ODD["GELU"])
        pooled = [us.SingleHead(head.W, unit) for unit in np.eye(6)]

        def even(X, target=target, pooled=pooled):
            return target(X) + 3 * sum(one(X) ** 2 for one in pooled)

        recovery = us.learn(even, Antisymmetric(Exact(6, seed=seed)))
        W_error, v_error = errors(recovery, head)
        assert W_error <= recovery.certificate.W_error
        assert v_error <= recovery.certificate.v_error
        assert any("times as large" in sentence for sentence in recovery.certificate.assumes)
    with pytest.raises(us.ModelMismatch, match="times as large"):
        us.learn(lambda X: 1e12 * (even(X) - target(X)) + target(X), Antisymmetric(Exact(6)))


@pytest.mark.parametrize(
    ("neuron", "bias"),
    [(ODD["GELU"], 0.3), (np.tanh, 0.0), (lambda z: np.maximum(z, 0.1 * z) ** 3, 0.0)],
)
def test_networks_whose_odd_part_is_no_head_are_refused(neuron, bias):
    for seed in range(4):
        target, _ = layer(6, 9, seed, neuron, bias=bias)
        with pytest.raises(us.ModelMismatch, match=r"^As f\(X\) − f\(−X\)"):
            us.learn(target, Antisymmetric(Exact(6, seed=seed)))


def test_an_even_function_leaves_W_free():
    with pytest.raises(us.NotIdentifiable, match=r"f\(X\) − f\(−X\).*v = 0") as refusal:
        us.learn(lambda X: np.abs(X[:, -1]).sum(axis=1), Antisymmetric(Exact(4)))
    assert np.array_equal(refusal.value.determined["v"], np.zeros(4))


def test_what_it_costs_and_is():
    one = us.learners.LowRankHead(9, 2)
    both = Antisymmetric(one)
    assert (both.dim, both.outputs) == (9, "scalar")
    plans = both.plan(), one.plan()
    for name in ("queries", "at_most", "tokens"):
        assert getattr(plans[0], name) == 2 * getattr(plans[1], name)
    assert plans[0].rounds == plans[1].rounds
    assert plans[0].formula == f"2·({plans[1].formula})"
    transformer = us.learners.TransformerLearner(5)
    assert Antisymmetric(transformer).plan().queries is None
    inner = {**one.settings(), "revision": one.revision}
    assert both.settings() == {"learner": "Antisymmetric", "of": inner}
    vectors = LinearMap(3, 0)
    assert Antisymmetric(vectors).outputs == "vector"
    with pytest.raises(TypeError, match="learner"):
        Antisymmetric(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="biases"):
        Antisymmetric(Exact(3, biases=True))

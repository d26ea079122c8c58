"""Networks and Transformers whose weights are round, sparse or spread over six decades.

A right target is refused in 1 of 500 cases at most, and no certificate is broken. Where answers
are rounded or waver, more may be refused; no certificate is broken then, either.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.attacks.test_certificates import DISTURBED
from tests.networks import attack, covered, worst_share
from tests.truth import Counted

# -- networks: A (d, m), w_o and b over six decades, by neuron or by entry; round numbers

Parts = tuple[Any, Any, Any]


def spread(rng: Any, *shape: int) -> Any:
    return 10.0 ** rng.uniform(-3, 3, shape)


def by_neuron(rng: Any, d: int, m: int) -> Parts:
    A = rng.standard_normal((d, m)) * spread(rng, m)
    return A, rng.standard_normal(m) * spread(rng, m), rng.standard_normal(m)


def by_entry(rng: Any, d: int, m: int) -> Parts:
    A = rng.standard_normal((d, m)) * spread(rng, d, m)
    return A, rng.standard_normal(m) * spread(rng, m), rng.standard_normal(m)


def at_once(rng: Any, d: int, m: int) -> Parts:
    """A, w_o and b, each neuron over 18 decades in all."""
    A, w_o, b = by_neuron(rng, d, m)
    return A, w_o, b * spread(rng, m)


def by_bias(rng: Any, d: int, m: int) -> Parts:
    A, (w_o, b) = rng.standard_normal((d, m)), rng.standard_normal((2, m))
    return A, w_o, b * spread(rng, m)


def integers(rng: Any, d: int, m: int) -> Parts:
    A, (w_o, b) = rng.integers(-3, 4, (d, m)), rng.integers(-3, 4, (2, m))
    return A.astype(float), w_o.astype(float), b * 10.0 ** rng.integers(0, 6)


def signs(rng: Any, d: int, m: int) -> Parts:
    A = rng.choice([-1.0, 1.0], (d, m)) * (rng.random((d, m)) < 0.7)
    return A, rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 0.0, 1.0], m)


NETWORKS: dict[str, Callable[[Any, int, int], Parts]] = {
    family.__name__: family for family in (by_neuron, by_entry, at_once, by_bias, integers, signs)
}


def drawn(name: str, biases: bool, seed: int) -> us.ReluNetwork:
    rng = np.random.default_rng([seed, biases, *map(ord, name)])
    d, m = int(rng.integers(1, 18)), int(rng.integers(1, 21))
    A, w_o, b = NETWORKS[name](rng, d, m)
    return us.ReluNetwork(A, w_o, b if biases else None, 0.3 * biases)


def share_taken(target: us.ReluNetwork, biases: bool, seed: int, how: str = "float64") -> float:
    learner = us.learners.ReluNetworkLearner(target.dim, biases=biases, seed=seed)
    oracle = DISTURBED[how](lambda X: target(X), seed)
    return worst_share(us.learn(oracle, learner), target, 1e12)


@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("name", NETWORKS)
def test_wide_networks(name, biases, trials, evidence):
    def share_at(seed: int) -> float:
        return share_taken(drawn(name, biases, seed), biases, seed)

    family = f"wide, {name.replace('_', ' ')}"
    claim = f"ReLU network, {family}, {'with' if biases else 'without'} biases"
    attack(claim, trials(2, 2000), share_at, evidence)


COARSE = ["float32", "6 decimals", "jitter 1e-15", "jitter 1e-12", "jitter 1e-9"]


@pytest.mark.few(3)
@pytest.mark.parametrize("how", COARSE)
def test_wide_networks_behind_coarse_answers(how, trials, evidence):
    """Of each family in turn, with biases and without."""
    families = [*itertools.product(NETWORKS, (True, False))]

    def share_at(seed: int) -> float:
        name, biases = families[seed % len(families)]
        return share_taken(drawn(name, biases, seed), biases, seed, how)

    covered(f"ReLU networks over many decades, {how}", trials(1, 2000), share_at, evidence)


@pytest.mark.parametrize(
    ("name", "how", "seed"),
    [
        ("at_once", "float64", 1953),  # of two far neurons the nearer one is met far out
        ("signs", "jitter 1e-9", 118),  # noise in proportion is no bend far out
        ("by_entry", "jitter 1e-12", 254),
    ],
)
def test_what_broke_one_certificate_in_2000_is_covered(name, how, seed):
    assert share_taken(drawn(name, True, seed), True, seed, how) <= 1


def test_a_neuron_beside_a_larger_one_is_found_or_covered(trials, evidence):
    """Two nearly parallel neurons may pass for one: they differ between their hyperplanes alone.

    Tokens beside hyperplanes show nearly all; the certificate assumes that there is no such pair.
    """
    count, broken = trials(3, 500), 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 7))
        A = rng.standard_normal((d, 6)) * 10.0 ** np.array([5.0, 2, 0, -2, -3, -4.5])
        beside = np.linalg.qr(A[:, [4, 3]])[0]  # the larger one's direction, and one across
        angle = 10.0 ** rng.uniform(-2, -1)
        A[:, 5] = 10.0 ** rng.uniform(-5, -3) * (beside @ [np.cos(angle), np.sin(angle)])
        target = us.ReluNetwork(A, rng.choice([-1.0, 1.0], 6))
        recovery = us.learn(
            lambda X, g=target: g(X), us.learners.ReluNetworkLearner(d, biases=False, seed=seed)
        )
        # tokens between both hyperplanes
        x = rng.standard_normal((200, d))
        x -= np.outer(x @ A[:, 4] / (A[:, 4] @ A[:, 4]), A[:, 4])
        off = np.abs(recovery.model(x) - target(x)) / np.linalg.norm(x, axis=1)
        broken += bool(np.max(off) > recovery.certificate.errors["slope"])
        assert any(
            "nearly parallel to that of another" in line for line in recovery.certificate.assumes
        )
    assert broken <= 0.01 * count
    evidence("A hidden neuron at an angle of 0.01 to 0.1", trials=count, not_covered=broken)


# -- Transformers: W of every shape, beside a query bias and without


SCORES: dict[str, Callable[[Any, int], Any]] = {
    "zero": lambda rng, d: np.zeros((d, d)),
    "one entry": lambda rng, d: np.outer(*np.eye(d)[rng.integers(d, size=2)]),
    "permutation": lambda rng, d: np.eye(d)[rng.permutation(d)],
    "nilpotent": lambda rng, d: np.eye(d, k=1),
    "skew": lambda rng, d: (lambda M: M - M.T)(rng.standard_normal((d, d))),
    "rank 1": lambda rng, d: np.outer(*rng.standard_normal((2, d))) / d,
    "tiny": lambda rng, d: 1e-6 * rng.standard_normal((d, d)),
    "huge": lambda rng, d: 1e6 * rng.standard_normal((d, d)),
}


def attacked(target: us.Transformer, learner: Any) -> float:
    """Return the largest share of its bound that any part takes."""
    return attacked_parts(target, us.learn(Counted(lambda X: target(X)), learner))


def attacked_parts(target: us.Transformer, recovery: Any) -> float:
    errors, model = recovery.certificate.errors, recovery.model
    missed = {
        name: float(np.linalg.norm(getattr(model, name) - getattr(target, name))) for name in "Ww"
    }
    shares = [missed[name] / errors[name] for name in "Ww" if missed[name]]
    network = us.Recovery(model.network, *_rest_of(recovery))
    shares.append(float(worst_share(network, target.network, 1e12)))
    return float(max(shares))


def _rest_of(recovery: Any) -> tuple[Any, ...]:
    return tuple(getattr(recovery, name) for name in recovery.__dataclass_fields__)[1:]


@pytest.mark.few
@pytest.mark.parametrize("biases", [True, False], ids=["query biases", "no query biases"])
@pytest.mark.parametrize("name", SCORES)
def test_W_of_any_shape(name, biases, trials, evidence):
    def share_at(seed: int) -> float:
        rng = np.random.default_rng([seed, biases, *map(ord, name)])
        d, m = int(rng.integers(1, 8)), int(rng.integers(2, 14))
        A, (w_o, b) = rng.standard_normal((d, m)) / np.sqrt(d), rng.standard_normal((2, m))
        w = 10.0 ** rng.uniform(-2, 1) * rng.standard_normal(d) if biases else None
        target = us.Transformer(SCORES[name](rng, d), us.ReluNetwork(A, w_o, b, 0.3), w)
        head = us.learners.ExactHead(d, biases=biases)
        learner = us.learners.TransformerLearner(
            d, head=head, anchored=bool(rng.integers(2)), seed=seed
        )
        return attacked(target, learner)

    claim = f"Transformer, W {name}, {'with' if biases else 'without'} query biases"
    attack(claim, trials(1, 500), share_at, evidence)


@pytest.mark.parametrize("name", ["by_neuron", "by_entry", "at_once"])
def test_transformers_over_six_decades(name, trials, evidence):
    def share_at(seed: int) -> float:
        rng = np.random.default_rng([seed, 7, *map(ord, name)])
        d, m = int(rng.integers(1, 8)), int(rng.integers(1, 14))
        W = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((d, d)) / np.sqrt(d)
        target = us.Transformer(W, us.ReluNetwork(*NETWORKS[name](rng, d, m), 0.3))
        learner = us.learners.TransformerLearner(d, anchored=bool(rng.integers(2)), seed=seed)
        return attacked(target, learner)

    claim = f"Transformer, network over six decades {name.replace('_', ' ')}"
    attack(claim, trials(1, 2000), share_at, evidence)


# -- the paper's way: a head from differences of answers


def without_biases(seed: int) -> us.Transformer:
    rng = np.random.default_rng([seed, 11])
    d, m = int(rng.integers(1, 10)), int(rng.integers(1, 17))
    W = 10.0 ** rng.uniform(-1, 1) * rng.standard_normal((d, d)) / np.sqrt(d)
    A = rng.standard_normal((d, m)) / np.sqrt(d)
    return us.Transformer(W, us.ReluNetwork(A, rng.standard_normal(m)))


@pytest.mark.few(3)
@pytest.mark.parametrize("how", ["float64", *COARSE])
def test_the_antisymmetric_way_is_covered(how, trials, evidence):
    """The answers' errors are those of the answers, not of their smaller differences."""

    def share_at(seed: int) -> float:
        target = without_biases(seed)
        oracle = DISTURBED[how](lambda X: target(X), seed)
        learner = us.learners.TransformerLearner(target.dim, attention="antisymmetric", seed=seed)
        return attacked_parts(target, us.learn(oracle, learner))

    covered(f"Transformer, antisymmetric, {how}", trials(1, 500), share_at, evidence)


@pytest.mark.few(3)
@pytest.mark.parametrize("how", ["float64", *COARSE])
def test_heads_of_differences_are_covered(how, trials, evidence):
    def share_at(seed: int) -> float:
        target = without_biases(seed)
        oracle = DISTURBED[how](lambda X: target(X), seed)
        head = us.learners.ExactHead(target.dim, seed=seed)
        recovery = us.learn(oracle, us.learners.Antisymmetric(head))
        value = target.network.A @ target.network.w_o
        errors, model = recovery.certificate.errors, recovery.model
        missed_v = np.linalg.norm(model.v - value) / errors["v"]
        return float(max(np.linalg.norm(model.W - target.W) / errors["W"], missed_v))

    covered(f"Antisymmetric, {how}", trials(1, 500), share_at, evidence)

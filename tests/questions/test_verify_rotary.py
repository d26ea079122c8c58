"""`us.verify` of heads with rotary positions: verdicts, names, and what moves answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.rotary_heads import nearly_rotary, rotary_head

SHAPES = [(6, 4), (16, 8), (8, 8), (64, 16)]
TENSORS = ["K", "Q", "v", "c", "k_bias", "q_bias", "frequencies"]


def claimed(seed: int) -> us.RotaryHead:
    """A head of every shape in turn, with biases or not."""
    d, r = SHAPES[seed % len(SHAPES)]
    base = (1e4, 5e5)[seed // 2 % 2]
    head: us.RotaryHead = rotary_head(d, r, seed, base=base, biases=0.4 * (seed % 2))
    return head


def with_change(head: us.RotaryHead, name: str, size: float, seed: int) -> us.RotaryHead:
    """Change a tensor in a random direction by a share of its norm, of 1 where it is 0."""
    array = np.asarray(head.arrays()[name])
    by = np.random.default_rng([seed, 5]).standard_normal(array.shape)
    by *= size * (np.linalg.norm(array) or 1.0) / np.linalg.norm(by)
    made: us.RotaryHead = us.RotaryHead.from_arrays({**head.arrays(), name: array + by})
    return made


def in_float32(head: us.RotaryHead) -> Any:
    """The head as libraries compute it: keys and the query turned by their own positions."""
    a = {name: np.asarray(x, dtype=np.float32) for name, x in head.arrays().items()}

    def turned(x: Any, positions: Any) -> Any:
        angles = positions[:, None] * a["frequencies"]
        cosine, sine, out = np.cos(angles), np.sin(angles), np.empty_like(x)
        out[..., ::2] = cosine * x[..., ::2] - sine * x[..., 1::2]
        out[..., 1::2] = sine * x[..., ::2] + cosine * x[..., 1::2]
        return out

    def answer(X: Any) -> Any:
        X, places = X.astype(np.float32), np.arange(X.shape[1], dtype=np.float32)
        keys = turned(X @ a["K"].T + a["k_bias"], places)
        query = turned((X[:, -1] @ a["Q"].T + a["q_bias"])[:, None], places[-1:])
        scores = (keys * query).sum(axis=-1)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (e / e.sum(axis=1, keepdims=True) * (X @ a["v"])).sum(axis=1) + a["c"]

    return answer


@pytest.mark.parametrize("service", ["float64", "float32", "decimals", "noise"])
def test_right_weights_are_never_called_different(service, trials, evidence):
    same, count = 0, trials(2, 200)
    for seed in range(count):
        head = claimed(seed)
        target = {
            "float64": lambda X, head=head: head(X),
            "float32": in_float32(head),
            "decimals": us.oracles.rounded(head, 3 + seed % 5),
            "noise": us.oracles.noisy(head, 10.0 ** -(3 + seed % 6), seed),
        }[service]
        verdict = us.verify(target, head, seed=seed).verdict
        assert verdict != "different"
        same += verdict == "same"
    assert same >= (0.9 if "float" in service else 0.5) * count - trials(1, 0)
    evidence(f"verify, one rotary head: right, {service}", same=f"{same} of {count}")


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_changed_tensor_is_named(tensor, trials, evidence):
    named = 0
    for seed in range(count := trials(1, 200)):
        head, size = claimed(seed), (1e-2, 1e-6)[seed % 2]
        found = us.verify(with_change(head, tensor, size, seed), head)
        assert found.verdict == "different"
        assert found.queries <= 40
        assert found.tensor in (tensor, None), (found.tensor, seed, size)
        named += found.tensor == tensor
    assert named >= 0.9 * count - trials(1, 0)
    evidence(f"verify, one rotary head: {tensor} changed", named=f"{named} of {count}")


@pytest.mark.parametrize("tensor", ["K", "Q", "frequencies"])
def test_a_changed_tensor_of_float32_services_is_named(tensor, trials, evidence):
    named, count = 0, trials(1, 100)
    for seed in range(count):
        head = claimed(seed)
        found = us.verify(in_float32(with_change(head, tensor, 0.1, seed)), head)
        assert found.verdict == "different"
        assert found.tensor in (tensor, None)
        named += found.tensor == tensor
    assert named >= 0.5 * count - trials(1, 0)
    evidence(
        f"verify, one rotary head: {tensor} changed by 0.1, float32", named=f"{named} of {count}"
    )


def test_the_gauge_is_no_change_and_a_base_one_percent_off_is_one():
    head = claimed(0)
    assert us.verify(us.canonical(head), head)
    K, Q = head.K.copy(), head.Q.copy()
    K[:2], Q[:2] = 2 * K[:2], Q[:2] / 2
    assert us.verify(us.RotaryHead(K, Q, head.v, head.rotary), head)
    for base in (1e4, 5e5):
        K, Q = rotary_head(16, 8, 3).K, rotary_head(16, 8, 3).Q
        right, wrong = (
            us.RotaryHead(K, Q, np.ones(16), us.Rotary.of(b, 8)) for b in (base, 1.01 * base)
        )
        found = us.verify(wrong, right)
        assert (found.verdict, found.tensor) == ("different", "frequencies")


def test_keys_and_queries_changed_together_are_named_both():
    head = claimed(2)
    both = with_change(with_change(head, "K", 1e-3, 0), "Q", 1e-3, 1)
    assert us.verify(both, head).tensor == "K, Q"


def test_what_is_no_such_head_is_not_called_the_same():
    head = rotary_head(8, 4, 0, scale=2.0)
    for name, target in nearly_rotary(head).items():
        if name not in ("a window", "scaled frequencies beyond a length", "faint ALiBi"):
            assert us.verify(target, head, locate=False).verdict == "different", name


def test_a_head_without_positions_is_told_from_one_with_them():
    K, Q = np.random.default_rng(0).standard_normal((2, 4, 8)) / 3
    still = us.RotaryHead(K, Q, np.ones(8), us.Rotary([0.0, 0.0]))
    assert us.verify(us.SingleHead.from_factors(K, Q, np.ones(8)), still)
    assert us.verify(us.RotaryHead(K, Q, np.ones(8), us.Rotary([1.0, 0.1])), still).verdict == (
        "different"
    )
    assert us.verify(with_change(still, "K", 1e-3, 0), still).tensor == "K"
    square = us.RotaryHead(K[:, :4], Q[:, :4], np.ones(4), us.Rotary([0.0, 0.0]))
    assert us.verify(with_change(square, "K", 1e-3, 0), square).tensor == "K or Q"


def test_keys_of_a_lower_rank_are_not_looked_at_one_by_one():
    head = claimed(2)
    K = head.K.copy()
    K[3] = 0.0
    lower = us.RotaryHead(K, head.Q, head.v, head.rotary)
    found = us.verify(with_change(lower, "Q", 1e-3, 0), lower)
    assert found.verdict == "different"
    assert found.tensor is None
    assert any("lower rank" in note for note in found.notes)


@pytest.mark.parametrize("biases", [0.0, 0.3])
def test_a_recovery_is_verified_within_its_certificate(biases):
    head = rotary_head(8, 4, 1, biases=biases)
    learner = us.learners.LowRankHead(8, 4, bool(biases), rotary=True)
    recovery = us.learn(lambda X: head(X), learner)
    errors = recovery.certificate.errors
    assert us.verify(head, recovery.model, errors=errors)
    changed = with_change(head, "K", 1e-3, 0)
    assert us.verify(changed, recovery.model, errors=errors).verdict == "different"

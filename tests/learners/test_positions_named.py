"""Refusals of targets whose scores depend on positions say so; no others do."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import unsoftmax as us
from tests.nearly_rotary import answered
from tests.rotary_heads import rotary_head
from tests.truth import Counted
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.positions_named import naming_positions

D = 4
TOLD = r"^Scores depend on positions"


def far(X: Any) -> Any:
    return np.arange(X.shape[1])[::-1]


def softmax(scores: Any) -> Any:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def pooled(weights: Any, X: Any) -> Any:
    return np.einsum("bn,bnd->bd", weights, X)


def normalised(x: Any) -> Any:
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


class Parts:
    """What random targets of one seed are made of."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 44])
        self.rng, self.rotary = rng, rotary_head(D, 4, seed, scale=4.0)
        self.W = np.exp(rng.uniform(-3, 2)) * rng.standard_normal((2, D, D))
        self.w, self.v, self.other = rng.standard_normal((3, D))
        self.A, self.c = rng.standard_normal((D, 5)), float(rng.standard_normal())
        self.table, self.places = rng.standard_normal(1024), rng.standard_normal((1024, D))
        self.slope = 2.0 ** -float(rng.integers(1, 6))

    def scores(self, X: Any, h: int = 0) -> Any:
        return np.einsum("bnd,de,be->bn", X, self.W[h], X[:, -1])

    def head(self, X: Any, h: int = 0, beside: Any = 0.0) -> Any:
        return pooled(softmax(self.scores(X, h) + beside), X)

    def layer(self, X: Any, causal: bool) -> Any:
        """All tokens' answers, each of the tokens before it or of all."""
        scores = np.einsum("bid,de,bje->bji", X, self.W[1], X)
        seen = np.tril(np.ones(scores.shape[1:], dtype=bool)) if causal else True
        return softmax(np.where(seen, scores, -np.inf)) @ X


def windowed(p: Parts, X: Any) -> Any:
    return p.head(X, beside=np.where(far(X) < 20, 0.0, -np.inf)) @ p.v


def placed(p: Parts, X: Any) -> Any:
    return p.head(X + p.places[far(X)]) @ p.v


def behind_rotary(p: Parts, X: Any) -> Any:
    return np.maximum(pooled(p.rotary.attention(X), X) @ p.A + 0.3, 0).sum(axis=1)


def two_layers(p: Parts, X: Any, causal: bool) -> Any:
    return p.head(p.layer(X, causal)) @ p.v


def noisy(p: Parts, X: Any) -> Any:
    return p.head(X) @ p.v + 0.1 * p.rng.standard_normal(len(X))


def half(p: Parts, X: Any) -> Any:
    """A head in float16 throughout; tokens beyond its range are answered by 0."""
    with np.errstate(all="ignore"):
        X, W, v = (x.astype(np.float16) for x in (X, p.W[0], p.v))
        weights = softmax((X @ (X[:, -1] @ W.T)[:, :, None])[..., 0])
        return np.nan_to_num(((weights[..., None] * X).sum(axis=1) @ v).astype(float))


POSITIONED: dict[str, tuple[Any, str]] = {
    "rotary": (lambda p, X: p.rotary(X), r"all others weigh the same, as with rotary.*rotary=True"),
    "rotary, two heads": (
        lambda p, X: p.rotary(X) + rotary_head(D, 2, 9)(X),
        r"as with rotary positions. rotary=True",
    ),
    "rotary, biases": (
        lambda p, X: rotary_head(D, 4, 5, biases=0.5)(X),
        r"rotary=True and biases=True",
    ),
    "a network behind rotary": (behind_rotary, r"as with rotary positions. rotary=True"),
    "ALiBi": (lambda p, X: p.head(X, beside=-p.slope * far(X)) @ p.v + p.c, r"0\.\d+ per.*ALiBi"),
    "ALiBi, two heads": (
        lambda p, X: p.head(X, beside=-0.5 * far(X)) @ p.v + p.head(X, 1, -0.1 * far(X)) @ p.other,
        r"biases by distance.*ALiBi's in several heads",
    ),
    "T5": (lambda p, X: p.head(X, beside=p.table[far(X)]) @ p.v, r"biases by distance, as T5's"),
    "a window": (windowed, r"16 places before.*one 32 places before.*a sliding window"),
    "added to tokens": (placed, r"positions added to tokens"),
    "two causal layers": (partial(two_layers, causal=True), r"causal masks in more than one layer"),
}
WITHOUT: dict[str, Any] = {
    "two heads": lambda p, X: p.head(X) @ p.v + p.head(X, 1, X @ p.w) @ p.other,
    "GELU behind": lambda p, X: (lambda z: z / (1 + np.exp(-z)))(
        np.clip(p.head(X) @ p.A, -300, None)
    ).sum(axis=1),
    "tanh in the values": lambda p, X: pooled(softmax(p.scores(X)), np.tanh(X)) @ p.v,
    "two layers": partial(two_layers, causal=False),
    "noise": noisy,
    "float16": half,
    "a decimal": lambda p, X: np.round(p.head(X) @ p.v + p.c, 1),
    "by its bits": lambda p, X: p.head(X) @ p.v + 0.3 * np.sin(1e5 * X.sum(axis=(1, 2))),
    "clipped": lambda p, X: np.clip(p.head(X) @ p.v, -1, 1),
    "a LayerNorm before": lambda p, X: p.head(normalised(X)) @ p.v,
    "a LayerNorm behind": lambda p, X: normalised(p.head(X) + X[:, -1]) @ p.v,
    "a temperature by length": lambda p, X: (
        pooled(softmax(np.log(X.shape[1]) * p.scores(X)), X) @ p.v
    ),
    "a window beyond what is asked": lambda p, X: p.head(X[:, -100:]) @ p.v,
}


def refused(target: Any, learner: Any = None) -> str:
    """Return what is said of a target that a learner has refused, or that it has refused for."""
    learner = learner or us.learners.ExactHead(D)
    with pytest.raises((us.ModelMismatch, us.NotIdentifiable)) as said:
        us.learn(target, learner)
    return str(said.value)


class Refusing(us.learners.ExactHead):
    """A learner that refuses everything, at once."""

    def steps(self, checks: int) -> Any:
        raise ModelMismatch("Refused.", determined={"v": 1.0})
        yield


@pytest.mark.parametrize("name", POSITIONED)
def test_positions_are_named(name, trials, evidence):
    target, said = POSITIONED[name]
    seeds = range(count := trials(2, 200))
    named = sum(refused(partial(target, Parts(s)), Refusing(D)).startswith("Scores") for s in seeds)
    assert named >= 0.7 * count - trials(1, 0)
    with pytest.raises(us.ModelMismatch, match=TOLD + ".*" + said):
        us.learn(partial(target, Parts(0)), Refusing(D))
    evidence(f"positions named: {name}", named=f"{named} of {count}")


@pytest.mark.parametrize("name", WITHOUT)
def test_no_positions_are_named_where_there_are_none(name, trials, evidence):
    for seed in range(count := trials(2, 200)):
        assert refused(partial(WITHOUT[name], Parts(seed)), Refusing(D)) == "Refused."
    evidence(f"no positions named: {name}", right=f"{count} of {count}")


@pytest.mark.parametrize(
    "learner",
    [
        us.learners.ExactHead(D),
        us.learners.LowRankHead(D),
        us.learners.SensingHead(D, D),
        us.learners.ApproximateHead(D, 1e-6),
        us.learners.MultiHeadLearner(D, 1),
        us.learners.OrthogonalHeads(D),
        us.learners.Antisymmetric(us.learners.ExactHead(D)),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_every_learner_names_rotary_positions(learner):
    with pytest.raises(us.ModelMismatch, match=TOLD + r".*rotary=True"):
        us.learn(Parts(0).rotary, learner)


def test_learners_of_labels_networks_and_vectors_name_them():
    p = Parts(0)
    with pytest.raises(us.ModelMismatch, match=TOLD + r".*from labels"):
        us.learn(lambda X: 2.0 * (p.rotary(X) > 0) - 1, us.learners.LabelHead(D, 8))
    learners = us.learners.TransformerLearner(D), us.learners.MultiHeadTransformerLearner(D, 1)
    for made in learners:
        with pytest.raises(us.ModelMismatch, match=TOLD + r".*rotary=True"):
            us.learn(partial(behind_rotary, p), made)
    layer = lambda X: pooled(p.rotary.attention(X), X) @ p.A  # noqa: E731
    with pytest.raises(us.ModelMismatch, match=TOLD + r".*rotary=True"):
        us.learn(layer, us.learners.AttentionLayerLearner(D))


def test_a_learner_of_rotary_positions_names_others_alone():
    head, learner = Parts(0).rotary, us.learners.LowRankHead(D, 4, rotary=True)
    beside = lambda X: answered(head, head.scores.of(X) - 0.25 * far(X), X)  # noqa: E731
    with pytest.raises(us.ModelMismatch, match=TOLD + r".*fall by 0\.25 per token.*ALiBi"):
        us.learn(beside, learner)
    cubed = lambda X: head(X) ** 3  # noqa: E731
    assert not refused(cubed, learner).startswith("Scores")
    assert not refused(cubed, us.learners.Antisymmetric(learner)).startswith("Scores")


def test_what_a_refusal_knows_is_kept_and_a_budget_is_no_reason_to_hide_it():
    with pytest.raises(us.ModelMismatch, match=TOLD) as said:
        us.learn(Parts(0).rotary, Refusing(D))
    assert said.value.determined == {"v": 1.0}
    assert str(said.value.__cause__) == "Refused."
    for budget in (0, 10, 40):
        target = Counted(Parts(0).rotary)
        with pytest.raises(us.ModelMismatch, match=r"^Refused\.$"):
            us.learn(target, Refusing(D), budget=budget)
        assert target.queries <= budget


def test_what_is_not_answered_is_not_named():
    def short(X: Any) -> Any:
        if X.shape[1] > 8:
            raise ValueError("at most 8 tokens")
        return Parts(0).rotary(X)

    assert refused(short, Refusing(D)) == "Refused."
    with pytest.raises(us.DimensionRefused):
        us.learn(us.RotaryHead(np.eye(2), np.eye(2), [1, 0], us.Rotary([1.0])), Refusing(D))


def test_no_question_is_beyond_a_plan():
    learner = us.learners.ApproximateHead(D, 1e-6, radius=16.0)
    steps = naming_positions(Refusing(D).steps(0), learner)
    longest = []

    def answers(asked: Any) -> Any:
        longest.append(max(np.linalg.norm(probes[:], axis=2).max() for probes in asked))
        return [Parts(0).rotary(probes[:]) for probes in asked]

    last = steps.send(answers(next(steps)))
    with pytest.raises(ModelMismatch, match=TOLD):
        steps.send(answers(last))
    assert 0.1 < max(longest) <= learner.plan().longest_token

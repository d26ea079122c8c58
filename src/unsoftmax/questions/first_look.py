"""The first answers of an audit, which no learner has read: what was recovered must explain them.

A target that is one thing where a learner reads and another elsewhere is recovered, within a
certificate and with a hold-out that passed. The questions of the first look were asked before
anything was known of the target, at other lengths of tokens and sizes of scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import MultiHead, ReluNetwork, RotaryHead, RotaryHeads, SingleHead
from unsoftmax.probes import Array, Probes, Round
from unsoftmax.protocol import Answers, Found
from unsoftmax.questions.answer_traits import Traits


@dataclass(frozen=True, slots=True)
class AgreementTuning:
    """Knobs of the comparison."""

    share: float = 1e-6
    """Answers may be missed by this share of their size, beside what the certificate allows."""
    moves: int = 3
    """What the certificate leaves open of parameters is tried in so many random directions;"""
    moved: float = 10.0
    """so many times what they move an answer by is allowed."""


@dataclass(slots=True)
class FirstLook:
    """The first questions and their answers."""

    answered: list[tuple[Probes, Array]] = field(default_factory=list)
    asked: Round = field(default_factory=list)
    """The last round, which may come to be refused."""

    def ask(self, probes: Round) -> Round:
        """Remember a round, and pass it on."""
        self.asked = probes
        return probes

    def keep(self, answers: Answers) -> Answers:
        """Keep its answers, and pass them on."""
        self.answered += zip(self.asked, answers, strict=True)
        return answers

    def contradicted(
        self, found: Found[Any], traits: Traits, tuning: AgreementTuning
    ) -> tuple[int, int]:
        """Return how many answers a recovered model cannot explain, and of how many."""
        missed = total = 0
        for probes, y in self.answered:
            X = probes[:]
            said = looked_at_part(traits, X, y)
            missed += int(np.sum(beyond_bounds(found, X, said, tuning)))
            total += len(X)
        return missed, total


def looked_at_part(traits: Traits, X: Array, y: Array) -> Array:
    """Return the number that is looked at, of vector answers (B, m)."""
    k = traits.coordinate
    return np.asarray(y[:, k] - X[:, -1, k] if traits.residual else y[:, k])


def beyond_bounds(
    found: Found[Any], X: Array, y: Array, tuning: AgreementTuning
) -> NDArray[np.bool_]:
    """Say which answers (B,) a recovered model misses by more than its certificate explains.

    Examples
    --------
    >>> import unsoftmax as us
    >>> head = us.SingleHead(np.eye(2), [1.0, 2.0])
    >>> found = us.learn(head, us.learners.ExactHead(2))
    >>> X = np.random.default_rng(0).standard_normal((3, 4, 2))
    >>> beyond_bounds(found, X, head(X) + [0.0, 0.0, 0.1], AgreementTuning())
    array([False, False,  True])
    """
    model, errors = found.model, found.certificate.errors
    if isinstance(model, ReluNetwork):  # no token but the last one counts
        X = X[:, -1:]
    allowed = tuning.share * np.linalg.norm(X, axis=2).max(axis=1) * _slope(model)
    allowed = allowed + tuning.share * np.abs(y)
    if "slope" in errors:
        longest = np.linalg.norm(X, axis=2).max(axis=1)
        allowed = allowed + errors["constant"] + errors["slope"] * longest
    if isinstance(model, (SingleHead, MultiHead, RotaryHeads)):
        rng = np.random.default_rng(0)
        for _ in range(tuning.moves):
            moved: SingleHead | MultiHead | RotaryHeads
            if isinstance(model, RotaryHeads):
                moved = _moved_turned(model, errors, rng)
            else:
                moved = _moved(model, errors, rng)
            allowed = allowed + tuning.moved * np.abs(moved(X) - model(X))
    return np.asarray(np.abs(y - model(X)) > allowed)


def _moved(
    model: SingleHead | MultiHead, errors: Any, rng: np.random.Generator
) -> SingleHead | MultiHead:
    """Move all parameters by their bounds, in a random direction."""
    arrays = {}
    for name in ("W", "v", "w", "c"):
        array = np.asarray(getattr(model, name), dtype=np.float64)
        x = rng.standard_normal(array.shape)
        arrays[name] = array + errors.get(name, 0.0) * x / (np.linalg.norm(x) or 1.0)
    return type(model)(arrays["W"], arrays["v"], arrays["w"], float(arrays["c"]))


def _moved_turned(
    model: RotaryHeads, errors: Mapping[str, float], rng: np.random.Generator
) -> RotaryHeads:
    """Move every head's queries so that W(Δ) moves by about its bound, and v by its own."""

    def step(shape: tuple[int, ...], bound: float) -> Array:
        x = rng.standard_normal(shape)
        return np.asarray(bound * x / (np.linalg.norm(x) or 1.0))

    arrays = {name: np.array(array) for name, array in model.arrays().items()}
    for h, K in enumerate(model.K):
        unit = float(np.linalg.norm(K, 2)) or 1.0
        arrays["Q"][h] += step(arrays["Q"][h].shape, errors.get("W", 0.0) / unit)
        arrays["q_bias"][h] += step(arrays["q_bias"][h].shape, errors.get("w", 0.0) / unit)
        arrays["v"][h] += step(arrays["v"][h].shape, errors.get("v", 0.0))
    return RotaryHeads.from_arrays(arrays)


def _slope(model: Any) -> float:
    """Return about what an answer grows by per length of a token."""
    if isinstance(model, (SingleHead, MultiHead, RotaryHead, RotaryHeads)):
        return float(np.linalg.norm(model.v))
    return 0.0

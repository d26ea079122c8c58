"""Two learners of vectors, for tests alone: they prove the runner's side of vector answers.

- `LinearMap`: f([x]) = M x + c from d + 1 queries.
- `VectorHead`: f(X) = Σ_i α_i V x_i + c, α = softmax_i(x_i·W x_N), from 1 + d + d² queries. Two
  tokens [a+b; b] are answered with c + V b + σ(a·W b)·V a, a point on a known line: its place on
  the line is the share σ, and the share's logit an entry of W.

Both certify by forward error: every number of an answer is within κ·u·(max‖x‖·‖V‖ + ‖c‖).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.models.attention import token_scores
from unsoftmax.probes import FARTHEST, Grid, Sequences, Singles, UnitVectors
from unsoftmax.protocol import Certificate, Evidence, Found, Plan
from unsoftmax.validate.judge import fresh_answers
from unsoftmax.validate.long_sequences import LongSequenceTuning, draw_long, looked_at
from unsoftmax.validate.sequences import by_length

# Roundoffs that a target may lose in a product and a softmax (measured: 3 at d = 6).
_ROUNDOFF = 16 * 2.0**-53


@dataclass(frozen=True, eq=False)
class _Arrays:
    """What both models share: they are their arrays."""

    c: Any

    @property
    def dim(self) -> int:
        return int(next(iter(self.arrays().values())).shape[-1])

    def arrays(self):
        return {name: value for name, value in vars(self).items() if name != "c"} | {"c": self.c}

    def parameter_norm(self, name):
        return float(np.linalg.norm(self.arrays()[name]))

    def save(self, path):
        np.savez(path, **self.arrays())


@dataclass(frozen=True, eq=False)
class LinearModel(_Arrays):
    """M x + c of the last token."""

    M: Any

    def __call__(self, X):
        return X[:, -1] @ self.M.T + self.c


@dataclass(frozen=True, eq=False)
class VectorHeadModel(_Arrays):
    """Σ_i α_i V x_i + c."""

    W: Any
    V: Any

    def scores_of(self, queries):
        return queries @ self.W.T

    def scored(self, X):
        return token_scores(X, self.scores_of(X[:, -1]))

    def __call__(self, X):
        scores = self.scored(X)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        pooled = np.einsum("bn,bnd->bd", weights, X) / weights.sum(axis=1, keepdims=True)
        return pooled @ self.V.T + self.c


def _checks(dim, count, tokens, rng, phase):
    X = rng.standard_normal((count, tokens, dim)).astype(np.float32).astype(np.float64)
    return Sequences(X / 2, phase=f"hold-out, {phase}", purpose="check")


def _data(rows, phase):
    return Singles(rows, phase=phase, purpose="data")


@dataclass(frozen=True, slots=True)
class LinearMap(Configured):
    """Learn M and c of f([x]) = M x + c."""

    dim: int
    seed: int = 0

    revision: ClassVar[int] = 1
    outputs: ClassVar[Any] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)

    def plan(self):
        return Plan(self.dim + 1, self.dim + 1, self.dim + 1, 3, "d + 1", FARTHEST, 1)

    def steps(self, checks):
        rng = np.random.default_rng(self.seed)
        early = _checks(self.dim, checks // 2, 1, rng, "opening")
        y_early, zero = yield [early, _data(np.zeros((1, self.dim)), "c")]
        [units] = yield [_data(UnitVectors(self.dim), "M")]
        late = _checks(self.dim, checks - checks // 2, 1, rng, "closing")
        [y_late] = yield [late]
        model = LinearModel(c=zero[0], M=(units - zero).T)
        eta = _ROUNDOFF * (np.linalg.norm(model.M) + np.linalg.norm(model.c))
        scale = np.sqrt(len(model.c))
        errors = {"M": float(2 * eta * scale * np.sqrt(self.dim)), "c": float(eta * scale)}

        def allowed(X):
            return errors["c"] + (errors["M"] + eta) * np.linalg.norm(X, axis=2).max(axis=1) + eta

        return _concluded(model, errors, allowed, [(early.X, y_early), (late.X, y_late)])


@dataclass(frozen=True, slots=True)
class VectorHead(Configured):
    """Learn W, V and c of a softmax head that answers with vectors."""

    dim: int
    seed: int = 0

    revision: ClassVar[int] = 1
    outputs: ClassVar[Any] = "vector"

    def plan(self):
        d = self.dim
        return Plan(1 + d + d**2, 1 + d + d**2, 1 + d + 2 * d**2, 6, "1 + d + d²", FARTHEST, 512)

    def steps(self, checks):
        rng, d = np.random.default_rng(self.seed), self.dim
        early = _checks(d, checks // 2, 3, rng, "opening")
        zero_token = _data(np.zeros((1, d)), "c")
        y_early, zero, units = yield [early, zero_token, _data(UnitVectors(d), "V")]
        grid = Grid(np.eye(d), np.eye(d), np.ones(d), np.ones(d), phase="W", purpose="data")
        [y] = yield [grid]
        c, values = zero[0], units - zero  # values[i] = V e_i
        # rows of the table: query tokens b_j; columns: offsets a_i
        table = y.reshape(d, d, len(c)) - c - values[:, None]
        share = np.einsum("jim,im->ji", table, values) / np.sum(values**2, axis=1)
        model = VectorHeadModel(c=c, W=np.log(share / (1 - share)).T, V=values.T)
        eta = _ROUNDOFF * (2 * np.linalg.norm(model.V) + np.linalg.norm(c)) * np.sqrt(len(c))
        slope = share * (1 - share) * np.linalg.norm(values, axis=1)
        errors = {
            "W": float(np.linalg.norm(6 * eta / slope)),
            "V": float(2 * eta * np.sqrt(d)),
            "c": float(eta),
        }

        def allowed(X):
            size = np.linalg.norm(X, axis=2).max(axis=1)
            score = 2 * size**2 * errors["W"]
            return errors["c"] + eta + size * (errors["V"] + eta + score * np.linalg.norm(model.V))

        late = checks - checks // 2
        drawn = draw_long(model, late, rng, _at_logits(model), LONG)
        long = by_length(drawn, "hold-out, long")
        closing = _checks(d, late - len(drawn), 5, rng, "closing")
        answered = yield from fresh_answers([closing], [(early.X, y_early)], LONG.rounds(long))
        looked = [looked_at(model, answered, long)] if checks else []
        return _concluded(model, errors, allowed, answered, *looked)


LONG = LongSequenceTuning()


def _at_logits(model):
    def scaled(offsets, query, wanted):
        rms = np.sqrt(np.mean((offsets @ model.scores_of(query[None])[0]) ** 2))
        return np.sqrt(wanted / rms) * np.vstack([offsets, query])

    return scaled


def _concluded(model, errors, allowed, checks, *looked):
    """Judge a model by its hold-out, number by number."""
    asked = [(X, y) for X, y in checks if len(X)]
    residuals = [y - model(X) for X, y in asked]
    tolerances = [np.repeat(allowed(X)[:, None], y.shape[1], axis=1) for X, y in asked]
    queries = sum(len(y) for _, y in asked)
    none = np.zeros((0, 1))
    evidence = Evidence.of(queries, np.vstack(residuals or [none]), np.vstack(tolerances or [none]))
    if queries and not evidence.passed:
        raise ModelMismatch("Fresh vectors are not what the model predicts.")
    assumes = ("Answers are rounded by float64 alone.", *looked)
    return Found(model, Certificate(errors, assumes), evidence)

"""A learner of vectors for tests alone, in three rounds: f([x]) = M x + c from d + 1 queries."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.probes import FARTHEST, Sequences, Singles, UnitVectors
from unsoftmax.protocol import Certificate, Evidence, Found, Plan

# Roundoffs that a target may lose in a product (measured: 3 at d = 6).
_ROUNDOFF = 16 * 2.0**-53


@dataclass(frozen=True, eq=False)
class LinearModel:
    """M x + c of the last token."""

    c: Any
    M: Any

    @property
    def dim(self) -> int:
        return int(self.M.shape[1])

    def __call__(self, X):
        return X[:, -1] @ self.M.T + self.c

    def arrays(self):
        return {"M": self.M, "c": self.c}

    def parameter_norm(self, name):
        return float(np.linalg.norm(self.arrays()[name]))

    def save(self, path):
        np.savez(path, **self.arrays())


@dataclass(frozen=True, slots=True)
class LinearMap(Configured):
    """Learn M and c; errors by forward error: every number is within κ·u·(max‖x‖·‖M‖ + ‖c‖)."""

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
        early = self._checks(checks // 2, rng, "opening")
        y_early, zero = yield [early, self._data(np.zeros((1, self.dim)), "c")]
        [units] = yield [self._data(UnitVectors(self.dim), "M")]
        late = self._checks(checks - checks // 2, rng, "closing")
        [y_late] = yield [late]
        model = LinearModel(c=zero[0], M=(units - zero).T)
        eta = _ROUNDOFF * (np.linalg.norm(model.M) + np.linalg.norm(model.c))
        scale = np.sqrt(len(model.c))
        errors = {"M": float(2 * eta * scale * np.sqrt(self.dim)), "c": float(eta * scale)}
        X, y = np.concatenate([early.X, late.X]), np.concatenate([y_early, y_late])
        allowed = errors["c"] + (errors["M"] + eta) * np.linalg.norm(X, axis=2).max(axis=1) + eta
        tolerances = np.repeat(allowed[:, None], y.shape[1], axis=1)
        evidence = Evidence.of(len(y), y - model(X), tolerances)
        if checks and not evidence.passed:
            raise ModelMismatch("Fresh vectors are not what the model predicts.")
        unchecked = () if checks else ("Nothing was checked.",)
        assumes = ("Answers are rounded by float64 alone.", *unchecked)
        return Found(model, Certificate(errors, assumes), evidence)

    def _checks(self, count, rng, phase):
        X = rng.standard_normal((count, 1, self.dim)).astype(np.float32).astype(np.float64)
        return Sequences(X / 2, phase=f"hold-out, {phase}", purpose="check")

    def _data(self, rows, phase):
        return Singles(rows, phase=phase, purpose="data")

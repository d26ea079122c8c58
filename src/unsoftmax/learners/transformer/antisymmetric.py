"""The paper's reduction: the antisymmetric part of a bias-free Transformer is a single head.

    T(X) − T(−X) = (A w_o)·Σ_i softmax_i(x_iᵀW x_N) x_i,

for relu(z) − relu(−z) = z, and the scores of −X are those of X: a head with v = A w_o, whatever
the network, at two queries each (Section 4.1 of arXiv 2601.16873).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.probes import Array, Design, Probes
from unsoftmax.protocol import M, Steps


@dataclass(frozen=True, slots=True)
class Negated(Probes):
    """Other probes, every token with its sign changed."""

    of: Probes

    @property
    def tokens(self) -> int:  # noqa: D102
        return self.of.tokens

    @property
    def dim(self) -> int:  # noqa: D102
        return self.of.dim

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, span: slice) -> Array:
        return np.negative(self.of[span])

    def design(self) -> Design:  # noqa: D102
        return self.of.design()


def antisymmetric(steps: Steps[M]) -> Steps[M]:
    """Let a learner of f learn f(X) − f(−X) instead: every query becomes two."""
    answers = None
    while True:
        try:
            parts = steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        negated = [Negated(part, phase=f"{part.phase}, −X", purpose=part.purpose) for part in parts]
        y = yield [*parts, *negated]
        answers = [y[k] - y[len(parts) + k] for k in range(len(parts))]

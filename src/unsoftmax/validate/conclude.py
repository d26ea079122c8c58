"""How the recovery of a layer ends: fresh sequences, and a certificate or a refusal.

Fresh answers are compared with the recovered layer and with others drawn from the same answers
(`drawn_models`). They confirm it, widen its bounds, or refuse it; `conclude` is the one place that
says so, of layers of every kind.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, NamedTuple

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.models.arrays import TINY
from unsoftmax.models.attention_layer import AttentionLayer
from unsoftmax.probes import Round
from unsoftmax.protocol import Answers, Certificate, Found, Steps
from unsoftmax.validate.drawn_models import DRAWN, SAFETY, DrawnModels, L, score_norm
from unsoftmax.validate.judge import (
    Answered,
    Judgement,
    Residuals,
    fresh_answers,
    judge,
    more_than_usual,
)
from unsoftmax.validate.layer_sequences import Layer, LayerSequences
from unsoftmax.validate.long_sequences import looked_at

CONFIRMING = 4
"""Fresh sequences that a layer must predict before the hold-out, after which nothing is mended."""
MORE = 100.0
"""What bounds explain of the hold-out is believed up to so many times the share of an answer that
is believed before it, where another search may find a better layer."""
USUAL = 3.0
"""Bounds grow where fresh answers are missed by more than so many times what one drawn error and
the noise make. Of 210 layers with exact, rounded and noisy answers one was missed by 3.6 times
that, others by less than 3 times; those whose answers drift by 3 to 14 times."""
# Heads below this share of the largest are not seen, however small the noise; nor are those below
# so many times the noise: the largest singular value of noise is 2 to 3 times √rows of its numbers.
INVISIBLE, RANK_NOISE = 1e-12, 30.0


class Said(NamedTuple):
    """What is said of a kind of layer."""

    kind: str
    """What the target is taken for."""
    otherwise: str
    """What else it may be where fresh answers contradict that."""
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusion(Generic[L]):
    """A recovered layer beside drawn ones, and the sequences that it is tried with."""

    drawn: DrawnModels[L]
    fresh: LayerSequences
    said: Said

    def confirmed(self) -> Generator[Round, Answers, None]:
        """Try some sequences before the hold-out, after which nothing can be mended."""
        tried = yield from fresh_answers(self.fresh.confirming(CONFIRMING))
        self._believed(self._judged(tried, 0, 1.0), True)

    def run(self, checks: int, earlier: Sequence[Answered] = ()) -> Steps[L]:
        """Ask the hold-out; return the layer and how sure it is.

        Parameters
        ----------
        checks : int
            Queries of the hold-out, those of ``earlier`` included.
        earlier : sequence of (ndarray, ndarray)
            Sequences of it that were asked before, with their answers.

        Raises
        ------
        ModelMismatch
            Fresh answers are not what the layer predicts.
        """
        drawn, model = self.drawn, self.drawn.model
        short, rounds = self.fresh.holdout(checks - sum(len(y) for _, y in earlier))
        answered = yield from fresh_answers(short, earlier, rounds)
        judgement = self._judged(answered, checks, MORE)
        self._believed(judgement, bool(checks))
        strain = max((drawn.strain(X, y) for X, y in answered if len(X)), default=0.0)
        widened = max(1.0, strain / USUAL)
        errors = {name: widened * bound for name, bound in drawn.errors().items()}
        bounds, close = drawn.bounds(errors)
        looked = (looked_at(model, answered, chain(*rounds)), _seen(judgement))
        assumed = (
            *self._assumed(),
            *(looked if checks else ("Nothing was checked.",)),
            *close,
            *_predicted_within(model, answered, bounds),
            *more_than_usual(widened),
        )
        notes = (*self.said.notes, *self._alike(bounds))
        return Found(model, Certificate(bounds, assumed), judgement.evidence, notes)

    def _judged(self, answered: Sequence[Answered], queries: int, more: float) -> Judgement:
        asked = [(X, y) for X, y in answered if len(X)]
        compared = [(X.shape[1], self.drawn.residuals(X, y, more)) for X, y in asked]
        return judge(Residuals.of_lengths(compared), queries)

    def _believed(self, judgement: Judgement, asked: bool) -> None:
        """Refuse a layer that fresh answers contradict."""
        if judgement.evidence.passed or not asked:
            return
        missed, allowed = judgement.worst
        raise ModelMismatch(
            f"The recovered layer of {self.drawn.model.H} heads misses a fresh answer by "
            f"{missed:.1e} of its size where {allowed:.1e} is expected: the target is no "
            f"{self.said.kind} ({self.said.otherwise}), or its answers are too coarse."
        )

    def _assumed(self) -> tuple[str, ...]:
        noise = self.drawn.noise
        absolute = f", and by {noise.absolute:.1e}" if noise.absolute else ""
        unseen = max(RANK_NOISE * noise.relative, INVISIBLE)
        return (
            f"The target is a {self.said.kind}, and all heads were found: the hold-out tests "
            "this but cannot prove it. A head is missed if its M is 0, and may be missed if its M "
            f"is below {unseen:.0e} of the others'. Heads whose W and w differ by less than their "
            "bounds count as one, with the sum of their M.",
            f"Answers are off by {noise.relative:.1e} of their size{absolute}, as measured with "
            "single tokens. A bound is for all numbers of a head together, the largest over heads.",
            f"Bounds are {SAFETY:.0f} times the errors of parameters that random errors of that "
            f"size cause ({DRAWN} draws).",
            *self.said.assumed,
        )

    def _alike(self, bounds: Mapping[str, float]) -> tuple[str, ...]:
        """Name heads that score all tokens alike, as far as the bounds say."""
        model, left = self.drawn.model, float(np.hypot(bounds["W"], bounds.get("w", 0.0)))
        named = [str(h) for h in range(model.H) if score_norm(model, h) <= left]
        if not named:
            return ()
        return (
            f"W and w of head {', '.join(named)} are 0 within their bounds: as far as answers show "
            "it weighs all tokens alike. Several heads with scores so small count as one, with the "
            "sum of their M.",
        )


def _seen(judgement: Judgement) -> str:
    return (
        "A fresh answer passes if it misses the model by at most "
        f"{judgement.evidence.tolerance:.1e} of its size: what changes answers by less is not "
        "detected."
    )


def _predicted_within(
    model: Layer, answered: Sequence[Answered], bounds: Mapping[str, float]
) -> tuple[str, ...]:
    """Say what the bounds allow predictions to be off by, at the fresh sequences."""
    asked = [(X, y) for X, y in answered if len(X)]
    if not (
        isinstance(model, AttentionLayer) and asked and np.all(np.isfinite([*bounds.values()]))
    ):
        return ()
    sizes = [np.linalg.norm(y, axis=1) for _, y in asked]
    moved = [model.moved_at_most(X, bounds) for X, _ in asked]
    shares = np.concatenate(moved) / np.maximum(np.concatenate(sizes), TINY)
    longest = max(float(np.linalg.norm(X, axis=2).max()) for X, _ in asked)
    return (
        "The prediction for a sequence X is off by at most model.moved_at_most(X, errors). For "
        f"the fresh ones (up to {max(X.shape[1] for X, _ in asked)} tokens of norm up to "
        f"{longest:.2g}) that is {np.median(shares):.1e} of an answer's norm in the median and "
        f"{np.max(shares):.1e} at most.",
    )

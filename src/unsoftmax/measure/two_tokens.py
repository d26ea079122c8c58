"""The two-token identity, and what an answer's error does to the logit read from it.

For X = [(αa+βb); βb] the two scores differ by the logit t = αa·(βWb + w), so

    f(X) = βb·v + c + (αa·v)·σ(t),      t = log p − log q,
    p = (y − βb·v − c)/(αa·v),          q = 1 − p.

With |y − f| ≤ η, |v̂_k − v_k| ≤ ν_k and |ĉ − c| ≤ ν_c the identity
p̂ − p = (e − βb·δv − δc − p·αa·δv)/(αa·v̂) gives

    |p̂ − p| ≤ δ = (η + β|b|·ν + ν_c + p̂·α|a|·ν)/(α|a·v̂| − α|a|·ν),
    |t̂ − t| ≤ δ/(m(1 − m)),            m = min(p̂, q̂) − δ,

and no bound when m ≤ 0. Logits become readings of M = a·(W b), (t/α − z·w)/β, whose errors are
bounded one by one and all together (`TwoTokenAnswers.reading`). Everything is vectorised over
arrays that broadcast together; nothing is asked here. Source: Theorem 4.1 for the identity; the
errors go beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unsoftmax.measure.offsets import chunks
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.reading import Alike, Reading
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array, LazyRows, Rows, UnitVectors


@dataclass(frozen=True, slots=True)
class Vectors:
    """Offsets or query tokens, seen through v: all that the identity needs of them."""

    value: Array
    """a·v̂ (or b·v̂)."""
    value_error: Array
    """|a|·ν."""
    norm: Array
    """‖a‖₂."""

    @classmethod
    def of(cls, rows: Rows, values: Values) -> Vectors:
        """Read the rows through the value vector."""
        if isinstance(rows, UnitVectors):
            return cls(values.v, values.among_others.v, np.ones(rows.dim))
        if isinstance(rows, LazyRows):
            seen = [cls.of(rows[part], values) for part in chunks(rows)]
            return cls(
                np.concatenate([x.value for x in seen]),
                np.concatenate([x.value_error for x in seen]),
                np.concatenate([x.norm for x in seen]),
            )
        unsure = np.abs(rows) @ values.among_others.v
        return cls(rows @ values.v, unsure, np.linalg.norm(rows, axis=1))

    def take(self, index: Any) -> Vectors:
        """Pick rows, or give the arrays new axes."""
        return Vectors(self.value[index], self.value_error[index], self.norm[index])


@dataclass(frozen=True, slots=True)
class Gates:
    """Answers to two-token probes, read as values of the sigmoid."""

    p: Array
    """p̂ = σ(t)."""
    p_error: Array
    """Bound δ on |p̂ − p|."""
    answer_error: Array
    """Bound η + ν_c on what y − ĉ is off by."""
    logit: Array
    """t̂, ±inf or NaN where the answer says nothing."""
    margin: Array
    """m = min(p̂, q̂) − δ; no bound on the logit where it is 0 or less."""

    @property
    def logit_error(self) -> Array:
        """Bound on |t̂ − t|, inf where there is none."""
        return self.p_error * self.slope

    @property
    def slope(self) -> Array:
        """Bound on dt/dp over the interval that p lies in, 1/(m(1 − m))."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(self.margin > 0, 1 / (self.margin * (1 - self.margin)), np.inf)


@dataclass(frozen=True, slots=True)
class TwoTokenAnswers:
    """Answers to [(αa + βb); βb] and how they were asked.

    Arrays broadcast together; in a grid they are (query tokens, offsets).

    Attributes
    ----------
    y : ndarray
        Answers, NaN where not asked.
    a, b : Vectors
        Offsets and query tokens.
    alpha, beta : ndarray
        The scales, powers of two as a rule.
    values : Values
        v̂ and ĉ, their errors, and the precision that is assumed.
    """

    y: Array
    a: Vectors
    b: Vectors
    alpha: Array
    beta: Array
    values: Values

    @property
    def answer_error(self) -> Array:
        """Bound η + ν_c on what y − ĉ is off by."""
        values = self.values
        size = self._token_norm * values.norm + abs(values.c)
        return values.precision.error(size, self.y) + values.among_others.c

    def gates(self) -> Gates:
        """Invert the two-token identity."""
        answer_error = self.answer_error
        with np.errstate(divide="ignore", invalid="ignore"):
            signal, p, q = self._shares()
            unsure = self.alpha * self.a.value_error
            error = answer_error + self.beta * self.b.value_error + np.abs(p) * unsure
            room = np.abs(signal) - unsure
            p_error = np.where(room > 0, error / room, np.inf)
            logit = np.log(p) - np.log(q)
            return Gates(p, p_error, answer_error, logit, np.minimum(p, q) - p_error)

    def _shares(self) -> tuple[Array, Array, Array]:
        """Return αa·v̂ and the weights p̂ and q̂ of the two tokens."""
        signal = self.alpha * self.a.value
        rest = self.y - self.beta * self.b.value - self.values.c
        # q from its own difference: 1 − p would lose q's digits when p is near 1
        with np.errstate(divide="ignore", invalid="ignore"):
            return signal, rest / signal, (signal - rest) / signal

    @property
    def telling(self) -> Array:
        """Return the answers that are round only if the target rounds: y has σ(t) in it.

        One token alone (σ = 0 or 1), or both alike (σ = ½, t = 0), give round answers where
        v and the tokens are round; any other σ(t) does not.
        """
        gates = self.gates()
        return np.asarray(self.y[(gates.margin > 0) & (np.abs(gates.p - 0.5) > gates.p_error)])

    def moved(self, rng: np.random.Generator, score_norm: Array) -> Array:
        """Return answers moved by about as much as they are off, rounding of scores included.

        ``score_norm``: see `reading`.
        """
        size = self._token_norm * self.values.norm + abs(self.values.c)
        signal, p, q = self._shares()
        scores = self.values.precision.unit * self._token_norm * score_norm
        slope = np.abs(signal) * np.clip(p, 0.0, 1.0) * np.clip(q, 0.0, 1.0)
        off = self.values.precision.deviation(size, self.y) + slope * scores / 2
        return np.asarray(self.y + off * rng.standard_normal(self.y.shape))

    def measured(self, shift: Array | float = 0.0) -> Array:
        """Return M̂ alone; see `reading`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            _, p, q = self._shares()
            logit = np.log(p) - np.log(q)
        return np.asarray((logit / self.alpha - shift) / self.beta)

    def reading(
        self,
        score_norm: Array,
        stretch: float,
        shift: Array | float = 0.0,
        shift_error: float = 0.0,
    ) -> Reading:
        """Read M = a·(W b) = (t/α − a·w)/β with all that it may be off by.

        Parameters
        ----------
        score_norm : ndarray
            ‖βW b + w‖ of the scores' vectors, for the rounding of the scores themselves.
        stretch : float
            ‖Z‖₂ of the offsets, for the bound on all errors together.
        shift : ndarray (offsets,) or float
            a·w, measured before, where there is a w.
        shift_error : float
            Bound on the norm of its error.
        """
        gates, scale = self.gates(), self.alpha * self.beta
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            logit = gates.logit / scale
            value = (gates.logit / self.alpha - shift) / self.beta
            scores = KAPPA * self.values.precision.unit * self._token_norm * score_norm / scale
            slope = gates.slope
            error = gates.p_error * slope / scale + scores + 4 * UNIT * np.abs(logit)
        error = np.where(gates.margin > 0, error + shift_error / self.beta, np.inf)
        if not np.all(gates.margin > 0):
            return Reading(value, error, float("inf"))
        own = float(np.linalg.norm(scores)) + 4 * UNIT * float(np.linalg.norm(logit))
        effects = self._effects(gates, slope / scale)
        # one error of a·w for all query tokens
        shares = _Effect(np.broadcast_to(1 / self.beta, value.shape), 1 / self.beta)
        total = own + effects.total(stretch) + shift_error * shares.repeated
        if value.ndim != 2:
            return Reading(value, error, total)
        apart = own + effects.apart(stretch) + shift_error * shares.uneven.repeated
        of_solution, of_ones = effects.alike()
        of_shift = shares.mean if shift_error else 0.0
        return Reading(value, error, total, Alike(of_solution, of_ones, of_shift, apart))

    def _effects(self, gates: Gates, slope: Array) -> _Effects:
        """Return what errors of answers, of v and of c do to M; ``slope`` bounds dM/dp."""
        a, values = self.a, self.values
        with np.errstate(divide="ignore", over="ignore"):
            signal = self.alpha * a.value
            gain = slope / np.abs(signal)
            read = 1 / (gates.p * (1 - gates.p) * signal * self.alpha * self.beta)
        most = gates.p + gates.p_error
        through_v = _Effect(read * gates.p * self.alpha, gain * most * self.alpha)
        return _Effects(
            float(np.linalg.norm(gain * (gates.answer_error - values.among_others.c))),
            through_v.scaled(float(np.linalg.norm(values.among_others.v))),
            _Effect(read * self.beta, gain * self.beta).scaled(self.b.value_error),
            _Effect(read, gain).scaled(values.among_others.c),
        )

    @property
    def _token_norm(self) -> Array:
        return np.asarray(self.alpha * self.a.norm + self.beta * self.b.norm)


@dataclass(frozen=True, slots=True)
class _Effect:
    """What an unknown does to the readings, (query tokens, offsets)."""

    pattern: Array
    """To first order."""
    most: Array
    """Bound on its absolute value."""

    def scaled(self, error: Array | float) -> _Effect:
        """Return the effect of an error of this size."""
        return _Effect(self.pattern * error, self.most * error)

    @property
    def norm(self) -> float:
        """Norm of all of it."""
        return float(np.linalg.norm(self.most))

    @property
    def repeated(self) -> float:
        """How many times an unknown vector over the offsets is in the readings."""
        return float(np.sqrt(np.max(np.sum(np.atleast_2d(self.most) ** 2, axis=0))))

    @property
    def mean(self) -> float:
        """Norm, over the query tokens, of its mean over the offsets."""
        return float(np.linalg.norm(np.mean(self.pattern, axis=-1)))

    @property
    def uneven(self) -> _Effect:
        """What differs from the mean."""
        rest = self.pattern - np.mean(self.pattern, axis=-1, keepdims=True)
        return _Effect(rest, np.abs(rest) + np.maximum(self.most - np.abs(self.pattern), 0.0))


@dataclass(frozen=True, slots=True)
class _Effects:
    """What all errors but the scores' do to the readings."""

    answers: float
    v: _Effect
    """Of a·v, times the norm of v's error: δ in a·δ."""
    b: _Effect
    """Of b·v, one unknown per query token."""
    c: _Effect
    """One unknown for all."""

    def total(self, stretch: float) -> float:
        """Bound the norm of all: Σ_i (z_i·δv)² ≤ ‖Z‖₂²‖δv‖²."""
        return self.answers + self.v.repeated * stretch + self.b.norm + self.c.norm

    def apart(self, stretch: float) -> float:
        """Bound the norm of what is not alike for all offsets."""
        v, b, c = self.v.uneven, self.b.uneven, self.c.uneven
        return self.answers + v.repeated * stretch + b.norm + c.norm

    def alike(self) -> tuple[float, float]:
        """Return the norms of what is alike: of Z δv as it is solved, of b·v and c."""
        return self.v.mean, self.b.mean + self.c.mean

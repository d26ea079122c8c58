"""Logits read through the known network: one query for each, two where it is anchored.

    T([x+a; x]) = g(x + σ(t)·a),      t = a·u,   u = W x + w

An answer is inverted along its segment. The network's own error at x, known from one single
token, is taken off first: short segments lie in its linear piece, where that is nearly all of it.
Anchored, g is asked once more, at x + σ̂a: what is left of the network's error is of second order.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.transformer.aim import Aim, Steered, take
from unsoftmax.learners.transformer.known import Known
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.probes import Array, Design, Indices, LazyRows, Pairs, Purpose, Round, Singles
from unsoftmax.protocol import Answers

_CHUNK = 2**21  # numbers at once
# Logits beyond this have lost digits and are asked again with a shorter offset; so many times.
_LARGEST, _AGAIN = 6.0, 4
_LOWER = 2.0  # what such a logit is brought to
_SATURATED = 1 / 16  # times as long an offset where only the sign of a logit is seen
# Pilots of a token that are beyond these bounds say how long it should be instead.
_HIGH, _LOW, _LOW_ANCHORED = 4.0, 0.05, 0.005
_TARGET, _TARGET_LOW, _MOST_LONGER = 1.5, 0.5, 900.0
_PILOTS = 2
# σ may be outside of [0, 1] by this, times its error's bound, before it is no softmax's.
_OUTSIDE, _ROUNDING = 3.0, 1e-7
# Beside d² logits one in so many queries more is spent in any case: on g at the query tokens, on
# what is asked again, and the rest on anchors for the logits that leave most open.
SPARE = 7
# Where a kink of g is nearer to an anchor than so many corrections, its slope is not trusted;
# elsewhere a slope of the network is taken to be right to this share.
_NEAR_KINK, _SLOPE = 10.0, 1e-3


@dataclass(frozen=True, slots=True)
class Landed(LazyRows):
    """The pooled tokens x + σ̂a of some offsets."""

    x: Array
    offsets: Steered
    step: Array
    """σ̂ times the offset's length."""

    @property
    def shape(self) -> tuple[int, int]:  # noqa: D102
        return len(self.step), self.x.shape[1]

    def pick(self, index: Indices) -> Landed:  # noqa: D102
        return Landed(self.x, self.offsets.pick(index), self.step[index])

    def design(self) -> Design:  # noqa: D102
        return {"x": self.x, **self.offsets.design(), "step": self.step}

    def __getitem__(self, index: Indices) -> Array:
        return self.x[self.offsets.token[index]] + self.step[index, None] * self.offsets[index]


@dataclass(slots=True)
class Reading:
    """Answers along an aim's offsets, and what they say."""

    known: Known
    aim: Aim
    phase: str
    y: Array = field(init=False)
    """Answers, NaN where not asked."""
    at: Array = field(init=False)
    """``g(x) − ĝ(x)`` at the query tokens, 0 where not asked."""
    anchor: Array = field(init=False)
    """``g − ĝ`` at the anchors, NaN where not asked."""
    anchored: Array = field(init=False)
    """σ̂ of the anchors."""
    again: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        rows = len(self.aim.alpha)
        self.y, self.anchor, self.anchored = np.full((3, rows), np.nan)
        self.at = np.zeros(len(self.aim.x))

    @property
    def pilots(self) -> Indices:
        """The first offsets of every token."""
        return self.aim.rows(np.arange(len(self.aim.x)), slice(0, _PILOTS))

    def ask(self, rows: Indices, purpose: Purpose = "data") -> Generator[Round, Answers, None]:
        """Ask along some offsets."""
        if not len(rows):
            return
        [self.y[rows]] = yield [self._pairs(rows, purpose)]
        self.again += len(rows) if purpose == "again" else 0

    def ask_tokens(self, rows: Indices) -> Generator[Round, Answers, None]:
        """Ask along some offsets, and every query token by itself."""
        alone = Singles(self.aim.x, phase=f"{self.phase}, g at its tokens", purpose="data")
        parts = [self._pairs(rows, "data")] if len(rows) else []
        [*y, g] = yield [*parts, alone]
        if len(rows):
            [self.y[rows]] = y
        self.at = g - self.known.network(self.aim.x)

    def ask_anchors(self, rows: Indices) -> Generator[Round, Answers, None]:
        """Ask g where the answers say that the pooled tokens of some rows are."""
        self.anchored[rows] = np.clip(self.sigma(rows)[0], 0.0, 1.0)
        step = self.anchored[rows] * self.aim.alpha[rows]
        landed = Landed(self.aim.x, self.aim.offsets.pick(rows), step)
        if not len(rows):
            return
        [g] = yield [Singles(landed, phase=f"{self.phase}, anchors", purpose="data")]
        chunk = self._step()
        for start in range(0, len(g), chunk):
            part = np.arange(start, min(start + chunk, len(g)))
            self.anchor[rows[part]] = g[part] - self.known.network(landed[part])

    def poorest(self, count: int) -> Indices:
        """Return the rows whose logits leave most open of W."""
        rows = np.arange(len(self.y))
        _, error = self.logits(rows)
        length = np.abs(self.aim.beta)[self.aim.offsets.token]
        open_ = error / (self.aim.alpha * np.where(length > 0, length, 1.0))
        return np.sort(np.argsort(-open_, kind="stable")[:count])

    def sigma(self, rows: Indices) -> tuple[Array, Array, Array]:
        """Return σ̂ of some answers, 1 − σ̂, and a bound on their error."""
        sigma, other, bound = np.empty((3, len(rows)))
        step = self._step()
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            sigma[part], other[part], bound[part] = self._sigma(rows[part])
        return sigma, other, bound

    def logits(self, rows: Indices) -> tuple[Array, Array]:
        """Return logits, ±inf where saturated, and bounds on their error."""
        sigma, other, bound = self.sigma(rows)
        if np.any(np.maximum(-sigma, -other) > _OUTSIDE * bound + _ROUNDING):
            raise ModelMismatch(
                "Answers to two tokens lie outside of what any attention weights between them "
                "can give with this network: the target is not one softmax head followed by a "
                "ReLU network."
            )
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            t = np.log(np.maximum(sigma, 0.0)) - np.log(np.maximum(other, 0.0))
            margin = np.minimum(sigma, other) - bound
            error = np.where(margin > 0, bound / (margin * (1 - margin)), np.inf)
        return t, error

    def solve(self) -> tuple[Array, Array]:
        """Return Qᵀu for all query tokens (k, r), and bounds on its error (k,)."""
        t, error = self.logits(np.arange(len(self.y)))
        if lost := int(np.count_nonzero(~np.isfinite(t))):
            raise NotIdentifiable(
                f"{lost} of {t.size} logits are out of the answers' reach: attention is all on "
                "one token at every scale tried, as with hard attention. The network is "
                "determined, W is not.",
                determined={"network": self.known.network},
            )
        alpha = self.aim.alpha
        return self.aim.offsets.solve(t / alpha, error / alpha)

    def _pairs(self, rows: Indices, purpose: Purpose) -> Pairs:
        name = f"{self.phase}, again" if purpose == "again" else self.phase
        return Pairs(
            self.aim.offsets.pick(rows),
            self.aim.x,
            np.arange(len(rows)),
            self.aim.offsets.token[rows],
            self.aim.alpha[rows],
            np.ones(len(rows)),
            phase=name,
            purpose=purpose,
        )

    def _step(self) -> int:
        d, m = self.known.network.A.shape
        return int(max(1, _CHUNK // (m + 3 * d)))

    def _sigma(self, rows: Indices) -> tuple[Array, Array, Array]:
        known, aim = self.known, self.aim
        token = aim.offsets.token[rows]
        x, a = aim.x[token], aim.alpha[rows, None] * aim.offsets[rows]
        pieces = aim.segments(known.network, rows)
        unseen = known.unseen(x, x + a)
        y = self.y[rows] - self.at[token]
        sigma, slope = pieces.invert(y)
        rise, sign = np.abs(pieces.rise), np.sign(pieces.rise)
        gentle = np.maximum(pieces.steepness(unseen), 1e-300) * rise
        # the pieces' values have summed up rounding: once more, from the network itself
        sigma += sign * (y - known.network(x + sigma[:, None] * a)) / slope
        p = x + np.clip(sigma, 0.0, 1.0)[:, None] * a
        off = known.error(p) + known.rounding(p, self.y[rows])
        off = off + np.where(self.at[token] != 0, known.error(x) + known.rounding(x, y), 0.0)
        width, change = pieces.passed_over(unseen)
        bound = (off + change) / gentle + width
        if np.any(there := np.isfinite(self.anchor[rows])):
            first = self.anchored[rows]
            p = x + first[:, None] * a
            left = self.y[rows] - known.network(p) - self.anchor[rows]
            move = left / (sign * slope)
            near = np.abs(pieces.knots[:, 1:-1] - first[:, None]).min(
                axis=1, initial=np.inf
            ) < _NEAR_KINK * np.abs(move)
            share = np.where(near, slope / gentle, _SLOPE)
            sharp = np.abs(move) * share + 2 * known.rounding(p, self.y[rows]) / gentle
            sigma = np.where(there, first + move, sigma)
            bound = np.where(there, sharp, bound)
        # 1 − σ keeps its digits: logits are moderate
        return sigma, 1 - sigma, bound + KAPPA * UNIT


def measure(
    known: Known,
    B: Array,
    beta: Array,
    reach: Array,
    basis: Array | None,
    bias: Array,
    phase: str,
    anchored: bool,
) -> Generator[Round, Answers, Reading]:
    """Read Qᵀ(W x + w) for query tokens x = ±β b: r queries each, and one for g there.

    Parameters
    ----------
    known : Known
        The network.
    B, beta, reach : ndarray (k, d), (k,), (k,)
        See `take`.
    basis : ndarray (d, r), optional
        Q; all of R^d where None.
    bias : ndarray (d,)
        w as far as it is known: it says which part of a logit grows with x.
    phase : str
        Name of the progress shown.
    anchored : bool
        Ask g once more for every logit.
    """
    reading = Reading(known, steep(known, take(known, B, beta, reach, basis)), phase)
    yield from reading.ask(reading.pilots, "pilot")
    reading = yield from _rescaled(
        reading, B, beta, reach, bias, _LOW_ANCHORED if anchored else _LOW
    )
    return (yield from complete(reading, anchored))


def complete(reading: Reading, anchored: bool) -> Generator[Round, Answers, Reading]:
    """Ask all that is left to ask after the pilots, and again what is out of range."""
    tokens = np.arange(len(reading.aim.x))
    rest = reading.aim.rows(tokens, slice(_PILOTS, None))
    if anchored:  # anchors tell more
        yield from reading.ask(rest)
    else:
        yield from reading.ask_tokens(rest)
    rows = np.arange(len(reading.y))
    for _ in range(_AGAIN):
        t, _ = reading.logits(rows)
        beyond = rows[~(np.abs(t) <= _LARGEST)][: most_again(len(rows)) - reading.again]
        if not len(beyond):
            break
        shorter = reading.aim.alpha.copy()
        with np.errstate(divide="ignore"):
            factor = np.where(np.isfinite(t), _LOWER / np.abs(t), _SATURATED)
        shorter[beyond] *= factor[beyond]
        reading.aim = replace(reading.aim, alpha=shorter)
        yield from reading.ask(beyond, "again")
    if not anchored:
        rows = reading.poorest(max(0, len(rows) // SPARE - reading.again - len(tokens)))
    yield from reading.ask_anchors(rows)
    return reading


def most_again(rows: int) -> int:
    """Return how many of so many logits are asked again at most."""
    return 2 * _PILOTS + rows // 2


def steep(known: Known, aim: Aim) -> Aim:
    """Refuse a network that is flat, or turns, wherever one may aim."""
    if aim.flat:
        raise NotIdentifiable(
            "The network is flat, or turns, along every segment tried from some query tokens: its "
            "answers do not tell where on them the pooled token is. The network is determined, "
            "W is not.",
            determined={"network": known.network},
        )
    return aim


def _rescaled(
    reading: Reading, B: Array, beta: Array, reach: Array, bias: Array, low: float
) -> Generator[Round, Answers, Reading]:
    """Change the lengths of tokens whose pilots are out of range, and ask these again."""
    aim, k, pilots = reading.aim, len(reading.aim.x), reading.pilots
    t, _ = reading.logits(pilots)
    from_bias = aim.alpha[pilots] * (aim.offsets[pilots] @ bias)
    with np.errstate(invalid="ignore"):
        size = np.abs(t - from_bias).reshape(k, -1).max(axis=1)
    with np.errstate(divide="ignore"):
        factor = np.where(size > _HIGH, _TARGET / size, 1.0)
        factor = np.where(size < low, np.minimum(_TARGET_LOW / size, _MOST_LONGER), factor)
    factor = np.where(np.isfinite(size), factor, _SATURATED**2)
    changed = np.flatnonzero(factor != 1)[: most_again(len(reading.y)) // _PILOTS]
    if not len(changed):
        return reading
    change = np.sqrt(factor[changed])
    again = take(
        reading.known, B[changed], change * beta[changed], change * reach[changed],
        aim.offsets.basis,
    )  # fmt: skip
    again = steep(reading.known, again)
    whole = Reading(reading.known, aim.placed(changed, again, np.arange(len(changed))),
                    reading.phase)  # fmt: skip
    whole.y[pilots] = reading.y[pilots]
    yield from whole.ask(whole.aim.rows(changed, slice(0, _PILOTS)), "again")
    return whole

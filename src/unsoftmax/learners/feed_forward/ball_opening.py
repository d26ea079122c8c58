"""Which norm is before a layer, its eps, and how precise answers are.

n(x) = Px/√(|Px|²/d + eps) is nearly of length √d where x is long beside √eps. So answers to long
tokens do not change with their length, but for x itself where it is added; nor with their mean
after a LayerNorm. Towards long tokens along one direction n(x) = τ n∞, τ = √(v/(v + eps)),
v = |Px|²/d: beyond the last hyperplane answers are affine in τ,

    y∞ − y(s) = β (1 − τ(s)),

and tokens of several lengths tell eps: the ratios of 1 − τ are those of 1/v, but for shares of
1 − τ itself.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.line_cells import AskTokens
from unsoftmax.learners.feed_forward.opening_look import drawn_directions
from unsoftmax.learners.normed_tokens import NormedKind, NormedTokens
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.refusals import Reason

# Length of tokens that any eps up to 1 is nothing beside.
LONG = 2.0**12
# Answers whose format is coarser are refused.
COARSE = 1e-12
# Answers to a token and one twice as long differ by no more, the token's own share apart.
BOUNDED = 1e-5
# So many directions, and their opposites, must not be answered alike.
SEEN = 3
# Answers are alike within so many roundings.
ROUNDED = 64.0
# Lengths along a direction, each in proportion to the one before: eps from 1e6 to 1e-26.
RUNGS, APART = 12, 2.0**-5
# Directions along which eps is read.
DIRECTIONS = 4
# Tokens along each: 1 − τ is a third at the first, and each time half of it.
HALVINGS = 12
# How often the end of the last piece is looked for more closely.
CLOSER = 2
# Answers are off by so many roundings, and on one line within so many of these errors.
ROUNDINGS, COLLINEAR = 2.0, 8.0
# Roundings leave the answers of a piece on a line within so many errors, 3 of 1,536 neurons. Smooth
# layers, whose pieces end where they bend, are beside it by up to COLLINEAR: refused from BENT on.
STRAIGHT, BENT = 1.5, 4.5
# Answers to the shortest tokens that are those to long ones but for this: eps is 0.
UNBENT = 1e-3
# The eps of several directions differ by no more, relatively, beside so many errors.
UNLIKE, EXPLAINED = 1e-6, 30.0
# Mean that tokens get in proportion to their entries: a LayerNorm takes it off.
MEAN = 1.0


@dataclass(frozen=True, slots=True)
class BallOpening:
    """Asks single tokens for the norm before a layer."""

    dim: int
    ask: AskTokens
    rng: np.random.Generator

    def run(self) -> Generator[Round, Answers, NormedTokens]:
        """Find which norm there is, but for the value of eps: up to a factor of about 4.

        Raises
        ------
        ModelMismatch
            Answers are not those of a layer after a norm.
        NotIdentifiable
            eps is 0.
        """
        kind, way, y = yield from self._kind()
        d = self.dim
        frame = np.eye(d)
        if kind.centred:
            first = np.column_stack([np.ones(d), self.rng.standard_normal((d, d - 1))])
            frame = np.linalg.qr(first)[0][:, 1:]
        crude = yield from self._crude(kind, way)
        precision = Precision.of_format([y])
        return NormedTokens(kind, crude, np.inf, 0.0, frame, np.zeros_like(frame), precision)

    def bent(self, normed: NormedTokens) -> Generator[Round, Answers, NormedTokens]:
        """Read eps of a layer that bends at hyperplanes alone.

        Raises
        ------
        ModelMismatch
            Answers are not those of such a layer.
        """
        eps, spread, per_noise = yield from self._eps(normed.kind, normed.frame, normed.eps)
        return self.with_means(replace(normed, eps=eps, eps_spread=spread, eps_per_noise=per_noise))

    def with_means(self, normed: NormedTokens) -> NormedTokens:
        """Return the same norm, tokens with means that it takes off."""
        d, width = normed.frame.shape
        means = MEAN * self.rng.standard_normal(width) / np.sqrt(d)
        return replace(normed, means=normed.kind.centred * np.ones((d, 1)) * means)

    def _kind(self) -> Generator[Round, Answers, tuple[NormedKind, Array, Array]]:
        """Tell from long tokens whether x is added, and whether its mean is taken off.

        Return the direction that is answered most unlike others, and all answers, too.
        """
        d = self.dim
        u, *others = self._unit(np.eye(d), 1 + SEEN)
        both = [sign * other for other in others for sign in (-1.0, 1.0)]
        x = LONG * np.array([u, 2 * u, -u, u + np.ones(d) / np.sqrt(d), *both])
        y = yield from self.ask(x)
        if y.shape[1] < 2:
            raise Reason.ONE_NUMBER.error(
                instead="no learner here recovers a network after a norm from numbers"
            )
        self._refuse_coarse(y)
        size, step = float(np.max(np.linalg.norm(y, axis=1))), y[1] - y[0]
        residual = y.shape[1] == d and float(step @ u) > LONG / 2
        z = y - x if residual else y
        reach = float(np.max(np.linalg.norm(z - z[0], axis=1)))
        noise = ROUNDED * UNIT * size
        if np.linalg.norm(z[1] - z[0]) > BOUNDED * reach + noise:
            raise Reason.GROWS_AFTER_NO_NORM.error()
        if reach <= noise:
            raise Reason.NO_NEURON_SEEN.error()
        centred = bool(np.linalg.norm(z[3] - z[0]) <= BOUNDED * reach + noise)
        unlike = np.linalg.norm(z - np.median(z, axis=0), axis=1)
        way = x[int(np.argmax(unlike))] / LONG
        return NormedKind(residual, centred), way - centred * way.mean(), y

    def _refuse_coarse(self, y: Array) -> None:
        coarse = Precision.of_format([y]).share_of(1.0)
        if coarse > COARSE:
            raise Reason.TOO_COARSE_FOR_NEURONS.error(
                what="The answers are",
                noise=coarse,
                purpose="for a layer after a norm",
                most=COARSE,
            )

    def _layer(self, kind: NormedKind, x: Array) -> Generator[Round, Answers, Array]:
        y = yield from self.ask(x)
        return y - x if kind.residual else y

    def _crude(self, kind: NormedKind, way: Array) -> Generator[Round, Answers, float]:
        """Return eps but for a factor: where answers are half way to those of long tokens."""
        lengths = LONG / 16 * APART ** np.arange(RUNGS)
        u = way[None] / np.linalg.norm(way)
        z = yield from self._layer(kind, np.append(lengths, 0.0)[:, None] * u)
        share = np.linalg.norm(z[:-1] - z[-1], axis=1) / np.linalg.norm(z[0] - z[-1])
        if share[-1] > UNBENT:
            raise Reason.EPS_IS_0.error({"c": z[-1]})
        at = int(np.argmin(np.abs(np.log(np.maximum(share, TINY)) - np.log(0.5))))
        fine = lengths[at] * 4.0 ** np.arange(-2.0, 3.0)
        near = yield from self._layer(kind, fine[:, None] * u)
        share = np.linalg.norm(near - z[-1], axis=1) / np.linalg.norm(z[0] - z[-1])
        length = fine[int(np.argmin(np.abs(share - np.sqrt(0.5))))]
        return float(length**2 / self.dim)

    def _unit(self, frame: Array, count: int) -> Array:
        return np.asarray(drawn_directions(count, frame.shape[1], self.rng) @ frame.T)

    def _eps(
        self, kind: NormedKind, frame: Array, crude: float
    ) -> Generator[Round, Answers, tuple[float, float, float]]:
        """Read eps along several directions, where answers are affine in τ.

        Return by how much they differ, and what errors of answers make of it, too; relatively.
        """
        d = self.dim
        u = self._unit(frame, DIRECTIONS)
        v = crude * 2.0 ** np.arange(0.0, HALVINGS + 1)  # 1 − τ is about eps/2v
        s = np.sqrt(d * v)
        z = yield from self._layer(kind, (u[:, None] * s[:, None]).reshape(-1, d))
        z = z.reshape(DIRECTIONS, HALVINGS + 1, -1)
        noise = ROUNDINGS * UNIT * float(np.max(np.linalg.norm(z, axis=2)))
        noise += ROUNDINGS * UNIT * kind.residual * float(s[-1])
        told = [LastPiece.of(one, v, noise) for one in z]
        for _ in range(CLOSER):
            closer = np.array([t.closer() for t in told])
            y = yield from self._layer(kind, u * np.sqrt(d * closer)[:, None])
            told = [t.with_value(c, one) for t, c, one in zip(told, closer, y, strict=True)]
        fits = np.array([t.eps(crude) for t in told])
        read, weight = fits[:, 0], 1 / fits[:, 1]
        beside = [t.beside for t, error in zip(told, fits[:, 1], strict=True) if np.isfinite(error)]
        bent = float(np.median(beside)) if beside else np.inf
        if bent > BENT:
            raise Reason.BENDS_OR_NOISE.error()
        eps = float(np.average(read, weights=weight**2))
        off = np.abs(read / eps - 1)
        if not np.all(off <= UNLIKE + EXPLAINED * fits[:, 1]):
            raise Reason.EPS_DIFFERS.error(apart=np.max(off))
        # what bends is off alike in all directions
        more = max(1.0, bent / STRAIGHT)
        spread = more * float(np.sqrt(np.average(off**2, weights=weight**2)))
        alone = more * float(1 / np.sqrt(np.sum(weight**2)))
        return eps, spread, alone / (ROUNDINGS * UNIT)


@dataclass(frozen=True, slots=True)
class LastPiece:
    """Answers along a direction, from far out inwards, while they are on one line."""

    v: Array
    """Variances of the tokens (n,), descending."""
    z: Array
    """The farthest token's answer less theirs (n, m)."""
    far: Array
    v_far: float
    outside: float
    """A variance whose token is beyond the piece's end, or the least there is."""
    noise: float

    @classmethod
    def of(cls, answers: Array, v: Array, noise: float) -> LastPiece:
        """Read answers (n + 1, m) to tokens of ascending variances, the last one's far out."""
        far, v_far = answers[-1], float(v[-1])
        z, v = (far - answers[:-1])[::-1], v[:-1][::-1]
        piece = cls(v[:1], z[:1], far, v_far, float(v[-1]) / 2, noise)
        for k in range(1, len(v)):
            if not piece._on(z[k]):
                return replace(piece, outside=float(v[k]))
            piece = replace(piece, v=v[: k + 1], z=z[: k + 1])
        return piece

    def _on(self, z: Array) -> bool:
        """Tell whether an answer is on the line of the others."""
        return bool(self._off(z[None])[0] <= COLLINEAR)

    def _off(self, z: Array) -> Array:
        """Return how far answers (n, m) are beside the line of the last one, in errors."""
        way = self.z[-1]
        size = float(np.linalg.norm(way))
        if size <= COLLINEAR * self.noise:
            return np.zeros(len(z))
        share = z @ way / size**2
        off = np.linalg.norm(z - share[:, None] * way, axis=1)
        return np.asarray(off / (self.noise * (1 + np.abs(share))))

    @property
    def beside(self) -> float:
        """How far the piece's answers are beside one line, in errors."""
        return float(np.max(self._off(self.z)))

    def closer(self) -> float:
        """Return a variance between the piece's end and what is beyond."""
        return float(np.sqrt(self.v[-1] * self.outside))

    def with_value(self, v: float, answer: Array) -> LastPiece:
        """Take one more answer, if it is on the line."""
        z = self.far - answer
        if not self._on(z):
            return replace(self, outside=v)
        return replace(self, v=np.append(self.v, v), z=np.vstack([self.z, z]))

    def eps(self, crude: float) -> tuple[float, float]:
        """Return eps, and what it may be off by, relatively; inf where the piece does not tell it.

        Where all that bends is parallel a piece seems longer than it is: then the answers nearest
        its end do not fit, and are left out.
        """
        way = self.z[-1]
        size = float(np.linalg.norm(way))
        if size <= COLLINEAR * self.noise:
            return crude, np.inf
        along = self.z @ (way / size)
        for n in range(len(self.v), 2, -1):
            eps, error, missed = self._fitted(along[:n], n, crude)
            if missed <= COLLINEAR * self.noise:
                return (eps, error) if np.isfinite(error) else (crude, error)
        return crude, np.inf

    def _fitted(self, c: Array, n: int, crude: float) -> tuple[float, float, float]:
        """Solve c = β (g(v) − g(far)), g = 1 − τ, for β and log eps: Gauss and Newton."""
        log, error = float(np.log(crude)), np.inf
        left = c
        for _ in range(60):
            x = np.exp(log) / np.append(self.v[:n], self.v_far)
            tau = 1 / np.sqrt(1 + x)
            g, slope = x * tau**2 / (1 + tau), x * tau**3 / 2
            g, slope = g[:-1] - g[-1], slope[:-1] - slope[-1]
            beta = float(g @ c) / float(g @ g)
            J = np.column_stack([g, beta * slope])
            size = np.maximum(np.linalg.norm(J, axis=0), TINY)
            U, s, Vt = np.linalg.svd(J / size, full_matrices=False)
            left = c - beta * g
            if not s[-1] > UNIT:
                error = np.inf
                break
            step = float((Vt.T @ ((U.T @ left) / s))[1] / size[1])
            error = self.noise * float(np.linalg.norm(Vt[:, 1] / s)) / float(size[1])
            log += float(np.clip(step, -1.0, 1.0))
            if abs(log - np.log(crude)) > 5.0:
                error = np.inf
                break
            if abs(step) < UNIT:
                break
        return float(np.exp(log)), error, float(np.max(np.abs(left)))

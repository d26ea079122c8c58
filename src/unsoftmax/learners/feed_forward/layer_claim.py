"""What is claimed of a recovered feed-forward layer, and whether fresh answers bear it out.

Every neuron is known to a share e_j of its product b_j a_jᵀ, from the answers' precision and the
equations that it was solved from. Errors of different neurons are independent, so their squares
add up, and ‖F̂(x) − F(x)‖ ≤ constant + slope·‖x‖ with slope² = Σ_j (e_j ‖a_j‖ ‖b_j‖)², times the
number of standard deviations that is certified.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from unsoftmax.arrangement.kinks import aslant, farthest
from unsoftmax.arrangement.strips import FARTHER, Hyperplanes, Strips
from unsoftmax.learners.feed_forward.found_neurons import DEVIATIONS, sides_of
from unsoftmax.learners.feed_forward.opening_look import OpeningLook, drawn_directions
from unsoftmax.models.arrays import TINY
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.probes import Array, Flags, Indices, Round, Singles
from unsoftmax.protocol import Answers, Certificate, Found, Steps
from unsoftmax.refusals import Reason
from unsoftmax.validate.judge import Judgement, Residuals, fresh_answers, judge

# Fresh answers may be missed by ``accepted`` of their size, by ``coarse`` times the answers' own
# relative error, up to ``coarsest``, or by what is certified, up to ``certified``. A missing
# neuron is missed by 1/m. Where neurons add little beside x the first and the last are shares of
# that, the first down to ``least``: roundoffs of x are errors, too.
ACCEPTED = 3e-9
LEAST = 1e-2
COARSE = 1e3
COARSEST = 1e-2
CERTIFIED = 1e-5
# Where answers nearly exceed what is certified, at least so many times what explains them is.
WIDENED = 2.0
# Lengths of half of the fresh tokens, in length scales.
NEAR = (0.3, 1.0, 3.0)
# Range of log10 of the others': dead neurons show far out.
FAR = (0.5, 6.0)
# One in ``beside`` is put as close to a hyperplane as one over 10 to such powers of a length
# scale, by this chance where the neuron is active: z·[z > t] differs from a ReLU there alone.
BESIDE = 3
ACTIVE = 0.85
CLOSE = (2.0, 7.0)
# Beside hyperplanes a strip shows by this share of what is certified, or more. Larger: strips hide
# more, and count for more; smaller: errors of right layers pass for strips, and are asked about.
NOTICED = 0.1
# A neuron's part in what a norm normalises is changed by this share of that, to see what it does.
CHANGED = 1e-6


@dataclass(frozen=True, slots=True)
class LayerClaim:
    """A layer with its errors: standard deviations."""

    model: FeedForward
    look: OpeningLook
    errors: dict[str, float]
    """Of A, b, B and c, of the function's constant and its slope."""
    notes: tuple[str, ...]
    determined: bool
    length_error: float = 0.0
    """Of what a norm behind normalises, relative length: what scale and shift, as they were read,
    make it off by (one standard deviation)."""
    strips: Strips | None = None
    """Where tokens were asked beside hyperplanes."""
    amplified: float = COARSE
    """Fresh answers may be missed by so many times their own relative error."""
    longest: ClassVar[float] = np.inf
    """No token is longer."""
    contrary: ClassVar[str] = (
        "no feed-forward layer of one hidden layer of ReLUs, or neurons are too close to each "
        "other for these answers: another seed may separate them"
    )
    """What a target is that fresh answers refuse."""

    def taken(self, which: Flags) -> Self:
        """Claim some of the ReLUs alone, whose sides may be determined where those of all are not.

        b relu(z) = b z + b relu(−z): a neuron's side may be changed where others make up for b aᵀ.
        """
        model = self.model
        A, b, B = model.A[which], model.b[which], model.B[:, which]
        sides = sides_of(A, B.T, np.zeros((len(B), A.shape[1])), 0.0, alone=True)
        model = FeedForward(A, b, B, model.c, model.residual, model.norm)
        return replace(self, model=model, determined=self.determined or sides.sure)

    def judged(self, x: Array, y: Array, queries: int) -> tuple[Self, Judgement]:
        """Compare answers; return the claim as wide as they need it, too."""
        if not len(x):
            return self, judge(Residuals.of(np.zeros(0)), 0)
        width = np.sqrt(y.shape[1])
        missed, size = y - self.model(x), self.look.size_at(x)[:, None]
        own = DEVIATIONS * self.look.error_at(x)[:, None] / width
        allowed = DEVIATIONS * self._bound(x)[:, None]
        limit = min(self.amplified * self.look.noise, COARSEST)
        part = self._part_of_neurons(x, size)
        certified = np.minimum(allowed / np.maximum(size, TINY), CERTIFIED * part)
        most = np.maximum(np.maximum(ACCEPTED * np.maximum(part, LEAST), limit), certified)
        compared = Residuals.of(missed, own=own, allowed=allowed, size=size, most=most)
        judgement = judge(compared, queries)
        # tokens of random directions show a missing neuron by 1/√d of what it adds at most
        factor = max(WIDENED, np.sqrt(self.model.dim)) * compared.strain
        inside = np.all(np.abs(missed) <= most * size)
        if factor > 1 and inside:
            wider = {name: factor * error for name, error in self.errors.items()}
            claim = replace(self, errors=wider)
            return claim, judge(replace(compared, allowed=factor * compared.allowed), queries)
        return self, judgement

    def _part_of_neurons(self, x: Array, size: Array) -> Array:
        """Return the share of answers that neurons make: x is added whatever they are."""
        if not self.model.residual or self.model.norm is not None:
            return np.ones_like(size)
        added = np.linalg.norm(self.model(x) - x, axis=1, keepdims=True)
        return np.asarray(np.minimum(added / np.maximum(size, TINY), 1.0))

    def measured(self, x: Array, y: Array) -> tuple[Self, tuple[str, ...]]:
        """Return the claim with as wide errors of the norm as the lengths of answers need.

        ‖n‖² = d·v/(v + eps) hardly depends on the layer, so that an answer tells the norm's size
        far better than its direction: it shows a drift that the directions hide.
        """
        norm = self.model.norm
        if norm is None or not len(x):
            return self, ()
        u, n = self.model.sums(x), (y - norm.shift) / norm.scale
        said, seen = norm.normalised(u), np.linalg.norm(n, axis=1)
        off = np.abs(seen / np.linalg.norm(said, axis=1) - 1)
        own = self.look.noise * np.linalg.norm(y - norm.shift, axis=1) / np.sqrt(norm.width)
        own *= np.linalg.norm(n / norm.scale, axis=1) / seen**2
        variance = np.mean((u - norm.centred * u.mean(axis=1, keepdims=True)) ** 2, axis=1)
        sums = self.errors["constant"] + self.errors["slope"] * np.linalg.norm(x, axis=1)
        moved = norm.eps * sums / np.sqrt(norm.width * variance) + self.errors["eps"] / 2
        allowed = self.length_error + own + moved / (variance + norm.eps)
        strain = float(np.max(off / (DEVIATIONS * allowed)))
        if strain <= 1:
            return self, ()
        factor = WIDENED * strain
        wider = {name: factor * self.errors[name] for name in ("scale", "shift", "eps")}
        said_so = (
            "The norms of fresh answers differ from what the LayerNorm or RMSNorm allows by up to "
            f"{off.max():.1e}, as if answers drifted. Errors of scale, shift and eps are taken as "
            f"{factor:.3g} times as large.",
        )
        return replace(self, errors=self.errors | wider), said_so

    def _bound(self, x: Array) -> Array:
        return self.model.moved_at_most(x, self.errors)

    def refuse(self, judgement: Judgement) -> None:
        """Raise if fresh answers contradict the layer."""
        if not judgement.refuses:
            return
        missed, allowed = judgement.worst
        raise Reason.FRESH_ANSWERS_MISSED.error(
            model=f"layer of {len(self.model.b)} neurons",
            missed=missed,
            allowed=allowed,
            contrary=self.contrary,
        )

    def tested(self, checks: int, rng: np.random.Generator) -> Steps[FeedForward]:
        """Ask the hold-out; return the layer and how sure it is, or refuse it."""
        claim = yield from self.beside_hyperplanes(rng)
        return (yield from claim._held_out(checks, rng))

    def beside_hyperplanes(self, rng: np.random.Generator) -> Generator[Round, Answers, Self]:
        """Ask tokens on both sides of all hyperplanes; return the claim as wide as they need it."""
        bends = np.flatnonzero(np.linalg.norm(self.model.A, axis=1) > 0)
        planes = Hyperplanes.of(self.model.A[bends], self.model.b[bends])

        def noticed(x: Array, which: Indices) -> Array:
            return np.asarray(2 * self._unseen(x) / self._steepness(x, bends[which]))

        signs, length = np.zeros(len(bends)), self.look.length
        strips = Strips.beside(planes, signs, noticed, length, self.longest, rng)
        x = strips.tokens
        if not len(x):
            return self
        [y] = yield [Singles(x, phase="beside hyperplanes", purpose="data")]
        suspect = np.linalg.norm(y - self.model(x), axis=1) > self._unseen(x)
        if np.any(suspect):
            far = strips.farther(suspect)
            [z] = yield [Singles(far, phase="beside hyperplanes, farther", purpose="data")]
            x, y = np.vstack([x, far]), np.vstack([y, z])
        claim, judgement = self.judged(x, y, len(x))
        self.refuse(judgement)
        if np.any(suspect):
            missed = np.linalg.norm(y - self.model(x), axis=1)
            beyond = missed / DEVIATIONS - self.look.error_at(x)
            # a strip may be so many times as wide as it showed
            strain = float(np.max(FARTHER * beyond / self._bound(x)))
            wider = {name: max(1.0, strain) * error for name, error in self.errors.items()}
            claim = replace(claim, errors={n: max(e, wider[n]) for n, e in claim.errors.items()})
        return replace(claim, strips=strips)

    @property
    def _slopes(self) -> Array:
        """What neurons change their sum by for each unit of the distance, but of some none."""
        slopes = np.linalg.norm(self.model.A, axis=1) * np.linalg.norm(self.model.B, axis=0)
        return np.asarray(slopes[np.linalg.norm(self.model.A, axis=1) > 0])

    def _unseen(self, x: Array) -> Array:
        """Return what answers to tokens (n, d) are missed by if nothing is noticed (2-norms)."""
        return np.asarray(DEVIATIONS * (self.look.error_at(x) + NOTICED * self._bound(x)))

    def _steepness(self, x: Array, which: Indices) -> Array:
        """Return what a neuron each changes answers by beside its hyperplane, per length, (n,)."""
        model = self.model
        way = model.B[:, which].T * np.linalg.norm(model.A[which], axis=1)[:, None]
        steep, norm = np.linalg.norm(way, axis=1), model.norm
        if norm is None or norm.before:
            return np.asarray(steep)
        u = model.sums(x)
        step = CHANGED * np.linalg.norm(u, axis=1) / steep + TINY
        moved = norm(u + step[:, None] * way) - norm(u)
        return np.asarray(np.linalg.norm(moved, axis=1) / step)

    def _held_out(self, checks: int, rng: np.random.Generator) -> Steps[FeedForward]:
        fresh = self._tokens(checks, rng)
        asked = [Singles(fresh, phase="hold-out", purpose="check")] if checks else []
        answered = yield from fresh_answers(asked)
        y = answered[0][1] if answered else np.zeros((0, 1))
        claim, judgement = self.judged(fresh[:, :], y, checks)
        self.refuse(judgement)
        claim, drifting = claim.measured(fresh[:, :], y)
        certificate = Certificate(claim.bounds(), (*claim._assumed(checks), *drifting))
        return Found(self.model, certificate, judgement.evidence, self.notes)

    def bounds(self) -> dict[str, float]:
        """Return what is certified."""
        errors = {name: DEVIATIONS * e for name, e in self.errors.items()}
        strips = (0.0, 0.0) if self.strips is None else self.strips.hide(self._slopes)
        # tokens of random directions show a neuron by 1/√d, so rounding hides √d times its own size
        hidden = DEVIATIONS * self.look.noise * np.sqrt(self.model.dim)
        rounded = hidden * np.array([self.look.size, self.look.steepness])
        for name, *more in zip(("constant", "slope"), strips, rounded, strict=True):
            errors[name] += sum(more)
        return errors if self.determined else errors | self._undetermined(errors)

    def _undetermined(self, errors: Mapping[str, float]) -> dict[str, float]:
        """Return bounds where a linear part is left, or sides are open.

        Behind a norm x may be any share of that part: the sum is known up to a factor, by whose
        square eps goes. What eps is off by beside the model's sum is part of its constant then:
        ‖n(u)‖ moves by √(width·δ) over the deviation at most, and by √width·δ/√eps.
        """
        # a neuron that is always on is a part of c as well
        free = dict.fromkeys(("A", "b", "B", "c"), float("inf"))
        norm = self.model.norm
        if norm is None:
            return free
        off = np.sqrt(errors["eps"])
        moved = np.sqrt(norm.width) * off * min(1.0, off / max(np.sqrt(norm.eps), TINY))
        return free | {"eps": float("inf"), "constant": errors["constant"] + float(moved)}

    def _tokens(self, count: int, rng: np.random.Generator) -> Array:
        """Return tokens of many lengths."""
        x = drawn_directions(count, self.model.dim, rng)
        n = np.arange(count)
        near = np.array(NEAR)[n % len(NEAR)]
        far = 10.0 ** rng.uniform(*FAR, count)
        x = np.asarray(self.look.length * np.where(n % 2, far, near)[:, None] * x)
        return self._moved_beside(x, n % BESIDE == 0, rng)

    def _moved_beside(self, x: Array, which: Flags, rng: np.random.Generator) -> Array:
        """Move some tokens beside hyperplanes, where a function that is no ReLU may jump."""
        A, b = self.model.A, self.model.b
        size = np.linalg.norm(A, axis=1)
        if not np.any(size > 0):
            return x
        count = int(np.sum(which))
        j = rng.choice(np.flatnonzero(size > 0), count)
        a = A[j] / size[j, None]
        way = np.where(rng.random(count) < ACTIVE, 1.0, -1.0)
        way *= self.look.length * 10.0 ** -rng.uniform(*CLOSE, count)
        moved = x.copy()
        z = np.sum(a * x[which], axis=1) + b[j] / size[j]
        moved[which] += (way - z)[:, None] * a
        return moved

    def _assumed(self, checks: int) -> tuple[str, ...]:
        look = self.look
        bound, *missing = self.within()
        return (
            "Errors of A, b and B are for neurons scaled so that the row of A has the norm of the "
            "column of B, in the order of the model. Parallel neurons count as their sum.",
            bound,
            "Only single tokens were asked: about sequences of several tokens (attention) nothing "
            "is known.",
            "The target is one hidden layer of ReLUs (continuous), and all its neurons were found: "
            "the hold-out tests this but cannot prove it.",
            *missing,
            *self._of_free_sum(),
            *(() if self.strips is None else self.strips.said()),
            "Neurons that add less than constant and slope allow may be missing. The bounds of A, "
            "b and B are for those found.",
            f"Answers are off by {look.noise:.1e} of their size (one standard deviation), from "
            f"second differences; {DEVIATIONS:g} deviations are taken.",
            *look.why,
            *(() if checks else ("Nothing was checked.",)),
        )

    def _of_free_sum(self) -> tuple[str, ...]:
        """Say what has no bound behind a norm where a linear part is left."""
        if self.determined or self.model.norm is None:
            return ()
        return (
            "How much of x is in the sum before the norm is not determined: the sum is known up to "
            "a factor of either sign, by whose square eps goes, so c and eps have no bound, and "
            "the bound of scale is for scales that are mostly positive (RMSNorm: all). constant "
            "and slope are for the factor of this model, and count what eps is off by then.",
        )

    def within(self) -> tuple[str, ...]:
        """Say where the function is bounded, and which neurons may be missing."""
        longest = self._predicted_to
        nearer = longest / aslant(self.model.dim)
        return (
            "constant, slope: ``‖F̂(x) − F(x)‖₂`` ≤ constant + slope·‖x‖ for every x of norm up to "
            f"{nearer:.0e}.",
            f"Tokens along a line, up to a norm of {longest:.0e}, are answered as this layer "
            f"predicts. A neuron whose hyperplane is farther from 0 than {nearer:.0e} may be "
            "missing: it may meet the line farther out.",
        )

    @property
    def _predicted_to(self) -> float:
        """Up to which norm tokens along a line are predicted: the opening's, and the search's."""
        look, x = self.look, self.look.tokens
        missed = np.linalg.norm(look.answers - self.model(x), axis=1)
        off = missed > DEVIATIONS * (look.error_at(x) + self._bound(x))
        lengths = np.linalg.norm(x, axis=1)
        if np.any(off):
            return float(np.max(lengths[lengths < np.min(lengths[off])], initial=0.0))
        searched = look.length * farthest(look.noise) if self.model.norm is None else 0.0
        return max(float(np.max(lengths)), searched)

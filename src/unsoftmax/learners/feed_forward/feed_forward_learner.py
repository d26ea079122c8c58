"""A whole feed-forward layer from vector answers: about six queries for each neuron.

Target F(x) = B relu(A x + b) + c (+ x), A (m, d), B (d_out, m), asked at single tokens; neither m
nor the residual need be known. Beyond arXiv 2601.16873, whose A_FFN takes numbers. 2md + d_out
parameters take at least 2m queries where d_out is d; this takes about 2.1m + 1.5m + 2.1m + 61.

The mathematics: every neuron is a hyperplane, and across it the Jacobian jumps by B_j a_jᵀ.

1. The length scale and the precision of the answers (`opening_look`).
2. Along one line F is piecewise affine with a kink at every hyperplane; the slope's jump there is
   B_j (a_j·x₁) (`arrangement.kinks`). 2.1m queries.
3. Steps from places on the line give differences of Jacobians, Σ B_j a_jᵀ over the kinks between
   two places: less than d_out unknown rows, a linear system (`line_cells`). m + 2d queries.
4. Each hyperplane is crossed once more where it is far from others, which gives B_j to many more
   digits; with these step 3 is solved again, and gives A, and b (`hyperplane_spots`). 2.1m queries.
5. On which side each neuron is active, and whether x is added, is in the Jacobian before the first
   kink (`affine_part`). No queries.
6. Coarse answers, such as float32's: all parameters are fitted once more, to tokens that are far
   apart (`fitted_layer`). About 30m queries.
7. The hold-out confirms or refuses.

Smooth activations, GELU to SwiGLU, have no hyperplanes: where the opening finds that answers bend
everywhere, or an activation is given, Jacobians at many points tell the neurons (`smooth_layer`),
also after a norm, and behind one whose eps shows (`smooth_behind_norm`); where it does not, layers
that are ReLUs from far are found as such first (`smooth_from_far`).

Behind a norm answers tell directions alone: `behind_norm` has the same steps without sizes. After a
norm no token is long: `after_norm` has chords in the place of the line. Which of these there is, if
any, the first line's answers show: plain layers' grow with tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from unsoftmax.arrangement.kinks import KinkSearch, TooManyBreakpoints
from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.compose import as_planned
from unsoftmax.learners.feed_forward.after_norm import AfterNorm
from unsoftmax.learners.feed_forward.ball_opening import BallOpening
from unsoftmax.learners.feed_forward.behind_norm import SearchBehindNorm
from unsoftmax.learners.feed_forward.fitted_layer import LayerFitting
from unsoftmax.learners.feed_forward.found_neurons import FoundNeurons
from unsoftmax.learners.feed_forward.hyperplane_spots import HyperplaneSpots
from unsoftmax.learners.feed_forward.layer_claim import LayerClaim
from unsoftmax.learners.feed_forward.line_cells import LineCells
from unsoftmax.learners.feed_forward.norm_opening import NormLook, NormOpening
from unsoftmax.learners.feed_forward.opening_look import (
    OpeningLook,
    TargetOpening,
    fading_norm,
    norms_of,
)
from unsoftmax.learners.feed_forward.search_steps import (
    asks,
    checked_spots,
    drawn_line,
    neurons_of,
    notes_of,
)
from unsoftmax.learners.feed_forward.smooth_behind_norm import COARSEST, SmoothBehindNorm
from unsoftmax.learners.feed_forward.smooth_from_far import SmoothFromFar
from unsoftmax.learners.feed_forward.smooth_layer import (
    COARSE_STEPS,
    STEPS,
    SmoothSearch,
    bending_length,
)
from unsoftmax.learners.normed_tokens import NormedTokens
from unsoftmax.learners.settings import Configured, flag, one_of, whole_number
from unsoftmax.models.arrays import TINY
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers, Outputs, Plan, Steps
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.theory.costs import Cost

FORMULAS: Mapping[str | None, str] = {
    None: "4.22m + (d+1)·(1.18m/d_out + 2) + 61 for m neurons and d_out numbers per answer, 5.7m "
    "where d_out is d",
    "pre": "6.4m + 9d + 250 for m neurons, 9 to 10m where m is 4d",
    "post": "7m + (d+1)·(1.2m/d + 2) + 1.1d + 175 for m neurons, 9m where m is 4d",
}
"""Counts by where a norm is."""
SMOOTH_FORMULA = "10.7m + 3.3d + 80 if its activation is smooth, 21.5m + 3.3d + 80 if it is gated"
SMOOTH_BEHIND = (
    "13.3m + 4.5d + 180 if its activation is smooth, 28m + 4.5d + 200 if it is gated, "
    "12m + 4d + 200 if eps does not show"
)

# Before a refusal so many tokens of the opening are asked again, whose answers changed if they
# differ by more than this, of their size, which sums in another order do not reach, and than so
# many times the noise that is known of.
ASKED_AGAIN = 4
ALIKE, ALIKE_NOISE = 1e-13, 10.0
# Queries of an attempt for each neuron, at most, beside those of the cells: the line takes 3 and
# the crossings 3.
PER_NEURON = 16


# A target that shows more than so many kinks for each dimension, and so many more, is refused.
NEURONS_PER_DIM, NEURONS = 16, 1024
# Where answers are bounded and no activation was given, of so many for each dimension: most such
# targets have a norm, and are refused for less.
SIGMOIDS_PER_DIM = 6
# Lines before a target is refused; from the second on kinks are looked at once more, which tells
# neurons apart whose columns of B are parallel. Limit on the rounds of each; 50 are usual.
ATTEMPTS, ROUNDS = 3, 1000
# How a search for ReLUs refuses layers that bend elsewhere than at hyperplanes: those that bend so
# little beside x, or beside a linear part, that the opening does not see how.
BENDS = tuple(
    reason.name
    for reason in (
        Reason.LAYER_IS_SMOOTH,
        Reason.EPS_DIFFERS,
        Reason.BENDS_OR_NOISE,
        Reason.ANSWERS_JUMP,
        Reason.BENDS_EVERYWHERE,
        Reason.TOKENS_SHOW_OTHER_NEURONS,
        Reason.GROWS_AFTER_NO_NORM,
        Reason.NEITHER_NORM_FITS,
    )
)
PLACES = {"pre": "after a norm", "post": "behind a norm", None: "without a norm"}
# Answers whose format is coarser take longer steps.
COARSE = 1e-10
# Activations that are recovered; "identity" is none.
KNOWN = tuple(name for name in ACTIVATIONS if name != "identity")


class Way(NamedTuple):
    """What a target was taken for, and why it is not that."""

    neurons: str
    place: str
    refusal: str

    def __str__(self) -> str:
        taken = " ".join(filter(None, (self.neurons or "layers", self.place)))
        return f"{taken[0].upper()}{taken[1:]}: {self.refusal}"


class NoLayerFits(ModelMismatch):
    """A target that was taken for several layers, and is none of them."""

    ways: tuple[Way, ...] = ()


def none_fits(reason: Reason, ways: Iterable[Way]) -> NoLayerFits:
    """Return the refusal that says each way once, with what contradicts it."""
    every = tuple(dict.fromkeys(ways))
    error = reason.error(kind=NoLayerFits, ways=" ".join(map(str, every)))
    assert isinstance(error, NoLayerFits)
    error.ways = every
    return error


def neither(bent: RefusalError, smooth: RefusalError) -> NoLayerFits:
    """Say why a target is neither a layer of ReLUs nor one of smooth neurons."""
    ways = *tried(bent, "ReLUs"), *tried(smooth, "smooth neurons")
    return none_fits(Reason.NEITHER_BENT_NOR_SMOOTH, ways)


def tried(error: RefusalError, neurons: str = "", place: str = "") -> list[Way]:
    """Return the ways that a refusal is about; where it does not say of what, of these."""
    ways = error.ways if isinstance(error, NoLayerFits) else [Way("", "", str(error))]
    return [Way(one.neurons or neurons, one.place or place, one.refusal) for one in ways]


@dataclass(frozen=True, slots=True)
class FeedForwardLearner(Configured):
    """Learn a feed-forward layer, the number of its neurons unknown, from its vector answers.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    norm : str, optional
        "post": x is added, and a LayerNorm or RMSNorm is behind; which one, and all of it, is
        found, from ``dim`` = 5 on. "pre": such a norm is before the layer; which one, eps, and
        whether x is added, is found. None: whether there is a norm, and where, is found.
    seed : int
        Decides the line and the hold-out: the same seed asks the same.
    activation : str, optional
        "relu", "gelu" (by the error function), "gelu_tanh", "silu", "quick_gelu", "softplus",
        "sigmoid" or "tanh", of neurons or of their gates. None: which one is found.
    gated : bool, optional
        Whether neurons have gates, φ(G x + g) ⊙ (A x + b). None: whether they have is found.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: about 4.22m + (d + 1)(1.18m/d_out + 2) + 61 for m neurons and d_out numbers per
    answer, 5.7m if d_out is d; two to four times that if another line is needed; 30m to 60m for
    float32 targets, of which up to about 32 neurons are recovered. Behind a norm about
    7m + (d + 1)(1.2m/d + 2) + 1.1d + 175, 9m at m = 4d, after one about 6.4m + 9d + 250, 9 to 10m
    at m = 4d, and float64 answers only. With ``norm=None`` a layer with a norm takes 31 more, or
    up to 200 if the first guess is wrong; a plain one none. A smooth layer takes about
    10.7m + 3.3d + 80, a gated one 21.5m + 3.3d + 80 if d_out is d, after a norm up to 100 more,
    behind one 13.3m + 4.5d + 180, gated 28m + 4.5d + 200; more where m is more than
    4.9(d_out − 1), or 2.4(d_out − 1) with gates, and where eps is below 3e-7 of the variance of
    what is normalised.
    *Determined up to* the order of neurons and a positive factor between row of A and column of B;
    both are returned with equal norms. Neurons on one hyperplane count as one. If they are active
    on opposite sides, or x is a sum of neurons, a linear part remains that takes more neurons, and
    a note says so. *Certificate*: of A, b, B, c, and ``‖F̂(x) − F(x)‖₂`` ≤ constant + slope·‖x‖;
    of a norm its scale, shift and eps. Behind a LayerNorm the mean of B and c over the outputs is
    invisible, and 0. Of a norm before, scale and shift are part of A and b, and x is its n(x),
    shorter than √d: neurons that no such token switches are a linear part or nothing, and one that
    hardly any switches may be missing, as the certificate says. Of smooth layers scale and sides
    are determined, too; free are the order, the sign of a tanh, and of gated neurons a factor
    between row of A and column of B. z σ(1.702 z) is a SiLU and a sigmoid a tanh of another scale:
    a layer that was not given a name has the second one. Where answers are bounded (sigmoid,
    tanh) more than 6d neurons take their ``activation``. All neurons must have one activation,
    and rows be fewer than 0.8(d − 1)(d_out − 1); after a norm 0.8(d/2 − 1)(d_out − 1), from about
    d = 8 on. Behind a norm eps alone tells how long sums are: from about 2e-9 of their variance
    down layers of GELU, SiLU and softplus without gates are recovered, for about 12m + 4d + 200
    queries, and others refused. Float32 answers take their ``activation``, no norm, and twice
    the queries. Their bound holds up to the length that ``.assumes`` names; after a norm for all
    tokens. *Tokens* are up to 10⁶ times as long as the distance of a typical hyperplane.
    *Source*: beyond arXiv 2601.16873; Section 4.1's A_FFN for vectors.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> A, b, B = rng.standard_normal((9, 4)), rng.standard_normal(9), rng.standard_normal((4, 9))
    >>> target = us.FeedForward(A, b, B, np.ones(4), residual=True)
    >>> recovery = us.learn(target, us.learners.FeedForwardLearner(4))
    >>> recovery.model
    FeedForward(d=4, m=9, residual)
    >>> bool(us.equivalent(recovery.model, target))
    True
    """

    dim: int
    norm: str | None = None
    seed: int = 0
    activation: str | None = field(default=None, kw_only=True)
    gated: bool | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 17
    far: ClassVar[str] = "beyond every bend of the layer"
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        if self.norm == "post":
            whole_number("dim", self.dim, 5)
        if self.norm not in FORMULAS:
            raise ValueError(
                f"norm must be one of {', '.join(map(repr, FORMULAS))}; it is {self.norm!r}. "
                "None finds out."
            )
        if self.activation is not None:
            one_of("activation", self.activation, KNOWN)
        if self.gated is not None:
            flag("gated", self.gated)
        if self.gated and self.activation == "relu":
            raise ValueError("Layers gated by ReLUs are not recovered.")

    @property
    def _most(self) -> int:
        return NEURONS_PER_DIM * int(self.dim) + NEURONS

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the neurons."""
        m, d = self._most, int(self.dim)
        cost = ATTEMPTS * Cost.of(m * (PER_NEURON + 2 * d) + 16 * d + 1024, rounds=ROUNDS)
        smooth = SMOOTH_BEHIND if self.norm == "post" else SMOOTH_FORMULA
        smooth = "" if self.activation == "relu" else smooth
        bent = "" if self._smooth else FORMULAS[self.norm]
        formula = (
            f"about {'; '.join(filter(None, (bent, smooth)))}; refused beyond {cost.at_most:,}"
        )
        return cost.plan(formula, 1, known=False)

    def steps(self, checks: int) -> Steps[FeedForward]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        excess = (
            f"the target has more neurons than {self._most}, or is no feed-forward layer of one "
            "hidden layer"
        )
        contrary = "no feed-forward layer of one hidden layer"
        return (yield from as_planned(self._steps(checks), self.plan(), excess, contrary))

    def _steps(self, checks: int) -> Steps[FeedForward]:
        rng = np.random.default_rng(self.seed)
        if self.norm is not None:
            return (yield from self._with_norm(self.norm, checks, rng))
        opening = TargetOpening(int(self.dim), asks("opening"), rng)
        look = yield from opening.line()
        if self._smooth:
            return (yield from self._smoothly(look, checks, rng))
        try:
            return (yield from self._bent(opening, look, checks, rng))
        except ModelMismatch as error:
            smooth = yield from self._bends_everywhere(opening, look, error)
            if self.activation or not smooth:
                raise
            try:
                return (yield from self._smoothly(look, checks, rng))
            except ModelMismatch as other:
                if error.reason == Reason.LAYER_IS_SMOOTH.name:
                    raise
                # a norm bends everywhere, too: either may be meant
                raise neither(error, other) from other

    @property
    def _smooth(self) -> bool:
        """Whether the activation is said to be smooth."""
        return self.activation not in (None, "relu") or bool(self.gated)

    def _bends_everywhere(
        self, opening: TargetOpening, look: OpeningLook, error: ModelMismatch
    ) -> Generator[Round, Answers, bool]:
        """Tell whether a refused target may be smooth.

        Answers of sigmoids are bounded, as those of a layer with a norm, which is tried first.
        """
        if norms_of(look):
            try:
                yield from opening.measured(look)
            except ModelMismatch as other:
                error = other
        if error.reason == Reason.LAYER_IS_SMOOTH.name:
            return True
        # what is little beside x shows in fine answers alone
        return look.rounding <= COARSE and error.reason in BENDS

    def _smoothly(
        self, look: OpeningLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        """Recover a smooth layer, plain or with a norm, as far answers tell."""
        norms, faded = norms_of(look), fading_norm(look)
        searches = {} if faded else {"without a norm": self._smooth_plain}
        if "pre" in norms:
            searches["after a norm"] = self._smooth_after_norm
        if "post" in norms and self._smooth:  # otherwise it was tried as one of ReLUs
            behind = {"behind a norm": self._smooth_behind}
            searches = behind | searches if norms[0] == "post" else searches | behind
        refused: dict[str, RefusalError] = {}
        for where, search in searches.items():
            try:
                return (yield from search(look, checks, rng))
            except ModelMismatch as error:
                refused[where] = error
        first = next(iter(refused.values()))
        yield from self._unchanged(look, first)
        if faded:
            refused["without a norm"] = Reason.FADES_AS_WITH_A_NORM.error()
        if len(refused) > 1:
            ways = [way for place, error in refused.items() for way in tried(error, place=place)]
            raise none_fits(Reason.SMOOTH_NEITHER_WAY, ways)
        raise first

    def _smooth_behind(
        self, look: OpeningLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        return (yield from self._with_norm("post", checks, rng))

    def _smooth_plain(
        self, look: OpeningLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        d = int(self.dim)
        bounded = self.activation is None and bool(norms_of(look))
        most = SIGMOIDS_PER_DIM * d if bounded else self._most
        unit = bending_length(look) / np.sqrt(d)
        steps = COARSE_STEPS if look.rounding > COARSE else STEPS
        search = SmoothSearch(d, unit, most, self.activation, self.gated, rng, differences=steps)
        return (yield from search.steps(checks))

    def _smooth_after_norm(
        self, look: OpeningLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        opening = BallOpening(int(self.dim), asks("opening"), rng)
        normed = yield from opening.run()
        return (yield from self._after_norm(opening.with_means(normed), checks, rng))

    def _after_norm(
        self, normed: NormedTokens, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        """Recover a smooth layer after a norm whose eps is known but for a factor."""
        search = AfterNorm(normed, self._most, rng, ATTEMPTS)
        return (yield from search.smoothly(self.activation, self.gated, checks))

    def _bent(
        self, opening: TargetOpening, look: OpeningLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        """Recover a layer of ReLUs, plain or with a norm where answers say that there is one."""
        first, *others = (*norms_of(look), None)
        if first is None:
            look = yield from opening.measured(look)
            return (yield from self._from(look, checks, rng))
        try:
            return (yield from self._with_norm(first, checks, rng))
        except ModelMismatch as error:
            if others == [None]:
                raise
            try:
                return (yield from self._with_norm(str(others[0]), checks, rng))
            except ModelMismatch as other:
                ways = [*tried(error, place=PLACES[first]), *tried(other, place=PLACES[others[0]])]
                raise none_fits(Reason.NEITHER_NORM_FITS, ways) from error

    def _with_norm(self, norm: str, checks: int, rng: np.random.Generator) -> Steps[FeedForward]:
        """Recover a layer with a norm there."""
        d, ask = int(self.dim), asks("opening")
        if norm == "pre":
            return (yield from self._with_norm_before(checks, rng))
        look = yield from NormOpening(d, ask, rng).run()
        if not self._smooth and not look.smooth:
            return (yield from self._from(look, checks, rng))
        try:
            return (yield from self._smooth_behind_norm(look, checks, rng))
        except ModelMismatch as error:
            yield from self._unchanged(look, error)
            raise

    def _smooth_behind_norm(
        self, look: NormLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        bent = Reason.LAYER_IS_SMOOTH.error(where="Behind the norm the")
        if self.activation == "relu":
            raise bent
        d, most = int(self.dim), self._most
        near = SmoothBehindNorm(d, look, most, self.activation, self.gated, rng)
        far = SmoothFromFar(d, look, most, self.activation, rng)
        from_far = near.lengths_error > COARSEST and far.has_kinks and not self.gated
        try:
            return (yield from (far if from_far else near).steps(checks))
        except ModelMismatch as other:
            if self._smooth:
                raise
            raise neither(bent, other) from other

    def _with_norm_before(self, checks: int, rng: np.random.Generator) -> Steps[FeedForward]:
        opening = BallOpening(int(self.dim), asks("opening"), rng)
        normed = yield from opening.run()
        if self._smooth:
            return (yield from self._after_norm(opening.with_means(normed), checks, rng))
        try:
            exact = yield from opening.bent(normed)
            return (yield from AfterNorm(exact, self._most, rng, ATTEMPTS).steps(checks))
        except ModelMismatch as error:
            if self.norm is None or self.activation or error.reason not in BENDS:
                raise
            try:
                return (yield from self._after_norm(opening.with_means(normed), checks, rng))
            except ModelMismatch as other:
                raise neither(error, other) from error

    def _from(
        self, look: OpeningLook | NormLook, checks: int, rng: np.random.Generator
    ) -> Steps[FeedForward]:
        """Recover a layer whose opening is known."""
        try:
            claim = yield from self._attempted(look, rng)
            return (yield from claim.tested(checks, rng))
        except ModelMismatch as error:
            yield from self._unchanged(look, error)
            raise

    def _unchanged(
        self, look: OpeningLook | NormLook, error: RefusalError
    ) -> Generator[Round, Answers, None]:
        """Ask tokens of the opening again; refuse otherwise if their answers changed."""
        seen = look if isinstance(look, OpeningLook) else look.look
        few = slice(None, None, -(-len(seen.tokens) // ASKED_AGAIN))
        y = yield from asks("asked again")(seen.tokens[few])
        apart = np.linalg.norm(y - seen.answers[few], axis=1)
        size = np.linalg.norm(seen.answers[few], axis=1)
        most = float(np.max(apart / np.maximum(size, TINY)))
        if most > max(ALIKE, ALIKE_NOISE * look.noise):
            raise Reason.OPENING_CHANGED.error(changed=most, refusal=error) from error

    def _attempted(
        self, look: OpeningLook | NormLook, rng: np.random.Generator
    ) -> Generator[Round, Answers, LayerClaim]:
        """Search along one line after another."""
        for again in range(1, ATTEMPTS + 1):
            last = again == ATTEMPTS
            try:
                return (yield from self._searched(look, again > 1, rng))
            except TooManyBreakpoints as error:
                if last or error.everywhere:
                    raise
            except ModelMismatch:
                if last:
                    raise
        raise AssertionError("there is at least one attempt")

    def _searched(
        self, look: OpeningLook | NormLook, thorough: bool, rng: np.random.Generator
    ) -> Generator[Round, Answers, LayerClaim]:
        """Search once."""
        if isinstance(look, OpeningLook):
            return (yield from self._searched_plain(look, thorough, rng))
        search = SearchBehindNorm(int(self.dim), look, self._most, thorough, rng)
        return (yield from search.run())

    def _searched_plain(
        self, look: OpeningLook, thorough: bool, rng: np.random.Generator
    ) -> Generator[Round, Answers, LayerClaim]:
        """Find all neurons along a line; read them again; compare what was asked beside it."""
        found, asked = yield from self._found(look, thorough, rng)
        found = found.clear_of_errors()
        sides = found.sides()
        x, y = (np.vstack([seen, more]) for seen, more in zip(asked, _near(look), strict=True))
        plain = found.layer(sides, np.zeros(y.shape[1]))
        weight = 1 / look.size_at(x) ** 2
        c = weight @ (y - plain(x)) / np.sum(weight)
        errors = found.errors(0.0, sides.dropped)
        along = np.sqrt(weight @ np.sum(x * x, axis=1) / np.sum(weight))
        c_error = errors["constant"] + errors["slope"] * along + look.noise * look.size
        model, errors = found.layer(sides, c), found.errors(c_error, sides.dropped)
        fitting = LayerFitting(look, asks("fit"), rng)
        if sides.linear is None and fitting.wanted(model):
            model, errors, kept = yield from fitting.run(model, found, (x, y))
            found = found.taken(kept)
            sides = replace(sides, back=sides.back[kept], whole=sides.whole[np.append(kept, True)])
        claim = LayerClaim(
            model, look, errors, notes_of(sides), sides.sure and sides.linear is None
        )
        claim, judgement = claim.judged(x, y, len(x))
        claim.refuse(judgement)
        return claim

    def _found(
        self, look: OpeningLook, thorough: bool, rng: np.random.Generator
    ) -> Generator[Round, Answers, tuple[FoundNeurons, tuple[Array, Array]]]:
        d = int(self.dim)
        basis, x0 = drawn_line(d, look.length, rng)

        def ask_line(t: Array) -> Generator[Round, Answers, Array]:
            return (yield from asks("line")(x0 + t[:, None] * basis[0]))

        search = KinkSearch(ask_line, look.length, look.noise, self._most, thorough, look.steepness)
        kinks = yield from search.run()
        cells = LineCells(asks("cells"), kinks, basis, x0, look.length, search.own_error)
        readings = yield from cells.run()
        columns, column_error, _ = kinks.columns()
        met = x0 + kinks.t[:, None] * basis[0]
        found = readings.neurons(columns, column_error, basis, met)
        if not len(columns):
            return found, (x0 + readings.places[:, None] * basis[0], readings.values)
        rows, bias = found.rows, found.bias
        crossing = HyperplaneSpots(asks("crossings"), rows, bias, look.length, look.error_at, rng)
        spots = yield from crossing.run()
        spots = checked_spots(spots, columns, column_error, look)
        lengths = np.hypot(np.linalg.norm(x0), readings.places)
        readings = readings.with_rounded_tokens(rows, lengths)
        readings = yield from cells.settled(readings, *spots.columns)
        return neurons_of(readings, spots, basis), spots.asked


def _near(look: OpeningLook) -> tuple[Array, Array]:
    """Return what the opening asked, up to the length scale."""
    near = np.linalg.norm(look.tokens, axis=1) <= look.length
    return look.tokens[near], look.answers[near]

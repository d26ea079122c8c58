"""Appendix C: heads in mutually orthogonal subspaces, one by one, also where those are unknown.

Recovers H, W_h, v_h of f(X) = Σ_h softmax_i(x_i·W_h x_N)ᵀ(X v_h) with W_h = P_h W_h P_h and v_h
in U_h (Assumption C.1), P_h the projection on U_h, d_h its dimension, from exact values:

    Σ v_h      single tokens, d queries (Σ d_h in given subspaces): v_h is its part in U_h
    U_h        given, or from Hessians (the conjecture, `subspace_search`)
    W_h        Theorem 4.1 in each U_h, where head h answers alone (Proposition C.2,
               `restricted_head`): Σ d_h² queries
    hold-out   fresh sequences over all of R^d (below)

What is found are the spans of v_h and W_h's columns; W_h's rows may read what is in none of them,
which is asked as well: Σ d_h(d_h + d − Σ d_h) queries in place of Σ d_h².

Determined up to the order of the heads. Heads with W = 0 have no subspace to be found: together
they are one head, as Proposition 7.1 says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unsoftmax.learners.compose import Asking, named, restricted, together
from unsoftmax.learners.orthogonal_heads import subspace_search
from unsoftmax.learners.orthogonal_heads.restricted_head import (
    AGAIN_PER_TOKEN,
    ROUNDS_OF_COMPLEMENT,
    Complement,
    HeadSubspace,
    SubspaceHead,
)
from unsoftmax.learners.settings import Configured, as_json, one_of, whole_number
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
)
from unsoftmax.measure import logit_grid
from unsoftmax.measure.hessians import PILOT_QUERIES
from unsoftmax.measure.precision import KAPPA, Precision, why
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import MultiHead
from unsoftmax.models.attention import largest_mean_shift
from unsoftmax.probes import Array, Embedded, Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan, Steps, as_array
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.theory.information import score_gradient
from unsoftmax.validate import long_sequences
from unsoftmax.validate.head_comparison import UNBOUNDED, score_shift, sum_rounding
from unsoftmax.validate.judge import Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import by_length

# -- The hold-out of heads in orthogonal subspaces: fresh sequences over all of R^d.
#
# The learner asks within one subspace at a time; only sequences that leave the subspaces show that
# the heads add up and that there is nothing between them. The opening is a single head's
# (`learners.single_head.first_round`); the closing has three to six tokens, at sizes that make the
# logits of one head after the other moderate. Every sequence counts. A residual may be what the
# heads' bounds allow, but exact answers must be missed by no more than a right model misses them.
# Where coarse answers allow more, at a head's own logits, than what that head contributes, they
# confirm nothing of it. Beside them are the long sequences of `unsoftmax.validate.long_sequences`.


# Tokens of a sequence, in turn: three at least, for two do not tell a head from its opposite.
LENGTHS = (3, 4, 5, 6)
# Root mean square of the logits of the head that a sequence is for, in turn: small ones show v_h,
# moderate ones W_h, larger ones what bounds on W_h leave open.
LOGITS = (2.0, 0.5, 6.0)
# Every other time offsets are this much longer and query tokens shorter, which leaves the logits
# of a head without a query bias what they are, and shows one that has a bias.
STRETCH = 32.0
# Random directions meet ‖ΔW‖_F in about 1/d of its size; this many times that is allowed. Smaller:
# right heads are refused by chance; larger: wrong ones pass.
ALIGNMENT = 2.0
# Share of their size by which exact answers may be missed at most, whatever the bounds say: right
# models miss them by 1e-12, and five of 4,500, ill-conditioned, by more (measured).
AGREES = 2e-8
# Answers too coarse to find heads rightly are missed by more than expected, but not by this much:
# up to it the refusal says coarse, beyond it wrong class.
CLEARLY = 10.0
# Long tokens are so short that bounds on W_h leave scores open by no more: see `AGREES`.
MOST_OPEN = 1e-8
# A head within its error of W = 0 counts as W = 0 where that error is this small beside the
# largest ‖W_h‖.
NOTHING = 1e-12
# A tolerance of more than this share of what a head's scores contribute tells nothing of that
# head.
MOST_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class BoundedHeads:
    """The heads that were found, with a bound for each."""

    model: MultiHead
    W_error: Array
    v_error: Array

    def compared(
        self, X: Array, y: Array, precision: Precision
    ) -> tuple[Residuals, NDArray[np.bool_]]:
        """Compare answers with predictions, within what the heads' bounds allow.

        Returns also, (B, H), whether what each head contributes stands out of the tolerance.
        """
        model = self.model
        W_error, v_error = (np.minimum(e, UNBOUNDED) for e in (self.W_error, self.v_error))
        met = min(1.0, ALIGNMENT / model.dim)
        moved = score_shift(X, met * W_error[None])
        moved = moved + KAPPA * precision.unit * model.score_sizes(X)
        weights, values = model.attention(X), model.v @ X.transpose(0, 2, 1)
        deviations = np.abs(values - np.sum(weights * values, axis=2, keepdims=True))
        by_weights = largest_mean_shift(weights, deviations, moved.max(axis=2, initial=0.0))

        longest = np.linalg.norm(X, axis=2).max(axis=1, initial=0.0)
        size = longest * np.sum(np.linalg.norm(model.v, axis=1))
        size = np.where(size > 0, size, 1.0)
        allowed = by_weights.sum(axis=1) + longest * np.sum(v_error)
        if precision == Precision():
            # a right model of exact answers misses them by far less than its bounds allow
            allowed = np.minimum(allowed, AGREES * size)
        own = precision.error(size, y)
        own = own + sum_rounding(weights, values, precision.unit).sum(axis=1)
        contribution = np.sum(np.abs(score_gradient(weights, values)), axis=2)
        telling = (own + allowed)[:, None] <= MOST_SHARE * contribution
        return Residuals.of(y - model(X), own=own, allowed=allowed, size=size), telling


def certificate_of_heads(
    found: BoundedHeads, values: Values, checks: int, further: tuple[str, ...]
) -> Certificate:
    """Return the bounds with all they assume."""
    precision = values.precision
    return Certificate(
        {
            "W": float(np.max(found.W_error, initial=0.0)),
            "v": float(np.max(found.v_error, initial=0.0)),
            "w": 0.0,
            "c": 0.0,
        },
        (
            "The target is a sum of heads in mutually orthogonal subspaces: the hold-out tests "
            "this but cannot prove it.",
            f"Rounding changes an answer by at most {KAPPA:.0f} × {precision.unit:.1e} × "
            "max‖x_i‖·Σ‖v_h‖; other errors are named here.",
            *precision.why,
            *(() if checks else ("Nothing was checked: exact answers are assumed.",)),
            *further,
        ),
    )


def judged(
    found: BoundedHeads, opened: FirstRound, rng: np.random.Generator
) -> Asking[tuple[Evidence, str]]:
    """Ask the closing hold-out; return how the model stands and how far it was looked, or refuse.

    Sequences of a length are either short ones, drawn for one head after the other, or long ones.
    """
    precision, scored = opened.values.precision, _scored(found)
    short, long = _drawn(found, opened.closing, scored, precision, rng)
    answered = yield from fresh_answers(short, [opened.answered], long_sequences.in_rounds(long))
    compared = [found.compared(X, y, precision) for X, y in answered]
    judgement = judge([residuals for residuals, _ in compared], opened.checks)
    tells = np.concatenate([telling for _, telling in compared[1:] or compared])
    unseen = int(np.count_nonzero(~tells[:, scored].any(axis=0))) if opened.closing else 0
    if unseen and precision != Precision() and judgement.excess <= CLEARLY:
        raise Reason.SOME_HEADS_UNSEEN.error(
            {"v": opened.values.v}, also=why(precision), unseen=unseen, heads=found.model.H
        )
    if judgement.refuses:
        H = found.model.H
        raise Reason.FRESH_ANSWERS_MISSED.error(
            also=why(precision),
            model=f"sum of {H} head{'s' * (H > 1)}",
            missed=judgement.worst[0],
            allowed=judgement.worst[1],
            contrary="not a sum of heads in mutually orthogonal subspaces"
            f"{' like these' * (H > 1)}: ExactHead learns a single head, MultiHeadLearner heads in "
            "any position",
        )
    return judgement.evidence, long_sequences.looked_at(found.model, answered, long)


def _scored(found: BoundedHeads) -> list[int]:
    """Return the heads that have logits: values of one without any are seen at any size."""
    sizes = np.linalg.norm(found.model.W, axis=(1, 2))
    nothing = np.minimum(found.W_error, NOTHING * np.max(sizes, initial=0.0))
    return [h for h in range(found.model.H) if sizes[h] > nothing[h]]


def _drawn(
    found: BoundedHeads,
    count: int,
    scored: list[int],
    precision: Precision,
    rng: np.random.Generator,
) -> tuple[list[Sequences], list[Sequences]]:
    """Draw short sequences at moderate logits of one head after the other, and long ones.

    These are at logits of the strongest head.
    """
    model, d = found.model, found.model.dim

    def scaled(offsets: Array, query: Array, wanted: float, first: int = 0, n: int = d) -> Array:
        X = np.vstack([offsets, query])
        u = model.scores_of(query[None])[0, scored[first : first + n]]
        logit = np.sqrt(np.mean((u @ offsets.T) ** 2, axis=1)).max(initial=0.0)
        return np.asarray(np.sqrt(wanted / logit) * X if logit else X)

    long = long_sequences.draw_long(model, count, rng, scaled)

    def ordinary(n: int) -> Array:
        x = rng.standard_normal((LENGTHS[n % len(LENGTHS)], d)) / np.sqrt(d)
        turn, k = divmod(n, max(1, len(scored)))
        if turn % 2 and scored:
            x[:-1], x[-1] = STRETCH * x[:-1], x[-1] / STRETCH
        return scaled(x[:-1], x[-1], LOGITS[n % len(LOGITS)], k, 1)

    def tells(X: Array) -> bool:
        off = score_shift(X[None], found.W_error[None]).max(initial=0.0)
        known = found.compared(X[None], model(X[None]), precision)[1][:, scored]
        return bool(off <= MOST_OPEN and np.all(known))

    short = long_sequences.LongTokens(model, tells).among(count - len(long), rng, ordinary)
    return by_length(short, "hold-out, closing"), by_length(long, "hold-out, long")


# Columns count as orthonormal up to this: more would be lost of W's last digits.
ORTHONORMAL = 1e-12
# v_h counts as 0 where it is below so many times its error: its W is then not determined.
STANDS_OUT = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class OrthogonalHeads(Configured):
    """Learn heads that live in mutually orthogonal subspaces (Appendix C).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    subspaces : sequence of array_like (d, d_h), optional
        Orthonormal bases of the subspaces U_h, which are orthogonal to each other; found from
        answers by default.
    tokens : {"few", "all"}
        Query tokens that find the subspaces: random ones, one at a time until nothing changes,
        or the paper's e_1 … e_d.
    seed : int
        Decides the random probes and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range or not of its type; columns that are not orthonormal.

    Notes
    -----
    *Queries*: Σ(d_h + d_h²) with subspaces; without, d + 34 + d(d+1) per query token + Σ d_h²,
    more where heads read query tokens outside of their subspaces, or differ in size by 10⁵.
    *Determined up to* the order of the heads. *Source*: Assumption C.1, Proposition C.2 and the
    conjecture after it, arXiv 2601.16873. Finding subspaces takes memory as d⁴ and time as d⁶:
    three seconds at d = 32, half a minute at 48, five minutes at 64 (one core, two heads).

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(1)
    >>> Q = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    >>> E = Q[:, :2], Q[:, 2:]
    >>> W = [e @ rng.standard_normal((e.shape[1],) * 2) @ e.T for e in E]
    >>> target = us.MultiHead(W, [e @ rng.standard_normal(e.shape[1]) for e in E])
    >>> us.learners.OrthogonalHeads(5, E).plan().queries
    18
    >>> recovery = us.learn(target, us.learners.OrthogonalHeads(5))
    >>> recovery.model.H, bool(us.equivalent(recovery.model, target))
    (2, True)
    """

    dim: int
    subspaces: Sequence[ArrayLike] | Array | None = None
    tokens: Literal["few", "all"] = "few"
    seed: int = 0

    revision: ClassVar[int] = 4

    @property
    def far(self) -> str:
        """How long tokens are that find subspaces; "" where these are known."""
        return "" if self._bases() else "so long that heads count one by one"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        one_of("tokens", self.tokens, ("few", "all"))
        bases = self._bases()
        for basis in bases:
            if basis.ndim != 2 or len(basis) != self.dim or not basis.shape[1]:
                raise ValueError(
                    f"A subspace is an array of shape ({self.dim}, d_h) with d_h ≥ 1; one has "
                    f"shape {basis.shape}."
                )
        if self.subspaces is not None and not bases:
            raise ValueError("subspaces is empty: leave it out to find them.")
        if bases:
            refuse_oblique(bases)

    def _bases(self) -> list[Array]:
        given = () if self.subspaces is None else self.subspaces
        return [np.asarray(as_array(E), dtype=np.float64) for E in given]

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {**Configured.settings(self), "subspaces": as_json(self._bases()) or None}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OrthogonalHeads):
            return NotImplemented
        return self.settings() == other.settings()

    def __hash__(self) -> int:
        return hash(repr(self.settings()))

    def plan(self) -> Plan:
        """Say beforehand what learning costs; only a bound where the subspaces are unknown."""
        d, sizes = int(self.dim), [E.shape[1] for E in self._bases()]
        # the first round, what it asks again, and the closing of the hold-out
        cost = Cost(rounds=3 + logit_grid.ROUNDS + long_sequences.MOST_ROUNDS)
        most_tokens = long_sequences.most_tokens(d, *LENGTHS)
        if sizes:
            tokens = sum(sizes)
            squares = Cost.of(sum(k * k for k in sizes), tokens=2, again=AGAIN_PER_TOKEN * tokens)
            return (cost + Cost.of(tokens) + squares).plan("Σ(d_h + d_h²)", most_tokens)
        cost += Cost.of(d, rounds=ROUNDS_OF_COMPLEMENT)
        cost += subspace_search.subspace_cost(d, self.tokens == "all")
        # H ≤ d heads with d query tokens at most
        cost += Cost.of((1 + AGAIN_PER_TOKEN) * d * d, tokens=2)
        formula = f"d + {PILOT_QUERIES} + d(d+1) per query token + Σ d_h²"
        return cost.plan(formula, most_tokens, known=False)

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        parts = self._bases()
        if parts:
            basis = np.hstack(parts)
            first_round = ask_first_round(basis.shape[1], checks, rng, FirstRoundSettings())
            opened = yield from restricted(first_round, basis)
            opened = in_all_dimensions(opened, basis)
            found = heads_in(parts, opened.values)
        else:
            opened = yield from ask_first_round(self.dim, checks, rng, FirstRoundSettings())
            search = subspace_search.SubspaceSearch(self.tokens == "all", rng)
            found = yield from search.find(opened.values)
        heads = yield from together(
            [
                named(place.learn(found.complement, rng), f"head {h}")
                for h, place in enumerate(found.places, 1)
            ]
        )
        bounded = _bounded(heads, found.complement, opened.values)
        further = list(dict.fromkeys(line for head in heads for line in head.unbounded))
        if hidden := found.complement.hidden:
            further.append(f"Heads with ‖v_h‖ below {hidden:.0e} would not be seen.")
        evidence, looked = yield from judged(bounded, opened, rng)
        further += [looked] * bool(checks)
        certificate = certificate_of_heads(bounded, opened.values, checks, tuple(further))
        notes = *opened.values.precision.why, *found.notes
        return Found(bounded.model, certificate, evidence, notes)


def _bounded(heads: list[SubspaceHead], complement: Complement, total: Values) -> BoundedHeads:
    """Put the heads together, what is left in the complement as one with W = 0."""
    if complement.has_values:
        d = len(complement.basis)
        v_error = float(np.linalg.norm(total.v_error)) + sum(head.v_error for head in heads)
        W_error = complement.W_error
        nothing = np.zeros((d, d)), complement.basis @ complement.v
        heads = [*heads, SubspaceHead(*nothing, W_error, (W_error, 0.0), v_error, ())]
    largest = max(float(np.linalg.norm(head.W)) + head.W_most for head in heads)
    return BoundedHeads(
        MultiHead([head.W for head in heads], [head.v for head in heads]),
        np.array([head.W_error(largest) for head in heads]),
        np.array([max(head.v_error, complement.hidden) for head in heads]),
    )


# -- Proposition C.2 as it stands: subspaces that the user names, and v_h as its parts in them


def refuse_oblique(bases: list[Array]) -> None:
    """Refuse columns that are not orthonormal, within a subspace or between two."""
    if not np.isfinite(np.hstack(bases)).all():
        raise ValueError("subspaces must be finite.")
    for h, E in enumerate(bases, 1):
        if _skewness([E]) > ORTHONORMAL:
            raise ValueError(
                f"The columns of subspace {h} are not orthonormal: take Q of np.linalg.qr(E)."
            )
    if (skewness := _skewness(bases)) > ORTHONORMAL:
        raise ValueError(
            f"The subspaces are not orthogonal to each other: inner products are up to "
            f"{skewness:.1e}. Heads in any position are MultiHeadLearner's."
        )


def in_all_dimensions(opened: FirstRound, basis: Array) -> FirstRound:
    """Return a first round that was asked in coordinates of ``basis`` as R^d sees it.

    Its values stay in those coordinates; its sequences are compared with predictions.
    """
    X = Embedded.of(opened.probes, basis)
    return replace(opened, probes=Sequences(X[:], phase=X.phase, purpose=X.purpose))


def heads_in(bases: list[Array], total: Values) -> subspace_search.FoundSubspaces:
    """Split Σ v_h, in coordinates of all ``bases``, into the values of the head of each.

    Refuses subspaces in which single tokens show no value: the head there weighs nothing.
    """
    skewness = _skewness(bases)
    ends = np.cumsum([E.shape[1] for E in bases])[:-1]
    parts = zip(*(np.split(x, ends) for x in (total.v, total.v_error)), strict=True)
    places = []
    for h, (E, (v, v_error)) in enumerate(zip(bases, parts, strict=True), 1):
        own = replace(total, v=v, v_error=v_error)
        place = HeadSubspace.among(E, own, total, skewness * total.norm, skewness)
        if own.norm <= STANDS_OUT * (np.linalg.norm(v_error) + place.leak):
            raise Reason.VALUE_IS_0.error(
                {"v": total.v}, also="Leave that subspace out.", known=f" in subspace {h}"
            )
        places.append(place)
    complement = Complement(np.zeros((len(bases[0]), 0)), np.zeros(0), False)
    return subspace_search.FoundSubspaces(places, complement, ())


def _skewness(bases: list[Array]) -> float:
    """Return how far the columns of all bases are from orthonormal."""
    E = np.hstack(bases)
    return float(np.linalg.norm(E.T @ E - np.eye(E.shape[1]), 2))

"""Appendix C: heads in mutually orthogonal subspaces, one by one, also where those are unknown.

Recovers H, W_h, v_h of f(X) = Σ_h softmax_i(x_i·W_h x_N)ᵀ(X v_h) with W_h = P_h W_h P_h and v_h
in U_h (Assumption C.1), P_h the projection on U_h, d_h its dimension, from exact values:

    Σ v_h      single tokens, d queries (Σ d_h in given subspaces): v_h is its part in U_h
    U_h        given, or from Hessians (the conjecture, `subspace_search`)
    W_h        Theorem 4.1 in each U_h, where head h answers alone (Proposition C.2,
               `restricted_head`): Σ d_h² queries
    hold-out   fresh sequences over all of R^d (`closing_heads`)

What is found are the spans of v_h and W_h's columns; W_h's rows may read what is in none of them,
which is asked as well: Σ d_h(d_h + d − Σ d_h) queries in place of Σ d_h².

Determined up to the order of the heads. Heads with W = 0 have no subspace to be found: together
they are one head, as Proposition 7.1 says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import named, restricted, together
from unsoftmax.learners.orthogonal_heads.closing_heads import (
    LENGTHS,
    LONG,
    BoundedHeads,
    certificate_of_heads,
    judged,
)
from unsoftmax.learners.orthogonal_heads.restricted_head import (
    AGAIN_PER_TOKEN,
    ROUNDS,
    ROUNDS_OF_COMPLEMENT,
    Complement,
    HeadSubspace,
    SubspaceHead,
)
from unsoftmax.learners.orthogonal_heads.subspace_search import (
    HESSIAN,
    UNCHANGED,
    FoundSubspaces,
    SubspaceSearch,
    most_queries,
    most_rounds,
)
from unsoftmax.learners.settings import Configured, as_json, one_of, whole_number
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
)
from unsoftmax.measure.single_tokens import Values
from unsoftmax.models import MultiHead
from unsoftmax.probes import FARTHEST, Array, Embedded, Sequences
from unsoftmax.protocol import Found, Plan, Steps, as_array

# Columns count as orthonormal up to this: more would be lost of W's last digits.
ORTHONORMAL = 1e-12
# v_h counts as 0 where it is below so many times its error: its W is then not determined.
STANDS_OUT = 3.0


@dataclass(frozen=True, slots=True)
class OrthogonalTuning:
    """Knobs of `OrthogonalHeads`."""

    unchanged: int = UNCHANGED


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
    tuning : OrthogonalTuning
        Knobs of the algorithm, each with its reason in the source. To change some:
        ``dataclasses.replace(learner.tuning, …)``, given to a new learner.

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
    tuning: OrthogonalTuning = field(default=OrthogonalTuning(), kw_only=True)

    revision: ClassVar[int] = 3

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
        sizes = [E.shape[1] for E in self._bases()]
        # the first round, what it asks again, and the closing of the hold-out
        rounds = 3 + ROUNDS + LONG.most_rounds
        most_tokens = LONG.most_tokens(int(self.dim), *LENGTHS)
        if sizes:
            queries = sum(k + k * k for k in sizes)
            return Plan(
                queries=queries,
                at_most=queries + AGAIN_PER_TOKEN * sum(sizes),
                tokens=2 * queries - sum(sizes),
                rounds=rounds,
                formula="Σ(d_h + d_h²)",
                longest_token=FARTHEST,
                most_tokens=most_tokens,
            )
        d = int(self.dim)
        # H ≤ d heads with d query tokens at most
        at_most = d + most_queries(d) + (1 + AGAIN_PER_TOKEN) * d * d
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most - d,
            rounds=rounds + ROUNDS_OF_COMPLEMENT + most_rounds(d, self.tokens == "all"),
            formula=f"d + {HESSIAN.pilot_queries} + d(d+1) per query token + Σ d_h²",
            longest_token=FARTHEST,
            most_tokens=most_tokens,
        )

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
            search = SubspaceSearch(self.tokens == "all", rng, self.tuning.unchanged)
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


def heads_in(bases: list[Array], total: Values) -> FoundSubspaces:
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
            raise NotIdentifiable(
                f"v = 0 in subspace {h}. The softmax there weights nothing, so its W is free: no "
                "query can determine it. Leave that subspace out.",
                determined={"v": total.v},
            )
        places.append(place)
    complement = Complement(np.zeros((len(bases[0]), 0)), np.zeros(0), False)
    return FoundSubspaces(places, complement, ())


def _skewness(bases: list[Array]) -> float:
    """Return how far the columns of all bases are from orthonormal."""
    E = np.hstack(bases)
    return float(np.linalg.norm(E.T @ E - np.eye(E.shape[1]), 2))

"""Appendix C: heads in mutually orthogonal subspaces, one by one, also where those are unknown.

Recovers H, W_h, v_h of f(X) = Σ_h softmax_i(x_i·W_h x_N)ᵀ(X v_h) with W_h = P_h W_h P_h and v_h
in U_h, P_h the projection on U_h, d_h its dimension, from an oracle of exact values. For tokens
in U_h every other head answers x·v_g = 0, so head h answers alone: a single head in d_h
dimensions, learned by Theorem 4.1 with d_h + d_h² queries (Proposition C.2), Σ(d_h + d_h²) in
all. Where the subspaces are not given they are found first (`subspaces`): d queries for Σ v_h,
of which every v_h is a part, 34 for a scale, and d(d+1) for each of about max d_h + 2 query
tokens b; d(d+1) more where logits along b turn out larger than the scale said. What is found are
the spans of v_h and W_h's columns; query tokens outside of all of them are asked as well, which
W_h's rows may read: Σ d_h(d_h + d − Σ d_h) in place of Σ d_h².

Determined up to the order of the heads. Heads with W = 0 have no subspace to be found: together
they are one head, as Proposition 7.1 says. It refuses what the hold-out contradicts, which asks
all of R^d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.compose import restricted, together
from unsoftmax.learners.orthogonal_heads import checks as hold_out
from unsoftmax.learners.orthogonal_heads import subspaces
from unsoftmax.learners.orthogonal_heads.finding import LEVELS, SCALES, find
from unsoftmax.learners.orthogonal_heads.places import AGAIN_PER_TOKEN, Head, Place, Rest
from unsoftmax.learners.settings import Configured, as_json, one_of, whole
from unsoftmax.learners.single_head.first_round import (
    FirstRound,
    FirstRoundSettings,
    ask_first_round,
)
from unsoftmax.measure.two_tokens import Values
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Embedded, Sequences
from unsoftmax.protocol import Found, Plan, Steps

# Columns count as orthonormal up to this: what is beyond would be lost of W's last digits.
_ORTHONORMAL = 1e-12


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

    revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("seed", self.seed, 0)
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
            _refuse_oblique(bases)

    def _bases(self) -> list[Array]:
        given = () if self.subspaces is None else self.subspaces
        return [np.asarray(E, dtype=np.float64) for E in given]

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
        if sizes:
            queries = sum(k + k * k for k in sizes)
            return Plan(
                queries=queries,
                at_most=queries + AGAIN_PER_TOKEN * sum(sizes),
                tokens=2 * queries - sum(sizes),
                rounds=12,
                formula="Σ(d_h + d_h²)",
            )
        d = int(self.dim)
        found = range(d, max(d - LEVELS, 0), -1)  # dimensions that are left, at most
        each = [subspaces.PILOT + SCALES * k * subspaces.hessian_queries(k) for k in found]
        at_most = d + sum(each)
        at_most += (1 + AGAIN_PER_TOKEN) * d * d  # H ≤ d heads with d query tokens at most
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most - d,
            rounds=16 + SCALES * sum(2 if self.tokens == "all" else 1 + k for k in found),
            formula=f"d + {subspaces.PILOT} + d(d+1) per query token + Σ d_h²",
        )

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        parts = self._bases()
        if parts:
            whole_basis = np.hstack(parts)
            opening = ask_first_round(whole_basis.shape[1], checks, rng, FirstRoundSettings())
            opened = yield from restricted(opening, whole_basis)
            X = Embedded.of(opened.probes, whole_basis)
            opened = replace(opened, probes=_written(X))
            ends = np.cumsum([E.shape[1] for E in parts])[:-1]
            v, v_error = (np.split(x, ends) for x in (opened.values.v, opened.values.v_error))
            skewness = _skewness(parts)
            places = [
                Place.among(E, x, error, opened.values, skewness * opened.values.norm, skewness)
                for E, x, error in zip(parts, v, v_error, strict=True)
            ]
            _refuse_silent(places, opened.values)
            nothing = Rest(np.zeros((self.dim, 0)), np.zeros(0), False)
            return (yield from self._learn(places, nothing, opened, checks, rng))
        opened = yield from ask_first_round(self.dim, checks, rng, FirstRoundSettings())
        places, rest, notes = yield from find(opened.values, self.tokens == "all", rng)
        return (yield from self._learn(places, rest, opened, checks, rng, notes))

    def _learn(
        self,
        places: list[Place],
        rest: Rest,
        opened: FirstRound,
        checks: int,
        rng: np.random.Generator,
        notes: tuple[str, ...] = (),
    ) -> Steps[MultiHead]:
        """Learn the head in each subspace, and hold all together against fresh sequences."""
        heads = yield from together(
            [place.learn(rest, rng, h) for h, place in enumerate(places, 1)]
        )
        d = self.dim
        if rest.weighs:
            v_error = float(np.linalg.norm(opened.values.v_error))
            v_error += sum(head.v_error for head in heads)
            W = rest.W_error, (rest.W_error, 0.0)
            heads.append(Head(np.zeros((d, d)), rest.basis @ rest.v, *W, v_error, ()))
        loudest = max(float(np.linalg.norm(head.W)) + head.W_most for head in heads)
        found = hold_out.Bounded(
            MultiHead([head.W for head in heads], [head.v for head in heads]),
            np.array([head.W_error(loudest) for head in heads]),
            np.array([max(head.v_error, rest.hidden) for head in heads]),
        )
        further = list(dict.fromkeys(line for head in heads for line in head.unbounded))
        if rest.hidden:
            further.append(f"Heads with ‖v_h‖ below {rest.hidden:.0e} would not be seen.")
        certificate = hold_out.certificate_of(found, opened.values, checks, tuple(further))
        evidence = yield from hold_out.judged(found, opened, checks, rng)
        return Found(found.model, certificate, evidence, (*opened.values.precision.why, *notes))


def _refuse_silent(places: list[Place], values: Values) -> None:
    """Refuse subspaces in which single tokens show no value: the head there weighs nothing."""
    for h, place in enumerate(places, 1):
        if place.values.norm <= 3 * (np.linalg.norm(place.values.v_error) + place.leak):
            raise NotIdentifiable(
                f"v = 0 in subspace {h}. The softmax there weights nothing, so its W is free: no "
                "query can determine it. Leave that subspace out.",
                determined={"v": values.v},
            )


def _skewness(parts: list[Array]) -> float:
    """Return how far the columns of all bases are from orthonormal."""
    E = np.hstack(parts)
    return float(np.linalg.norm(E.T @ E - np.eye(E.shape[1]), 2))


def _refuse_oblique(parts: list[Array]) -> None:
    if not np.isfinite(np.hstack(parts)).all():
        raise ValueError("subspaces must be finite.")
    for h, E in enumerate(parts, 1):
        if _skewness([E]) > _ORTHONORMAL:
            raise ValueError(
                f"The columns of subspace {h} are not orthonormal: take Q of np.linalg.qr(E)."
            )
    if (skewness := _skewness(parts)) > _ORTHONORMAL:
        raise ValueError(
            f"The subspaces are not orthogonal to each other: inner products are up to "
            f"{skewness:.1e}. Heads in any position are MultiHeadLearner's."
        )


def _written(probes: Embedded) -> Sequences:
    """Write out probes that the hold-out compares with predictions."""
    return Sequences(probes[:], phase=probes.phase, purpose=probes.purpose)

"""Appendix C: heads in mutually orthogonal subspaces, one by one, also where those are unknown.

Recovers H, W_h, v_h of f(X) = Σ_h softmax_i(x_i·W_h x_N)ᵀ(X v_h) with W_h = P_h W_h P_h and v_h
in U_h, P_h the projection on U_h, d_h its dimension, from an oracle of exact values. For tokens
in U_h every other head answers x·v_g = 0, so head h answers alone: a single head in d_h
dimensions, learned by Theorem 4.1 with d_h + d_h² queries (Proposition C.2), Σ(d_h + d_h²) in
all. Where the subspaces are not given they are found first (`subspaces`): d queries for Σ v_h,
of which every v_h is a part, 34 for a scale, and d(d+1) for each of about max d_h + 2 query
tokens b. What is found are the spans of v_h and W_h's columns; query tokens outside of all of
them are asked as well, which W_h's rows may read: Σ d_h(d_h + d − Σ d_h) in place of Σ d_h².

Determined up to the order of the heads. Heads with W = 0 have no subspace to be found: together
they are one head, as Proposition 7.1 says. It refuses what the hold-out contradicts, which asks
all of R^d.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners import offsets
from unsoftmax.learners.bilinear import Block, measure
from unsoftmax.learners.opening import Opening, read_opening
from unsoftmax.learners.orthogonal import checks as hold_out
from unsoftmax.learners.orthogonal import subspaces as unknown
from unsoftmax.learners.orthogonal.alignment import aligned
from unsoftmax.learners.restriction import restricted, together
from unsoftmax.learners.scales import free
from unsoftmax.learners.settings import one_of, whole
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Embedded, Round, Sequences
from unsoftmax.protocol import Answers, Found, Plan, Steps
from unsoftmax.theory.precision import KAPPA, UNIT
from unsoftmax.theory.two_tokens import Values

_AGAIN_PER_TOKEN = 2
# Columns count as orthonormal up to this: what is beyond would be lost of W's last digits.
_ORTHONORMAL = 1e-12
# A singular value that counts as 0 and is this many times what noise makes is no noise.
_NOISE = 1e3
# Heads whose scores are too small to be seen beside others are looked for where those are not,
# and others too small beside these, in so many steps.
_LEVELS = 3
# The first time takes further orders away to 1e-2 of themselves or less, and so on.
_STRAIGHTENED = 3
# An entry of A is off by at most this many times what noise makes of it.
_NOISE_MOST = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class OrthogonalHeads:
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
    a second at d = 32, a minute at 48, five at 64 (one core).

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
    subspaces: Sequence[ArrayLike] | None = None
    tokens: Literal["few", "all"] = "few"
    seed: int = 0

    revision: ClassVar[int] = 1

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
        return [np.asarray(E, dtype=np.float64) for E in self.subspaces or ()]

    def settings(self) -> dict[str, Any]:
        """Return the settings as JSON; subspaces by their hash."""
        return {
            "learner": "OrthogonalHeads",
            "dim": int(self.dim),
            "subspaces": [_hash(E) for E in self._bases()] or None,
            "tokens": self.tokens,
            "seed": int(self.seed),
        }

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
                at_most=queries + _AGAIN_PER_TOKEN * sum(sizes),
                tokens=2 * queries - sum(sizes),
                rounds=12,
                formula="Σ(d_h + d_h²)",
            )
        d = int(self.dim)
        found = range(d, max(d - _LEVELS, 0), -1)  # dimensions that are left, at most
        at_most = d + sum(unknown.PILOT + k * unknown.hessian_queries(k) for k in found)
        at_most += (1 + _AGAIN_PER_TOKEN) * d * d  # H ≤ d heads with d query tokens at most
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most - d,
            rounds=16 + sum(2 if self.tokens == "all" else 1 + k for k in found),
            formula=f"d + {unknown.PILOT} + d(d+1) per query token + Σ d_h²",
        )

    def steps(self, checks: int) -> Steps[MultiHead]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        rng = np.random.default_rng(self.seed)
        parts = self._bases()
        if parts:
            whole_basis = np.hstack(parts)
            opening = read_opening(whole_basis.shape[1], False, checks, rng)
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
        opened = yield from read_opening(self.dim, False, checks, rng)
        places, rest, notes = yield from self._find(opened.values, rng)
        return (yield from self._learn(places, rest, opened, checks, rng, notes))

    def _find(
        self, values: Values, rng: np.random.Generator, levels: int = _LEVELS
    ) -> Generator[Round, Answers, tuple[list[Place], Rest, tuple[str, ...]]]:
        """Find the subspaces, and what is in none of them."""
        d = len(values.v)
        tokens = np.linalg.qr(rng.standard_normal((d, d)))[0].T
        if self.tokens == "all":
            tokens = np.eye(d)
        scale = yield from unknown.find_scale(values, tokens[rng.integers(d)], rng)
        if scale is None:
            alone = "A part of Σ v_h is weighed by no logit: a head with W = 0."
            return [], Rest(np.eye(d), values.v, True), (alone,)
        commutant = unknown.Commutant(scale.limit)
        curves: list[unknown.Curves] = []
        step = d if self.tokens == "all" else 1
        for start in range(0, d, step):
            asked = yield from unknown.ask_curves(values, tokens[start : start + step], scale)
            curves.append(asked)
            bent = asked.remainder()
            if bent > unknown.MOST_BENT:
                raise ModelMismatch(
                    f"At no scale are answers linear in the logits: {bent:.0e} is missing at one "
                    "that should be small. The target is not a sum of heads in mutually "
                    "orthogonal subspaces without biases, or some heads' scores are hidden "
                    "beside others'."
                )
            blocks = commutant.see(asked.hessians(), bent)
            if commutant.settled:
                break
        # with the heads nearly known, what finite differences leave of their further orders is
        A = np.array(commutant.seen)
        bases = unknown.joined(blocks.bases(rng), A, commutant.limit)
        everything = unknown.Curves(scale, np.concatenate([x.bent for x in curves]))
        for limit in (scale.limit, min(scale.limit, _NOISE * scale.noise)):
            bases, A, _ = _straightened(bases, A, everything, values)
            blocks = unknown.Commutant(limit).see(A)
            bases = unknown.joined(blocks.bases(rng), A, limit)
        bases = unknown.loud(bases, A, scale.limit)
        bases, A, errors = _straightened(bases, A, everything, values)
        outside = _outside(bases, d)
        parts = [E.T @ values.v for E in (*bases, outside)]
        leaks = errors @ [np.linalg.norm(part) for part in parts]
        places = [
            Place.of(E, values, float(leaks[h]), float(np.linalg.norm(errors[h])))
            for h, E in enumerate(bases)
        ]
        zero, other = blocks.singular
        sizes = ", ".join(str(E.shape[1]) for E in bases)
        note = (
            f"{len(bases)} subspaces of dimension {sizes}, from {len(A)} query tokens: singular "
            f"values of what commutes are up to {zero:.1e}, of what does not from {other:.1e}."
        )
        limit = 2 * float(leaks[-1]) + 3 * float(np.linalg.norm(values.v_error))
        if np.linalg.norm(parts[-1]) <= limit:
            return places, Rest(outside, parts[-1], False), (note,)
        if levels == 1:
            raise ModelMismatch(
                f"After {_LEVELS} times that heads were found, weaker ones are left: the target is "
                "not a sum of heads in mutually orthogonal subspaces, or they are too different."
            )
        turned = float(np.linalg.norm(errors[-1]))
        remaining = Place.of(outside, values, float(leaks[-1]), turned)
        inner = self._find(remaining.values, rng, levels - 1)
        more, beyond, said = yield from restricted(inner, outside)
        places += [place.within(outside, float(leaks[-1]), turned) for place in more]
        return places, replace(beyond, basis=outside @ beyond.basis), (note, *said)

    def _learn(
        self,
        places: list[Place],
        rest: Rest,
        opened: Opening,
        checks: int,
        rng: np.random.Generator,
        notes: tuple[str, ...] = (),
    ) -> Steps[MultiHead]:
        """Learn the head in each subspace, and hold all together against fresh sequences."""
        heads = yield from together(
            [place.learn(rest, rng, h) for h, place in enumerate(places, 1)]
        )
        d = self.dim
        W, v = [head.W for head in heads], [head.v for head in heads]
        v_errors = [head.v_error for head in heads]
        if rest.weighs:
            W, v = [*W, np.zeros((d, d))], [*v, rest.basis @ rest.v]
            v_errors.append(float(np.linalg.norm(opened.values.v_error)) + sum(v_errors))
        model = MultiHead(np.array(W).reshape(-1, d, d), np.array(v).reshape(-1, d))
        errors = {
            "W": max((head.W_error for head in heads), default=0.0),
            "v": max(v_errors, default=0.0),
            "w": 0.0,
            "c": 0.0,
        }
        unbounded = tuple(dict.fromkeys(line for head in heads for line in head.unbounded))
        certificate = hold_out.certificate_of(errors, opened.values, checks, unbounded)
        evidence = yield from hold_out.judged(model, certificate, opened, checks, rng)
        return Found(model, certificate, evidence, (*opened.values.precision.why, *notes))


@dataclass(frozen=True, slots=True)
class Head:
    """One head, in all of R^d, with bounds on its errors."""

    W: Array
    v: Array
    W_error: float
    v_error: float
    unbounded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rest:
    """What is in no subspace that was found."""

    basis: Array
    """Orthonormal columns (d, k): heads may read query tokens there, in W's rows."""
    v: Array
    """What of Σ v_h is there, in this basis."""
    weighs: bool
    """Whether that is more than nothing: heads with W = 0."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subspace, and the values of its head."""

    basis: Array
    """Orthonormal columns (d, d_h)."""
    values: Values
    """v_h in this basis."""
    leak: float
    """How much of other heads' values its tokens may meet, as a share of the tokens' norm."""
    turned: float
    """How far the subspace is off: the largest part of a unit vector that belongs to others."""

    @classmethod
    def of(cls, basis: Array, values: Values, leak: float, turned: float) -> Place:
        """Take from Σ v_g what is in the subspace, which is v_h."""
        v_error = np.abs(basis).T @ values.v_error
        return cls.among(basis, basis.T @ values.v, v_error, values, leak, turned)

    @classmethod
    def among(
        cls,
        basis: Array,
        v: Array,
        v_error: Array,
        values: Values,
        leak: float,
        turned: float,
    ) -> Place:
        """Count what other heads answer to their part of the probes as if it were rounding."""
        leak = leak + KAPPA * values.precision.unit * values.norm
        strange = leak / max(float(np.linalg.norm(v)), 1e-300) / KAPPA
        precision = replace(values.precision, unit=values.precision.unit + strange)
        return cls(basis, replace(values, v=v, v_error=v_error, precision=precision), leak, turned)

    def within(self, basis: Array, leak: float, turned: float) -> Place:
        """Return the place in a larger space of which this one was found in a part."""
        return replace(
            self, basis=basis @ self.basis, leak=self.leak + leak, turned=self.turned + turned
        )

    def learn(
        self, rest: Rest, rng: np.random.Generator, number: int
    ) -> Generator[Round, Answers, Head]:
        """Learn W_h by Theorem 4.1: offsets in the subspace, query tokens there and in the rest."""
        (_, k), (_, beyond) = self.basis.shape, rest.basis.shape
        E, B = self.basis, np.hstack([self.basis, rest.basis])
        own = self.values
        v_error = np.append(own.v_error, np.full(beyond, np.max(own.v_error)))
        values = replace(own, v=np.append(own.v, rest.v), v_error=v_error)
        Z = offsets.balanced(own.v, rng)
        rows, tokens = np.hstack([Z.made(), np.zeros((k, beyond))]), np.eye(k + beyond)
        phase, spare = f"W of head {number}", _AGAIN_PER_TOKEN * k
        asking = measure(values, rows, tokens[:k], free, phase, spare)
        blocks = [(yield from restricted(asking, B))]
        if beyond:
            # at the scale of the others: W b is 0 more often than not, and no scale would show it
            octave = int(np.median(np.log2(blocks[0].scale)))
            strange = Block(rows, tokens[k:], values, free, phase)
            yield from restricted(_at(strange, octave, _AGAIN_PER_TOKEN * beyond), B)
            blocks.append(strange)
        W = Z.solve(np.concatenate([block.measured() for block in blocks]))
        size, none = float(np.linalg.norm(W)), np.zeros(k + beyond)
        columns = np.split(np.linalg.norm(W, axis=0), [k])
        measured = np.linalg.norm(
            [
                block.error(values, lengths, none, Z.largest)
                for block, lengths in zip(blocks, columns, strict=False)
            ]
        )
        turned = self.turned + KAPPA * UNIT * len(E)
        return Head(
            E @ W @ B.T,
            E @ own.v,
            Z.error(float(measured), W) + 3 * turned * size,
            float(np.linalg.norm(own.v_error)) + self.leak + turned * own.norm,
            tuple(line for block in blocks for line in block.unbounded(values)),
        )


def _at(block: Block, octave: int, spare: int) -> Generator[Round, Answers, None]:
    """Ask for a whole block at one scale, and again what is out of range there."""
    scales = np.full(block.shape[0], octave)
    yield from block.ask(slice(None), slice(None), scales)
    yield from block.retry(scales, spare)


def _refuse_silent(places: list[Place], values: Values) -> None:
    """Refuse subspaces in which single tokens show no value: the head there weighs nothing."""
    for h, place in enumerate(places, 1):
        if place.values.norm <= 3 * (np.linalg.norm(place.values.v_error) + place.leak):
            raise NotIdentifiable(
                f"v = 0 in subspace {h}. The softmax there weights nothing, so its W is free: no "
                "query can determine it. Leave that subspace out.",
                determined={"v": values.v},
            )


def _straightened(
    bases: list[Array], A: Array, curves: unknown.Curves, values: Values
) -> tuple[list[Array], Array, Array]:
    """Take the heads' further orders away and turn the subspaces, in turn; see `aligned`."""
    errors = np.zeros((1, 1))
    for _ in range(_STRAIGHTENED):
        v = np.array([E @ (E.T @ values.v) for E in bases]).reshape(-1, A.shape[1])
        A = curves.straightened(v, A)
        noise = _NOISE_MOST * curves.scale.noise * float(np.max(np.abs(A)))
        turned, errors = aligned([*bases, _outside(bases, A.shape[1])], A, noise)
        bases = turned[:-1]
    return bases, A, errors


def _outside(bases: list[Array], d: int) -> Array:
    """Return an orthonormal basis of what is in no subspace."""
    E = np.hstack([np.zeros((d, 0)), *bases])
    return np.asarray(np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :])


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


def _hash(array: Array) -> str:
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


def _written(probes: Embedded) -> Sequences:
    """Write out probes that the hold-out compares with predictions."""
    return Sequences(probes[:], phase=probes.phase, purpose=probes.purpose)

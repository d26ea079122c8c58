"""Find the subspaces: A(b) of a few query tokens, what they have in common, where the heads are.

1. A scale at which logits are small but not lost, along one query token; a smaller one where those
   along others turn out to be larger.
2. A(b), one query token after the other, until the blocks they have in common stay the same.
3. With the heads nearly known, further orders of tanh are taken away, the subspaces turned and
   the two lines of heads of rank one joined.
4. Heads that are too small to be seen beside others are looked for where those are not.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import restricted
from unsoftmax.learners.orthogonal_heads import subspaces
from unsoftmax.learners.orthogonal_heads.alignment import Aligned, aligned
from unsoftmax.learners.orthogonal_heads.places import Place, Rest
from unsoftmax.measure.precision import why
from unsoftmax.measure.two_tokens import Values
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers

# Heads whose scores are too small to be seen beside others are looked for where those are not,
# and others too small beside these, in so many steps.
LEVELS = 3
# A pilot may meet a head where it reads next to nothing, or hardly any of its values: then logits
# turn out to be larger than it said, and smaller ones are asked for.
SCALES = 3
# More than this of A(b) and they are.
_BENT = 1e-3
# A singular value that counts as 0 and is this many times what noise makes is no noise.
_NOISE = 1e3
# An entry of A is off by at most this many times what noise makes of it.
_NOISE_MOST = 3.0
# Each time takes further orders away to 1e-2 of themselves or less.
_STRAIGHTENED = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """What some query tokens showed."""

    curves: subspaces.Curves
    commutant: subspaces.Commutant


def find(
    values: Values, every: bool, rng: np.random.Generator, levels: int = LEVELS, leak: float = 0.0
) -> Generator[Round, Answers, tuple[list[Place], Rest, tuple[str, ...]]]:
    """Find the subspaces, and what is in none of them.

    Parameters
    ----------
    values : Values
        Σ v_h.
    every : bool
        Ask for all of e_1 … e_d instead of random query tokens.
    rng : Generator
        Draws them.
    levels : int
        How many times weaker heads may be looked for.
    leak : float
        What the tokens may meet of heads that were found before.
    """
    d = len(values.v)
    seen = yield from _look(values, every, rng)
    if seen is None:
        if subspaces.blind(values):
            raise NotIdentifiable(
                f"A part of Σ v_h, {values.norm:.1e} large, is weighed by no logit that shows "
                "beside other heads: whether its W is 0 cannot be told." + why(values.precision),
                determined={"v": values.v},
            )
        alone = "A part of Σ v_h is weighed by no logit: a head with W = 0."
        rest = Rest(np.eye(d), values.v, True, W_error=subspaces.unscored(values))
        return [], rest, (alone,)
    found, blocks = _resolved(seen, values, rng)
    *bases, outside = found.bases
    parts = [E.T @ values.v for E in found.bases]
    leaks = leak + found.errors @ [np.linalg.norm(part) for part in parts]
    off = np.linalg.norm(found.errors, axis=1)
    places = [
        Place.of(E, values, float(leaks[h]), float(off[h]), found.unseen)
        for h, E in enumerate(bases)
    ]
    sizes = ", ".join(str(E.shape[1]) for E in bases)
    zero, other = blocks.singular
    note = (
        f"{len(bases)} subspaces of dimension {sizes}, from {len(seen.curves.bent)} query tokens: "
        f"singular values of what commutes are up to {zero:.1e}, of what does not from {other:.1e}."
    )
    turned = float(off[-1])
    hidden = float(2 * leaks[-1] + 3 * np.linalg.norm(values.v_error))
    if np.linalg.norm(parts[-1]) <= hidden:
        return places, Rest(outside, parts[-1], False, turned, hidden=hidden), (note,)
    if levels == 1:
        raise ModelMismatch(
            f"After {LEVELS} times that heads were found, weaker ones are left: the target is "
            "not a sum of heads in mutually orthogonal subspaces, or they are too different."
        )
    remaining = Place.of(outside, values, float(leaks[-1]), turned, found.unseen)
    inner = find(remaining.values, every, rng, levels - 1, remaining.leak)
    more, beyond, said = yield from restricted(inner, outside)
    places += [place.within(outside, turned) for place in more]
    beyond = replace(beyond, basis=outside @ beyond.basis, turned=beyond.turned + turned)
    return places, beyond, (note, *said)


def _look(
    values: Values, every: bool, rng: np.random.Generator
) -> Generator[Round, Answers, Seen | None]:
    """Ask for A(b) until nothing changes; None where there are no logits."""
    d = len(values.v)
    tokens = np.eye(d) if every else np.linalg.qr(rng.standard_normal((d, d)))[0].T
    step = d if every else 1
    scale = yield from subspaces.find_scale(values, tokens[rng.integers(d)], rng)
    if scale is None:
        return None
    for attempt in range(SCALES):
        if scale.limit > subspaces.MOST_LIMIT:
            raise NotIdentifiable(
                f"The answers are too coarse to find subspaces: noise is {scale.noise:.0e} of what "
                "logits show at the scale at which they are small." + why(values.precision),
                determined={"v": values.v},
            )
        most = max(_BENT, scale.limit) if attempt + 1 < SCALES else subspaces.MOST_BENT
        commutant, bent = subspaces.Commutant(scale.limit), list[Array]()
        for start in range(0, d, step):
            asked = yield from subspaces.ask_curves(values, tokens[start : start + step], scale)
            remainder = asked.remainder()
            if remainder > most:
                scale = scale.lower(remainder)
                break
            bent.append(asked.bent)
            commutant.see(asked.hessians(), remainder)
            if commutant.settled or start + step >= d:
                return Seen(subspaces.Curves(scale, np.concatenate(bent)), commutant)
    raise ModelMismatch(
        f"At no scale are answers linear in the logits: {remainder:.0e} is missing at one that "
        "should be small. The target is not a sum of heads in mutually orthogonal subspaces "
        "without biases, or its answers are too coarse, or some heads' scores are hidden beside "
        "others'." + why(values.precision)
    )


def _resolved(
    seen: Seen, values: Values, rng: np.random.Generator
) -> tuple[Aligned, subspaces.Blocks]:
    """Return the subspaces, by how much they lean to each other, and all blocks.

    With the heads nearly known, what finite differences leave of their further orders is known.
    """
    scale, A = seen.curves.scale, np.array(seen.commutant.seen)
    blocks = seen.commutant.blocks(len(A))
    bases = subspaces.joined(blocks.bases(rng), A, seen.commutant.limit)
    for limit in (scale.limit, min(scale.limit, _NOISE * scale.noise)):
        _, A = _straightened(bases, A, seen.curves, values)
        commutant = subspaces.Commutant(limit)
        commutant.see(A)
        blocks = commutant.blocks(len(A))
        bases = subspaces.joined(blocks.bases(rng), A, limit)
    bases = subspaces.loud(bases, A, scale.limit)
    found, _ = _straightened(bases, A, seen.curves, values)
    return found, blocks


def _straightened(
    bases: list[Array], A: Array, curves: subspaces.Curves, values: Values
) -> tuple[Aligned, Array]:
    """Take the heads' further orders away and turn the subspaces, in turn."""
    d = A.shape[1]
    for _ in range(_STRAIGHTENED):
        A = curves.straightened(np.array([E @ (E.T @ values.v) for E in bases]), A)
        noise = _NOISE_MOST * curves.scale.noise * float(np.max(np.abs(A)))
        found = aligned([*bases, _outside(bases, d)], A, noise)
        bases = found.bases[:-1]
    return found, A


def _outside(bases: list[Array], d: int) -> Array:
    """Return an orthonormal basis of what is in no subspace."""
    E = np.hstack(bases)
    return np.asarray(np.linalg.qr(E, mode="complete")[0][:, E.shape[1] :])

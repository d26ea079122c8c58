"""Proposition C.2 as it stands: subspaces that the user names, and v_h as its parts in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import NotIdentifiable
from unsoftmax.learners.orthogonal_heads.restricted_head import Complement, HeadSubspace
from unsoftmax.learners.orthogonal_heads.subspace_search import FoundSubspaces
from unsoftmax.learners.single_head.first_round import FirstRound
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Array, Embedded, Sequences


@dataclass(frozen=True, slots=True)
class GivenSubspacesTuning:
    """Knobs of checking subspaces that are given."""

    orthonormal: float = 1e-12
    """Columns count as orthonormal up to this: more would be lost of W's last digits."""
    stands_out: float = 3.0
    """v_h counts as 0 where it is below so many times its error: its W is then not determined."""


def refuse_oblique(bases: list[Array], tuning: GivenSubspacesTuning) -> None:
    """Refuse columns that are not orthonormal, within a subspace or between two."""
    if not np.isfinite(np.hstack(bases)).all():
        raise ValueError("subspaces must be finite.")
    for h, E in enumerate(bases, 1):
        if _skewness([E]) > tuning.orthonormal:
            raise ValueError(
                f"The columns of subspace {h} are not orthonormal: take Q of np.linalg.qr(E)."
            )
    if (skewness := _skewness(bases)) > tuning.orthonormal:
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


def heads_in(bases: list[Array], total: Values, tuning: GivenSubspacesTuning) -> FoundSubspaces:
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
        if own.norm <= tuning.stands_out * (np.linalg.norm(v_error) + place.leak):
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

"""Whether a layer stands behind a norm, after one, or alone: 3 to 7 single tokens.

Answers to longer and longer single tokens grow in a plain layer, M x + c, and stay bounded behind a
norm; after a norm they stay bounded as well, or grow as the residual x does and no other way. Then
the zero token, u, v and u + v decide: after a norm their answers are linear in what the norm makes
of them (`normed_tokens.kind_of`), behind one they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.attention_layer.normed_tokens import NormedKind, kind_of
from unsoftmax.learners.attention_layer.prenorm_tuning import NormSearchTuning
from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Singles


@dataclass(frozen=True, slots=True)
class FoundNorm:
    """Where a norm stands; of one before the layer, of what kind."""

    place: Literal["none", "post", "pre"]
    kind: NormedKind | None = None


def find_norm(dim: int, seed: int, norm: str | None, tuning: NormSearchTuning) -> Asking[FoundNorm]:
    """Find where the norm stands, ``norm`` being what is known of it.

    What does not depend on the token at all has no norm that could be told.

    Raises
    ------
    ModelMismatch
        A norm before the layer was said to be there, and is not.
    """
    if norm == "none":
        return FoundNorm("none")
    if norm == "post":
        return FoundNorm("post")
    if norm is None:
        alone = yield from _grows_by_heads(dim, seed, tuning)
        if alone:
            return FoundNorm("none")
    kind, bounded = yield from norm_before(dim, seed, tuning)
    if kind is not None:
        return FoundNorm("pre", kind)
    if norm == "pre":
        raise ModelMismatch(
            "Long single tokens are not answered as after a LayerNorm or RMSNorm: what they add to "
            "the zero token's answer is not linear in the normalised token. Leave out norm, and it "
            "is found whether one stands behind the layer or none."
        )
    return FoundNorm("post" if bounded else "none")


def _grows_by_heads(dim: int, seed: int, tuning: NormSearchTuning) -> Asking[bool]:
    """Whether answers grow with single tokens, and not as these do, or do not change at all."""
    token = np.round(16 * np.random.default_rng(seed).standard_normal(dim)) / 16
    token[0] = 1.0
    lengths = np.array([tuning.near, tuning.far, -tuning.far])[:, None]
    [y] = yield [Singles(lengths * token, phase="norm", purpose="pilot")]
    near, far, opposite = y
    grows = np.max(np.abs(far)) > tuning.growth * np.max(np.abs(near))
    still = np.max(np.abs(far - opposite)) <= tuning.alike * np.max(np.abs(far))
    as_tokens = far.shape == token.shape and bool(
        np.max(np.abs(far - tuning.far * token)) <= tuning.residual * np.max(np.abs(far))
    )
    return bool((grows or still) and not as_tokens)


def norm_before(
    dim: int, seed: int, tuning: NormSearchTuning
) -> Asking[tuple[NormedKind | None, bool]]:
    """Ask 0, u, v and u + v; return the norm before, and whether answers stay small."""
    rng = np.random.default_rng([seed, dim])
    # means of 1 and 1/2 tell a norm that takes them off from one that does not
    u, v = np.round(16 * rng.standard_normal((2, dim))) / 16 + np.array([[1.0], [0.5]])
    tokens: Array = tuning.long * np.array([np.zeros(dim), u, v, u + v])
    [y] = yield [Singles(tokens, phase="norm", purpose="pilot")]
    bounded = bool(np.max(np.abs(y[1:])) <= np.max(np.abs(tokens)) / 2)
    return kind_of(tokens[1:], y[1:], y[0], tuning), bounded

"""Whether a layer stands behind a norm, after one, or alone: 3 to 7 single tokens.

Answers to longer and longer single tokens grow in a plain layer, M x + c, and stay bounded behind a
norm; after a norm they stay bounded as well, or grow as the residual x does and no other way. Then
the zero token, u, v and u + v decide: after a norm their answers are linear in what the norm makes
of them, behind one they are not. The eps of a norm before is read off lengths of one direction:
|y − c| over the longest one's is √(v/(v + eps)), v = |Px|²/d.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from unsoftmax.learners.attention_layer import search_limits as limits
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.normed_tokens import NormedKind, NormedTokens
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.models import AttentionLayer
from unsoftmax.probes import Array, Singles
from unsoftmax.protocol import Certificate, Found
from unsoftmax.refusals import Reason, RefusalError, reworded
from unsoftmax.validate.drawn_models import SAFETY

# Lengths of a long token and of a longer one, far beyond any constant, and squares are within
# float32; how many times as large the longer one's answer is, at least, where answers grow.
_NEAR, _FAR, _GROWTH = 2.0**20, 2.0**40, 2.0**10
# Answers to opposite tokens that differ by no more do not depend on the token.
_ALIKE = 2.0**-30
# Answers that grow as the token does, but for this share: float32 is within it.
_RESIDUAL = 2.0**-16
# Length of the tokens that tell a norm before: eps is 2⁻¹⁶ of their variance at most, and a
# residual connection leaves of the heads' answer what rounding does.
_LONG = 2.0**8
# What normalised tokens may miss a linear map by: an eps of 1 is 1e-5. And in roundoffs of the
# answers, by their format: with a residual connection these are of numbers as large as the tokens.
_OFF, _ROUNDOFFS = 1e-4, 4.0
# Answers that miss a linear map by less may be noisy ones after a norm: others miss by about all.
# How layers are refused then that were searched as if no norm were before.
_NEARLY = 0.1
_AS_IF_NONE = {"FIRST_TOKEN_DOES_NOT_COUNT", "NEITHER_NORM_BEHIND", "TOKENS_NOT_AFFINE"}
# What heads add to long tokens' answers is seen where it is so many times as large.
_SEEN = 30.0
# Of the single tokens that find eps the longest, and each in proportion to the one before: eps from
# 1e3 down to 1e-24. The next rung still shows a 4,096th of the one that eps bends.
_LONGEST, _APART = 2.0**6, 2.0**-6
# How many times as long the tokens are that those at which eps is read are held against: eps bends
# them by a 64th as much, and a residual connection adds no more than it must.
_LONGER = 8.0
# Relative differences of the eps that several directions give, at most.
_UNLIKE = 1e-3
# Shortest single tokens that are answered as the longest are, but for this: eps is 0.
_UNBENT = 1e-3
# Mean that tokens get in proportion to their entries: a LayerNorm takes it off, and a target that
# does not is seen.
_MEAN = 1.0


class FoundNorm(NamedTuple):
    """Where a norm stands; of one before the layer, of what kind."""

    place: str
    """One of "none", "post" and "pre"."""
    kind: NormedKind | None = None
    missed: float = np.inf
    """Of one that was not found before the layer, by how much long tokens miss it, relatively."""

    def beside(self, refusal: RefusalError) -> RefusalError:
        """Say of a layer that was searched as without a norm before if one is nearly there."""
        if self.missed > _NEARLY or refusal.reason not in _AS_IF_NONE:
            return refusal
        return reworded(
            refusal,
            f"{refusal} Or a LayerNorm or RMSNorm is before the layer and answers are too noisy "
            f"for it: long single tokens are answered as after one but for {self.missed:.1e}.",
        )


def find_norm(dim: int, seed: int, norm: str | None) -> Asking[FoundNorm]:
    """Find where the norm stands, ``norm`` being what is known of it.

    What does not depend on the token at all has no norm that could be told.

    Raises
    ------
    ModelMismatch
        A norm before the layer was said to be there, and is not.
    """
    if norm in ("none", "post"):
        return FoundNorm(norm)
    grows = False
    if norm is None:
        grows, alone = yield from _growth(dim, seed)
        if alone:
            return FoundNorm("none")
    kind, missed = yield from norm_before(dim, seed)
    if kind is not None:
        return FoundNorm("pre", kind)
    if norm == "pre":
        by = f"They miss it by {missed:.1e} of its size." if np.isfinite(missed) else ""
        raise Reason.NOT_AFTER_A_NORM.error(also=by)
    return FoundNorm("none" if grows else "post", missed=missed)


def _growth(dim: int, seed: int) -> Asking[tuple[bool, bool]]:
    """Whether answers grow with single tokens; and whether no norm can be there.

    None is where they grow not as the tokens do, or do not change at all.
    """
    token = np.round(16 * np.random.default_rng(seed).standard_normal(dim)) / 16
    token[0] = 1.0
    lengths = np.array([_NEAR, _FAR, -_FAR])[:, None]
    [y] = yield [Singles(lengths * token, phase="norm", purpose="pilot")]
    near, far, opposite = y
    grows = np.max(np.abs(far)) > _GROWTH * np.max(np.abs(near))
    still = np.max(np.abs(far - opposite)) <= _ALIKE * np.max(np.abs(far))
    as_tokens = far.shape == token.shape and bool(
        np.max(np.abs(far - _FAR * token)) <= _RESIDUAL * np.max(np.abs(far))
    )
    return bool(grows), bool((grows or still) and not as_tokens)


def norm_before(dim: int, seed: int) -> Asking[tuple[NormedKind | None, float]]:
    """Ask 0, u, v and u + v; return the norm before, and what they miss the nearest one by."""
    rng = np.random.default_rng([seed, dim])
    # means of 1 and 1/2 tell a norm that takes them off from one that does not
    u, v = np.round(16 * rng.standard_normal((2, dim))) / 16 + np.array([[1.0], [0.5]])
    tokens: Array = _LONG * np.array([np.zeros(dim), u, v, u + v])
    [y] = yield [Singles(tokens, phase="norm", purpose="pilot")]
    return kind_of(tokens[1:], y[1:], y[0])


def kind_of(tokens: Array, y: Array, zero: Array) -> tuple[NormedKind | None, float]:
    """Tell what kind of norm long tokens u, v, u + v (3, d) went through, if any before a layer.

    Parameters
    ----------
    tokens, y : ndarray (3, d), (3, m)
        The tokens, long beside √eps, and their answers.
    zero : ndarray (m,)
        The zero token's answer.

    Returns
    -------
    NormedKind or None
        None where no layer after a norm answers so.
    float
        What answers miss that, or the nearest kind, by, relative to what heads add to them; inf
        where they add nothing.
    """
    precision = Precision.of_format([y, zero[None]])
    rounding = _ROUNDOFFS * float(np.max(precision.error(0.0, y)))
    nearest = np.inf
    for residual in (False, True):
        if residual and y.shape != tokens.shape:
            continue
        z = y - zero - tokens if residual else y - zero
        if not np.max(np.abs(z)) > _SEEN * rounding:
            continue
        for centred in (True, False):
            means = np.mean(tokens, axis=1, keepdims=True)
            lengths = np.linalg.norm(tokens - centred * means, axis=1)
            sums = lengths[:, None] * z
            size = float(np.max(np.abs(sums)))
            missed = float(np.max(np.abs(sums[0] + sums[1] - sums[2])))
            if missed < _OFF * size + rounding * np.sum(lengths):
                return NormedKind(residual, centred), missed / size
            nearest = min(nearest, missed / size)
    return None, nearest


def find_normed_tokens(
    dim: int, kind: NormedKind, rng: np.random.Generator
) -> Asking[NormedTokens]:
    """Ask single tokens of several lengths for eps.

    Raises
    ------
    NotIdentifiable
        eps is 0, so that no token is shorter than √d when it is normalised.
    ModelMismatch
        Lengths count for the answers otherwise than a norm makes them.
    """
    frame = np.eye(dim)
    if kind.centred:
        first = np.column_stack([np.ones(dim), rng.standard_normal((dim, dim - 1))])
        frame = np.linalg.qr(first)[0][:, 1:]
    rungs = _LONGEST * _APART ** np.arange(limits.BALL_RUNGS)
    directions = rng.standard_normal((1 + limits.BALL_REFINED, frame.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    zero, y = yield [
        Singles(np.zeros((1, dim)), phase="norm", purpose="pilot"),
        Singles(rungs[:, None] * (frame @ directions[0]), phase="norm", purpose="pilot"),
    ]
    lengths, z = _heads_of(rungs[:, None] * (frame @ directions[0]), y, zero, kind)
    bent = (z @ z[0]) / (z[0] @ z[0])
    rung = 1 + int(np.argmin(np.abs(bent[1:] - np.sqrt(1 / 2))))
    if bent[-1] > 1 - _UNBENT:
        raise Reason.EPS_IS_0.error({"c": zero[0]})
    if not 0 < bent[rung] < 1:
        raise Reason.NO_TOKEN_HALF_BENT.error()
    eps = float(_eps(lengths[rung], lengths[0], bent[rung], dim))
    short = np.sqrt(eps * dim) * directions[1:] @ frame.T
    both = np.concatenate([short, _LONGER * short])
    [y] = yield [Singles(both, phase="norm", purpose="pilot")]
    lengths, z = _heads_of(both, y, zero, kind)
    near, far = z[: limits.BALL_REFINED], z[limits.BALL_REFINED :]
    share = np.sum(far * near, axis=1) / np.sum(far * far, axis=1)
    found = _eps(lengths[: limits.BALL_REFINED], lengths[limits.BALL_REFINED :], share, dim)
    eps = float(np.mean(found))
    spread = float(np.std(found) / eps)
    means = _MEAN * rng.standard_normal(frame.shape[1]) / np.sqrt(dim)
    precision = Precision.of_format([y, zero])
    means = kind.centred * np.ones((dim, 1)) * means
    # at half of the effect eps is off by four times what its share is, relatively
    whole = 4 * float(np.max(np.linalg.norm(y, axis=1) / np.linalg.norm(z, axis=1)))
    normed = NormedTokens(kind, eps, spread, whole, frame, means, precision)
    if normed.eps_error(0.0) > _UNLIKE:
        raise Reason.EPS_DIFFERS.error(apart=normed.eps_error(0.0))
    return normed


def _heads_of(x: Array, y: Array, zero: Array, kind: NormedKind) -> tuple[Array, Array]:
    """Return the lengths of tokens, and what the heads add to the zero token's answer."""
    return np.linalg.norm(x, axis=1), y - zero - x if kind.residual else y - zero


def _eps(length: Array, longer: Array, share: Array, dim: int) -> Array:
    """Return the eps with which tokens have this share of the effect of longer ones.

    share² = v(w + eps)/(w(v + eps)) with v and w the squares of the lengths over d.
    """
    v, w, q = length**2 / dim, longer**2 / dim, share**2
    return np.asarray(v * w * (1 - q) / (q * w - v))


def found_before(
    normed: NormedTokens, found: Found[Any], noise: AnswerNoise
) -> Found[AttentionLayer]:
    """Return a layer of tokens t as one of tokens x.

    An error of eps, relative, moves tokens by half of it, relatively.
    """
    off = SAFETY * normed.eps_error(noise.relative)
    bounds = dict(found.certificate.errors)
    for name in ("M", "W", "w"):
        bounds[name] += off * max(head.parameter_norm(name) for head in found.model.heads)
    bounds["eps"] = off * normed.eps
    assumed = (
        *found.certificate.assumes,
        "Tokens are normalised before the heads see them: M, W, w and c contain the scale and the "
        "shift of that norm.",
    )
    return replace(found, model=normed.layer(found.model), certificate=Certificate(bounds, assumed))

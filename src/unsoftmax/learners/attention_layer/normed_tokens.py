"""Tokens that a norm before a layer maps to chosen ones: a ball of radius √d.

n(x) = Px/√(|Px|²/d + eps), P = I − 11ᵀ/d, or P = I of RMSNorm, takes any value of the open ball
|n| < √d in the range of P, at x = n √(eps/(1 − |n|²/d)). So with an orthonormal basis E of that
range a layer o(n(x)) is a plain layer of t = Eᵀn, |t| < √d, in d − 1 or d dimensions, and its
learner asks tokens t; its answers are those of the target, less x_N where there is a residual.
What tells that the target is one, and which:

- answers to long tokens ux, vx and (u + v)x: y − c is linear in n(x), with the residual or
  without, with P or without (`kind_of`);
- lengths of one direction: |y − c| over the longest one's is √(v/(v + eps)), v = |Px|²/d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.prenorm_tuning import NormSearchTuning, PrenormTuning
from unsoftmax.learners.compose import Asking, T
from unsoftmax.measure.precision import KAPPA, UNIT, Precision
from unsoftmax.models import AttentionLayer, LayerHead, LayerNorm
from unsoftmax.probes import Array, Design, Probes, Round, Singles
from unsoftmax.protocol import Answers


@dataclass(frozen=True, slots=True)
class NormedKind:
    """What stands around the heads of a layer after a norm."""

    residual: bool
    centred: bool


@dataclass(frozen=True, slots=True)
class TokensBefore(Probes):
    """Probes of tokens t, as the tokens x that a norm maps to them.

    Attributes
    ----------
    inner : Probes
        Tokens t (…, k), |t| < √d.
    basis : ndarray (d, k)
        E, and a mean for every token, which the norm takes off.
    eps : float
    """

    inner: Probes
    basis: Array
    eps: float

    @property
    def tokens(self) -> int:  # noqa: D102
        return self.inner.tokens

    @property
    def dim(self) -> int:  # noqa: D102
        return len(self.basis)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, span: slice) -> Array:
        t = self.inner[span]
        left = 1 - np.sum(t * t, axis=-1, keepdims=True) / self.dim
        return np.asarray(t @ self.basis.T * np.sqrt(self.eps / left))

    def design(self) -> Design:  # noqa: D102
        within = {f"inner.{name}": array for name, array in self.inner.design().items()}
        return {**within, "basis": self.basis, "eps": np.array([self.eps])}


@dataclass(frozen=True, slots=True)
class NormedTokens:
    """How tokens t of the ball are asked, and a layer of them is one of tokens x.

    Attributes
    ----------
    kind : NormedKind
    eps, eps_spread : float
        And by how much several directions differ about it, relatively.
    eps_per_noise : float
        By how much of itself it is off where answers are off by all of theirs.
    frame : ndarray (d, k)
        E.
    means : ndarray (d, k)
        What is added to E: the same number in every row of a column.
    precision : Precision
        Of the target's answers, by their format; less x_N they have none.
    """

    kind: NormedKind
    eps: float
    eps_spread: float
    eps_per_noise: float
    frame: Array
    means: Array
    precision: Precision

    @property
    def radius(self) -> float:
        """√d."""
        return float(np.sqrt(len(self.frame)))

    def eps_error(self, noise: float) -> float:
        """Return what eps may be off by, relatively, of answers this much off.

        A drift is alike in all directions.
        """
        return max(self.eps_spread, self.eps_per_noise * max(KAPPA * UNIT, noise))

    def asked_of(self, steps: Asking[T]) -> Asking[T]:
        """Run a learner of tokens t on the target."""
        asked: Round = []
        answers: Answers
        try:
            asked = next(steps)
            while True:
                before = [self._before(probes) for probes in asked]
                try:
                    answers = yield list(before)
                except Exception as error:
                    asked = steps.throw(error)
                else:
                    pairs = zip(before, answers, strict=True)
                    asked = steps.send([self._heads_alone(*pair) for pair in pairs])
        except StopIteration as end:
            found: T = end.value
            return found
        finally:
            steps.close()

    def _before(self, probes: Probes) -> TokensBefore:
        basis = self.frame + self.means
        return TokensBefore(probes, basis, self.eps, phase=probes.phase, purpose=probes.purpose)

    def _heads_alone(self, probes: TokensBefore, y: Array) -> Array:
        """Take the residual off; what was not answered stays so."""
        if not self.kind.residual or not len(y):
            return y
        return np.asarray(y - probes[0 : len(probes)][:, -1])

    def layer(self, plain: AttentionLayer) -> AttentionLayer:
        """Return the layer of tokens x whose layer of tokens t is ``plain``."""
        E, heads = self.frame, []
        for head in plain.heads:
            own = head.arrays()
            V, K, Q = (own[name] @ E.T for name in "VKQ")
            heads.append(LayerHead.from_factors(O=own["O"], V=V, K=K, Q=Q, w=E @ head.w))
        norm = LayerNorm(np.ones(len(E)), None, self.eps, before=True, centred=self.kind.centred)
        return AttentionLayer(heads, plain.c, self.kind.residual, norm)


def kind_of(tokens: Array, y: Array, zero: Array, tuning: NormSearchTuning) -> NormedKind | None:
    """Tell what kind of norm long tokens u, v, u + v (3, d) went through, if any before a layer.

    Parameters
    ----------
    tokens, y : ndarray (3, d), (3, m)
        The tokens, long beside √eps, and their answers.
    zero : ndarray (m,)
        The zero token's answer.
    tuning : NormSearchTuning
        Knobs.

    Returns
    -------
    NormedKind or None
        None where no layer after a norm answers so.
    """
    precision = Precision.of_format([y, zero[None]])
    rounding = tuning.roundoffs * float(np.max(precision.error(0.0, y)))
    for residual in (False, True):
        if residual and y.shape != tokens.shape:
            continue
        z = y - zero - tokens if residual else y - zero
        if not np.max(np.abs(z)) > tuning.seen * rounding:
            continue
        for centred in (True, False):
            means = np.mean(tokens, axis=1, keepdims=True)
            lengths = np.linalg.norm(tokens - centred * means, axis=1)
            sums = lengths[:, None] * z
            missed = np.max(np.abs(sums[0] + sums[1] - sums[2]))
            if missed < tuning.off * np.max(np.abs(sums)) + rounding * np.sum(lengths):
                return NormedKind(residual, centred)
    return None


def find_normed_tokens(
    dim: int, kind: NormedKind, rng: np.random.Generator, tuning: PrenormTuning
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
    rungs = tuning.longest * tuning.apart ** np.arange(tuning.rungs)
    directions = rng.standard_normal((1 + tuning.refined, frame.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    zero, y = yield [
        Singles(np.zeros((1, dim)), phase="norm", purpose="pilot"),
        Singles(rungs[:, None] * (frame @ directions[0]), phase="norm", purpose="pilot"),
    ]
    lengths, z = _heads_of(rungs[:, None] * (frame @ directions[0]), y, zero, kind)
    bent = (z @ z[0]) / (z[0] @ z[0])
    rung = 1 + int(np.argmin(np.abs(bent[1:] - np.sqrt(1 / 2))))
    if bent[-1] > 1 - tuning.unbent:
        raise NotIdentifiable(
            "Tokens of all lengths are answered alike: the eps of the norm before the layer is 0, "
            "or nearly so, and no token is short when it is normalised.",
            determined={"c": zero[0]},
        )
    if not 0 < bent[rung] < 1:
        raise ModelMismatch(
            "Short tokens are not answered as a norm with an eps makes them: no length has half "
            "the effect of a long one."
        )
    eps = float(_eps(lengths[rung], lengths[0], bent[rung], dim))
    short = np.sqrt(eps * dim) * directions[1:] @ frame.T
    both = np.concatenate([short, tuning.longer * short])
    [y] = yield [Singles(both, phase="norm", purpose="pilot")]
    lengths, z = _heads_of(both, y, zero, kind)
    near, far = z[: tuning.refined], z[tuning.refined :]
    share = np.sum(far * near, axis=1) / np.sum(far * far, axis=1)
    found = _eps(lengths[: tuning.refined], lengths[tuning.refined :], share, dim)
    eps = float(np.mean(found))
    spread = float(np.std(found) / eps)
    means = tuning.mean * rng.standard_normal(frame.shape[1]) / np.sqrt(dim)
    precision = Precision.of_format([y, zero])
    means = kind.centred * np.ones((dim, 1)) * means
    # at half of the effect eps is off by four times what its share is, relatively
    whole = 4 * float(np.max(np.linalg.norm(y, axis=1) / np.linalg.norm(z, axis=1)))
    normed = NormedTokens(kind, eps, spread, whole, frame, means, precision)
    if normed.eps_error(0.0) > tuning.unlike:
        raise ModelMismatch(
            f"Short tokens of different directions are answered as with an eps that differs by "
            f"{normed.eps_error(0.0):.1e}: no LayerNorm or RMSNorm is before the layer."
        )
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

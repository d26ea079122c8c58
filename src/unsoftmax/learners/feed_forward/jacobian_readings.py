"""From differences of answers to a smooth layer: what a Jacobian says.

At base points x_i the Jacobian of F(x) = B φ(A x + a) + c (+ x) is Σ_j φ'(z_j(x_i)) B_j A_jᵀ (+ I),
and of gated neurons Σ_j B_j (φ'(t_j) z_j G_j + φ(t_j) A_j)ᵀ: each neuron has one or two rows. Less
its mean over the base points, along n directions, it is in a span of as many dimensions as there
are rows, whose members of rank one are the neurons (`rank_one_members`).

1. The span's basis, its members, and with them the rows' weights at all base points.
2. Whole rows: at a few base points the other directions are linear equations with known weights.
3. Activations, scales and biases from the weights (`neuron_curves`).
4. What is left of the Jacobian is x, if it is added, and a part for each neuron that was taken for
   its mirror image: φ(z) = z + φ(−z) of GELU, SiLU and softplus, σ(t) = 1 − σ(−t) of gates.
5. Deferred correction: a difference is a derivative but for what the layer itself says. That is
   taken off, and all of it is solved again, from where it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.feed_forward.found_neurons import ResidualPart, sides_of
from unsoftmax.learners.feed_forward.neuron_curves import CurveData
from unsoftmax.learners.feed_forward.rank_one_members import MatrixSpan, Members
from unsoftmax.models.arrays import TINY
from unsoftmax.models.feed_forward import FeedForward
from unsoftmax.models.neurons import ACTIVATIONS
from unsoftmax.probes import Array, Indices
from unsoftmax.refusals import Reason
from unsoftmax.solve.full_rank import solved

# Activations that weights tell apart: quick GELU is a SiLU of another scale, a sigmoid a tanh.
# Where weights are not yet known to 1e-5 the two GELUs are alike.
FAMILIES = ("gelu", "gelu_tanh", "silu", "softplus", "tanh")
GATE_FAMILIES = ("gelu", "gelu_tanh", "silu", "softplus", "sigmoid")
FAMILY_OF, GATE_FAMILY_OF = (
    {"quick_gelu": "silu", "sigmoid": "tanh"},
    {"quick_gelu": "silu", "tanh": "sigmoid"},
)
TWINS = ("gelu", "gelu_tanh")
# Those whose neurons may be mirrored at the cost of a linear part; of gates σ alone.
MIRRORED = ("gelu", "gelu_tanh", "silu", "softplus")
# z σ(1.702 z) is a SiLU of 1.702 z, divided by it.
QUICK = 1.702
# A value counts as in the span if it misses 1 by so many times (noise/least singular value)².
# Of coarse lengths noise is as much for all members, and more would let in what is none.
IN_SPAN, IN_COARSE_SPAN = 100.0, 10.0
# A gap: a singular value so many times the next one, which is below this share of the largest; and
# so many are beyond. Differences of step 1e-4 leave 5e-6, rows 1e-3 at least.
GAP, FLOOR, BEYOND = 30.0, 1e-4, 3
# Passes of deferred correction, at most: 1e-4, 1e-8, 1e-10, more where neurons are nearly alike.
# The last one changes parameters by more than this share of what the one before did.
PASSES, CHANGED = 10, 0.3
# Weights are not those of the activation if they miss its curve by more, and by so many times what
# most neurons do. A right neuron that hardly shows misses by as much. No activation suits where
# the best misses by more than this before any correction, or that behind all. Steps both ways are
# of coarse answers: of float32 ones 256 neurons leave 1.5e-4, and tanh-GELUs are 4.7e-4 off GELU.
UNLIKE, TIMES_UNLIKE = 1e-5, 1e3
NEARLY, SUITS, COARSELY_SUITS = 0.05, 1e-4, 2.5e-4
# Activations whose curves miss the weights of some neurons by no more than so many times the least
# may be either. Where they are alike one's sums are these times the other's: tanh z is 1 − 2e⁻²ᶻ
# far out.
ALIKE, SOME, TIMES = 10.0, 4, (0.5, 1.0, 2.0)
# Curves of saturated neurons may have no end: products of four numbers below this are finite.
ENDLESS = 1e75


@dataclass(frozen=True, slots=True)
class NormBefore:
    """What a norm before the layer makes of tokens, its eps known but for a factor ρ.

    Points t, |t|² < d, are asked as tokens t √(e/(1 − q)), q = |t|²/d, by a guess e of eps. With
    ρ = eps/e the layer sees n = t/√(ρ + (1 − ρ)q). Base points all have one q: what they see is t,
    but for a factor, which counts as part of A until ρ is known.
    """

    square: float
    """d, the square of the ball's radius."""
    share: float
    """q of base points."""
    ratio: float = 1.0
    """ρ."""

    def unit(self, q: Array | float) -> Array:
        """Return |t|/|n| where |t|² = q d."""
        return np.asarray(np.sqrt(self.ratio + (1 - self.ratio) * q))

    def seen(self, t: Array) -> Array:
        """Return n in units in which base points are what is seen of them."""
        q = np.sum(t * t, axis=-1, keepdims=True) / self.square
        return np.asarray(self.unit(self.share) / self.unit(q) * t)

    @property
    def outwards(self) -> float:
        """By how much less of a small step outwards is seen, beside other steps: ρ/(…) − 1."""
        return float(self.ratio / self.unit(self.share) ** 2) - 1

    def with_outwards(self, share: float) -> NormBefore:
        """Return the norm of which this share of a small step outwards is seen."""
        share = min(max(share, 1e-3), 1e3)
        return replace(self, ratio=self.share * share / max(self.share * share + 1 - share, TINY))


@dataclass(frozen=True, slots=True)
class JacobianReadings:
    """Differences of answers, divided by their step, and what they are differences of."""

    x: Array
    """Base points (X, d)."""
    y: Array
    """Their answers (X, p)."""
    ways: Array
    """Orthonormal directions (d, d), a row each."""
    step: float
    along: Array
    """Differences along the first n directions, (X, p, n)."""
    few: Indices
    """Base points at which the others are known, (K,)."""
    across: Array
    """Differences there along the other directions, (K, p, d − n)."""
    norm: NormBefore | None = None
    """Before the layer: the first directions are orthogonal to base points then."""
    central: bool = False
    """Whether steps were taken both ways."""
    added: ResidualPart | None = None
    """What x adds to all Jacobians, where answers are known but for a factor, or some."""

    def corrected(self, layer: FeedForward) -> JacobianReadings:
        """Return derivatives: differences, less what a layer says they are off by."""
        n = self.along.shape[2]
        along = self.along - self._curvature(layer, self.x, self.ways[:n])
        across = self.across - self._curvature(layer, self.x[self.few], self.ways[n:])
        return replace(self, along=along, across=across)

    def _curvature(self, layer: FeedForward, x: Array, ways: Array) -> Array:
        """Return what differences along directions miss derivatives by, (X, p, n)."""
        at, slopes = layer(x), derivatives(layer, x, ways)
        if self.norm is not None:
            slopes = slopes + self.norm.outwards * outwards(slopes, x, ways)
        found = -slopes
        for k, way in enumerate(ways):
            ahead = self._answers(layer, x + self.step * way)
            if self.central:
                behind = self._answers(layer, x - self.step * way)
                found[:, :, k] += (ahead - behind) / (2 * self.step)
            else:
                found[:, :, k] += (ahead - at) / self.step
        return found

    def missed(self, layer: FeedForward) -> float:
        """Return the largest miss of an answer at a base point, as a share of the largest one."""
        off = np.linalg.norm(self._answers(layer, self.x) - self.y, axis=1)
        return float(off.max() / np.linalg.norm(self.y, axis=1).max())

    def _answers(self, layer: FeedForward, x: Array) -> Array:
        return layer(x if self.norm is None else self.norm.seen(x))

    def with_eps(self, rows: Rows) -> JacobianReadings:
        """Return derivatives as a layer has them that sees all of a step outwards; ρ from them.

        D(I + δuuᵀ), u the direction of the base point, are those of the layer where what its rows
        do not explain is least: δ is one more unknown of their linear equations.
        """
        if self.norm is None:
            return self
        away = outwards(self.across, self.x[self.few], self.ways[self.along.shape[2] :])
        left = self._unexplained(rows, self.across), self._unexplained(rows, away)
        more = -float(np.sum(left[0] * left[1]) / max(float(np.sum(left[1] ** 2)), TINY))
        norm = self.norm.with_outwards(1 / (1 + more))
        return replace(self, across=self.across + more * away, norm=norm)

    def seeing(self, layer: FeedForward) -> FeedForward:
        """Return a layer of base points as one of what a norm before makes of them."""
        if self.norm is None:
            return layer
        unit = float(self.norm.unit(self.norm.share))
        A, b, B, gate = unit * layer.A, layer.b, layer.B, layer.gate
        if gate is not None:
            part = np.sqrt(unit)
            A, b, B, gate = A / part, b / part, B * part, (unit * gate[0], gate[1])
        return FeedForward(A, b, B, layer.c, layer.residual, None, layer.activation, gate)

    def _unexplained(self, rows: Rows, across: Array) -> Array:
        """Return what no further parts of rows make of derivatives along the other directions."""
        Q = np.linalg.qr(rows.equations(self.few))[0]
        centred = (across - across.mean(axis=0)).reshape(len(Q), -1)
        return np.asarray(centred - Q @ (Q.T @ centred))

    def noise(self, layer: FeedForward) -> float:
        """Return the standard deviation of a number of an answer, by what is beside the span.

        After a norm by what the other directions' equations leave, if that is more: all base points
        have one length, and what goes with the length is not beside the span.
        """
        rank, better = len(layer.b) * len(rows_of(layer)), self.corrected(layer)
        s = np.linalg.svd(better.centred, compute_uv=False)[rank:]
        free = (len(self.x) - 1 - rank) * (self.centred.shape[1] - rank)
        beside = float(np.linalg.norm(s) / np.sqrt(max(free, 1)))
        if self.norm is not None:
            rows = Rows.of(better, members_from(layer, better, span_of(better, rank)[0]))
            left = self._unexplained(rows, better.with_eps(rows).across)
            free = left.shape[1] * (left.shape[0] - self.y.shape[1] - rank)
            beside = max(beside, float(np.linalg.norm(left) / np.sqrt(max(free, 1))))
        return beside * self.step * float(np.sqrt(2.0 if self.central else 0.5))

    def disturbed(self, size: float, rng: np.random.Generator) -> JacobianReadings:
        """Return readings of answers that are off by drawn errors."""
        errors, each = size * rng.standard_normal(self.y.shape), size / self.step
        shared, each = (0.0, each / np.sqrt(2)) if self.central else (1 / self.step, each)
        along, across = (
            part + each * rng.standard_normal(part.shape) - shared * own[:, :, None]
            for part, own in ((self.along, errors), (self.across, errors[self.few]))
        )
        return replace(self, y=self.y + errors, along=along, across=across)

    @property
    def centred(self) -> Array:
        """Differences less their means, (X, p·n)."""
        return np.asarray((self.along - self.along.mean(axis=0)).reshape(len(self.x), -1))


def derivatives(layer: FeedForward, x: Array, ways: Array) -> Array:
    """Return derivatives along directions, (X, p, n)."""
    slopes, rows = row_slopes(layer, x), rows_of(layer)
    found = np.zeros((len(x), len(layer.c), len(ways)))
    for k, way in enumerate(ways):
        change = sum(slope * (row @ way) for slope, row in zip(slopes, rows, strict=True))
        found[:, :, k] = change @ layer.B.T
        if layer.residual:
            found[:, :, k] += way
    return found


def outwards(slopes: Array, x: Array, ways: Array) -> Array:
    """Return derivatives (X, p, n) along the parts of orthonormal directions away from 0.

    Points are in the directions' span, or orthogonal to it.
    """
    u = x @ ways.T / np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.einsum("xpn,xn->xp", slopes, u)[:, :, None] * u[:, None])


def rows_of(layer: FeedForward) -> tuple[Array, ...]:
    """Return the rows of neurons, (m, d) each: A, or G and A."""
    return (layer.A,) if layer.gate is None else (layer.gate[0], layer.A)


def row_slopes(layer: FeedForward, x: Array) -> tuple[Array, ...]:
    """Return what neurons answer per unit along each of their rows, (X, m)."""
    phi, z = ACTIVATIONS[layer.activation], x @ layer.A.T + layer.b
    if layer.gate is None:
        return (phi.slope(z),)
    t = x @ layer.gate[0].T + layer.gate[1]
    return phi.slope(t) * z, phi.of(t)


@dataclass(frozen=True, slots=True)
class Rows:
    """Members of the span of a Jacobian, and their weights at base points."""

    members: Members
    weights: Array
    """(X, m·q), centred."""

    @classmethod
    def of(cls, readings: JacobianReadings, members: Members) -> Rows:
        """Solve for the weights."""
        return cls(members, solved(members.rows.T, readings.centred.T).T)

    def equations(self, few: Indices) -> Array:
        """Return what the rows' further parts are multiplied with at base points, (K·p, m·q)."""
        m, q, _ = self.members.E.shape
        weights = self.weights[few] - self.weights[few].mean(axis=0)
        by = weights[:, None, :] * np.repeat(self.members.b.T, q, axis=1)
        return np.asarray(by.reshape(-1, m * q))


def span_of(readings: JacobianReadings, rank: int) -> tuple[MatrixSpan, float]:
    """Return the span of the centred differences, and what members may miss 1 by."""
    _, s, basis = np.linalg.svd(readings.centred, full_matrices=False)
    noise = s[rank] / s[rank - 1] if rank < len(s) else 0.0
    times = IN_SPAN if readings.added is None else IN_COARSE_SPAN
    return MatrixSpan(basis[:rank], readings.y.shape[1]), times * float(noise) ** 2


def members_from(layer: FeedForward, readings: JacobianReadings, span: MatrixSpan) -> Members:
    """Return the members of a span that are nearest to a layer's neurons."""
    return span.refined(_members_of(layer, readings)[0])[0]


def _members_of(layer: FeedForward, readings: JacobianReadings) -> tuple[Members, Array]:
    """Return a layer's neurons as members, and whole rows E of these, (m, q, d)."""
    b = layer.B.T / np.linalg.norm(layer.B, axis=0)[:, None]
    rows, first = rows_of(layer), readings.ways[: readings.along.shape[2]]
    Q, R = np.linalg.qr(np.stack([one @ first.T for one in rows], axis=1).transpose(0, 2, 1))
    E = np.linalg.solve(R.transpose(0, 2, 1), np.stack(rows, axis=1))
    return Members(b, Q.transpose(0, 2, 1)), np.asarray(E)


def rivals(layer: FeedForward, readings: JacobianReadings) -> tuple[str, ...]:
    """Return activations that suit the weights of some neurons about as well as a layer's own."""
    members, E = _members_of(layer, readings)
    rows = Rows.of(readings.corrected(layer), members)
    data = _curves_of(readings, rows, E).taken(slice(None, SOME))
    names = FAMILIES if layer.gate is None else GATE_FAMILIES
    own, starts = _start(layer, members.E, readings)[:SOME], []
    for times in TIMES:
        scale = own[:, :-1] + np.log(times) if layer.gate is None else times * own[:, :-1]
        starts.append(np.column_stack([scale, times * own[:, -1]]))
    fits = {name: [data.fitted(name, start).missed for start in starts] for name in names}
    missed = {name: float(np.max(np.min(fit, axis=0))) for name, fit in fits.items()}
    most = ALIKE * min(missed.values())
    return tuple(name for name in names if missed[name] <= most and name != layer.activation)


def _curves_of(readings: JacobianReadings, rows: Rows, E: Array) -> CurveData:
    """Return what the weights of whole rows E (m, q, d) are at base points."""
    xi = np.einsum("xd,jkd->jxk", readings.x, E, optimize=True)
    return CurveData(xi, rows.weights.reshape(-1, *E.shape[:2]).transpose(1, 0, 2))


def layer_from(
    readings: JacobianReadings, rows: Rows, names: tuple[str, ...], known: FeedForward | None = None
) -> tuple[FeedForward, Array]:
    """Return the layer that rows and their weights make, and what its curves miss, (m,).

    Its activation is one of ``names``; curves start at those of a layer that is nearly right.
    """
    m, q, n = rows.members.E.shape
    across = readings.across - readings.across.mean(axis=0)
    E = rows.members.E @ readings.ways[:n]
    if n < len(readings.ways):
        rest = solved(rows.equations(readings.few), across.reshape(-1, across.shape[2]))
        E = E + rest.reshape(m, q, -1) @ readings.ways[n:]
    data = _curves_of(readings, rows, E)
    if known is None:
        curves = data.chosen(names)
    else:
        start = _start(known, rows.members.E, readings)
        twins = known.activation in TWINS and known.activation in names
        both = [name for name in names if name in TWINS] if twins else [known.activation]
        fits = [data.refound(name, start) for name in both]
        curves = min(fits, key=lambda fit: fit.usual)
    if not curves.usual < NEARLY:
        raise Reason.NO_ACTIVATION_SUITS.error(activation=curves.activation, missed=curves.usual)
    A, gate = E[:, 0], None
    if q == 1:
        scale = np.exp(curves.theta[:, 0])
        A, b, unit = scale[:, None] * A, curves.theta[:, 1], curves.linear[:, 0] / scale
    else:
        A = np.einsum("jk,jkd->jd", curves.linear[:, :2], E)
        gate = np.einsum("jk,jkd->jd", curves.theta[:, :2], E), curves.theta[:, 2]
        unit = np.sqrt(np.linalg.norm(A, axis=1))
        A, b = A / unit[:, None], curves.linear[:, 2] / unit
    B = rows.members.b.T * unit
    if not np.max([np.max(np.abs(part)) for part in (A, b, B)]) < ENDLESS:
        raise Reason.NO_ACTIVATION_SUITS.error(
            activation=curves.activation, missed=float(np.max(curves.missed))
        )
    bare = FeedForward(A, b, B, np.zeros(len(B)), False, None, curves.activation, gate)
    return _closed(readings, bare), curves.missed


def _start(known: FeedForward, E: Array, readings: JacobianReadings) -> Array:
    """Return what curves of members with rows E are by a layer."""
    first = rows_of(known)[0] @ readings.ways[: E.shape[2]].T
    along = np.einsum("jkn,jn->jk", E, first)
    if known.gate is not None:
        return np.column_stack([along, known.gate[1]])
    # a row of the span has either sign
    return np.column_stack([np.log(np.abs(along)), known.b * np.sign(along[:, 0])])


def _closed(readings: JacobianReadings, bare: FeedForward) -> FeedForward:
    """Return the layer with its neurons on their sides, the residual and the constant."""
    linear, part = _beside(readings, bare), readings.added
    if part is not None:
        layer, shares = _on_sides_beside(bare, linear, part)
        y = readings.y - readings.x @ part.summed(shares).T
        return with_constant(layer, np.mean(y - layer(readings.x), axis=0))
    square = linear.shape[0] == linear.shape[1] and readings.norm is None
    added = (False, True) if square else (False,)
    closed = [_on_sides(bare, linear - one * np.eye(*linear.shape), one) for one in added]
    layer = min(closed, key=lambda pair: pair[1])[0]
    return with_constant(layer, np.mean(readings.y - layer(readings.x), axis=0))


def shares_of(readings: JacobianReadings, layer: FeedForward, part: ResidualPart) -> Array:
    """Return the shares of what x adds to Jacobians, beside a layer that is on its sides."""
    linear = _beside(readings.corrected(layer), layer)
    return np.asarray(part.along(linear) / part.along(part.matrix))


def _beside(readings: JacobianReadings, bare: FeedForward) -> Array:
    """Return what Jacobians are beside a layer's, (p, d)."""
    n = readings.along.shape[2]
    left = [
        np.mean(part - derivatives(bare, x, ways), axis=0)
        for part, x, ways in (
            (readings.along, readings.x, readings.ways[:n]),
            (readings.across, readings.x[readings.few], readings.ways[n:]),
        )
    ]
    return np.asarray(np.concatenate(left, axis=1) @ readings.ways)


def _on_sides_beside(
    bare: FeedForward, linear: Array, part: ResidualPart
) -> tuple[FeedForward, Array]:
    """Turn mirrored neurons round where x adds unknown shares; return these, too."""
    A, b, B, gate, name = bare.A, bare.b, bare.B, bare.gate, bare.activation
    shares = np.asarray(part.along(linear) / part.along(part.matrix))
    if name in (MIRRORED if gate is None else ("sigmoid",)):
        sides = sides_of(A, B.T, linear, np.inf, residual=part)
        sign, shares = np.where(sides.back, -1.0, 1.0), sides.added
        if gate is None:
            A, b = sign[:, None] * A, sign * b
        else:
            gate, B = (sign[:, None] * gate[0], sign * gate[1]), B * sign
    return FeedForward(A, b, B, np.zeros(len(B)), False, None, name, gate), shares


def with_constant(layer: FeedForward, c: Array) -> FeedForward:
    """Return a layer with another constant."""
    kept = layer.residual, None, layer.activation, layer.gate
    return FeedForward(layer.A, layer.b, layer.B, c, *kept)


def _on_sides(bare: FeedForward, linear: Array, residual: bool) -> tuple[FeedForward, float]:
    """Turn mirrored neurons round; return the layer, and the linear part that it leaves.

    A mirrored neuron leaves −B_j A_jᵀ, and half of that is left where a gate is a tanh.
    """
    A, b, B, gate, name = bare.A, bare.b, bare.B, bare.gate, bare.activation
    if name in (MIRRORED if gate is None else ("sigmoid",)):
        gram = (B.T @ B) * (A @ A.T)
        t = np.linalg.lstsq(gram, np.sum(B.T @ linear * A, axis=1), rcond=None)[0]
        sign = np.where(t < -0.5, -1.0, 1.0)
        if gate is None:
            linear = linear + (B * (sign < 0)) @ A
            A, b = sign[:, None] * A, sign * b
        elif np.median(np.abs(t + 0.5)) < np.median(np.minimum(np.abs(t), np.abs(t + 1))):
            linear = linear + B @ A / 2
            gate, B, name = (gate[0] / 2, gate[1] / 2), B / 2, "tanh"
        else:
            linear = linear + (B * (sign < 0)) @ A
            gate, B = (sign[:, None] * gate[0], sign * gate[1]), B * sign
    turned = FeedForward(A, b, B, np.zeros(len(B)), residual, None, name, gate)
    return turned, float(np.linalg.norm(linear))


def renamed(layer: FeedForward, name: str | None) -> FeedForward:
    """Return the same layer with an activation of the same family."""
    A, b, B, c, gate = layer.A, layer.b, layer.B, layer.c, layer.gate
    if name == "quick_gelu" and layer.activation == "silu":
        B = B * QUICK
        if gate is None:
            A, b = A / QUICK, b / QUICK
        else:
            gate = gate[0] / QUICK, gate[1] / QUICK
    elif name == "sigmoid" and layer.activation == "tanh" and gate is None:
        A, b, B, c = 2 * A, 2 * b, 2 * B, c - B.sum(axis=1)
    else:
        return layer
    return FeedForward(A, b, B, c, layer.residual, None, name, gate)


def rank_of(readings: JacobianReadings) -> int:
    """Return how many rows the centred differences show, 0 if there is no gap."""
    D = readings.centred
    if BEYOND < len(D) < D.shape[1]:
        # squares tell fast whether any value is small
        squares = np.linalg.eigvalsh(D @ D.T)
        if squares[BEYOND] > FLOOR**2 * squares[-1]:
            return 0
    s = _spectrum(readings)
    if len(s) <= BEYOND + 1 or not s[0]:
        return 0
    gaps = (s[:-1] > GAP * s[1:]) & (s[1:] < FLOOR * s[0])
    return 1 + int(np.argmax(gaps)) if np.any(gaps[: len(s) - BEYOND]) else 0


def fades(readings: JacobianReadings) -> bool:
    """Tell whether differences depend on each other, although there is no gap."""
    s = _spectrum(readings)
    return len(s) > BEYOND and bool(s[-BEYOND - 1] < FLOOR * s[0])


def _spectrum(readings: JacobianReadings) -> Array:
    s = np.linalg.svd(readings.centred, compute_uv=False)
    return np.asarray(s[: len(readings.x) - 1])


def corrected_layer(
    readings: JacobianReadings, layer: FeedForward, names: tuple[str, ...], passes: int = PASSES
) -> tuple[FeedForward, JacobianReadings]:
    """Solve again and again with differences that are corrected by the layer found so far.

    Where answers are known but for a factor, their lengths are coarse: what is missed is not
    judged before the layer is fitted.

    Raises
    ------
    ModelMismatch
        The weights of some neurons are not those of the activation.
    """
    missed, last = np.zeros(1), np.inf
    for done in range(passes):
        before, better = layer, readings.corrected(layer)
        span, _ = span_of(better, len(rows_of(layer)) * len(layer.b))
        rows = Rows.of(better, members_from(layer, better, span))
        better = better.with_eps(rows)
        readings = replace(readings, norm=better.norm)
        layer, missed = layer_from(better, rows, names if done < 2 else (layer.activation,), layer)
        change = float(np.linalg.norm(layer.A - before.A) / np.linalg.norm(layer.A))
        if change > CHANGED * last:
            break
        last = change
    if readings.added is not None:
        return layer, readings
    usual = float(np.quantile(missed, 0.25))
    if usual > (COARSELY_SUITS if readings.central else SUITS):
        raise Reason.NO_ACTIVATION_SUITS.error(activation=layer.activation, missed=usual)
    unlike = int(np.sum(missed > max(UNLIKE, TIMES_UNLIKE * usual)))
    if unlike:
        raise Reason.NEURONS_UNLIKE.error(
            unlike=unlike, count=len(missed), missed=np.max(missed), activation=layer.activation
        )
    return layer, readings

"""Windows: offsets at which one head answers while all others of its size are saturated.

A reduced answer at offset a is Σ_g (v_g·a) tanh(a·u_g / 2) (`learners.multi_head`). The window of
head h is d rows

    a_i = (T_i z_i + s_i n) / ‖u_h‖,    n = u_h/‖u_h‖,  z_i ⟂ n,  s_i about ±0.8:

head h's logit is s_i there, and moves by t·a_i·W_h q when the query token moves by t q. The z_i
are pushed away from the other heads' hyperplanes, so that moderate T_i saturate those; weaker
heads stay open and are subtracted. Choosing windows takes no queries.
"""

from dataclasses import dataclass, field

import numpy as np

from unsoftmax.measure.precision import Precision
from unsoftmax.probes import Array, Flags, Indices


class NoWindow(Exception):
    """No offset that is allowed is long enough for the logits of a window."""


# Sizes of head h's logits at its rows are drawn from here. They differ: equal ones would make the
# rows of heads with a common column space equal, and ranks look lower.
LOGITS = (0.5, 1.1)
# Logits of the other heads at least, more for heads of larger values: they add e⁻¹⁴ of what head
# h does, and two or three sweeps subtract it.
SATURATED = 14.0
# T at least: a head alone needs no other to be saturated, but rows that point apart.
LEAST = 8.0
# T at most: beyond, rounding of answers leaves no digits of the logit.
MOST = 1e8
# Heads with ‖u‖ below this share of head h's are left open: to saturate them takes a T that costs
# more digits than subtracting them.
STRONG = 0.1
# Distances of z from the other hyperplanes that are tried, in units of 1/√d. Large ones allow a
# small T but make rows nearly dependent; the window of the least error is kept.
MARGINS = (1.0, 0.6, 0.35, 0.2)
# Steps that push z to such a distance; many heads leave no place for some.
PUSHES = 60
# Size of a step, as a share of what is missing: larger ones overshoot where heads crowd.
PUSH = 0.4
# Random orthonormal bases that the z begin with.
BASES = 2
# Query tokens move so little that no other head's logit comes nearer to 0 than by a share of √d
# over this of its distance: saturated heads stay so.
OTHERS_MOVE = 12.0
# Logits beyond are lost: their gates are within 10⁻⁴ of ±1, with too few digits.
LARGEST_LOGIT = 9.0
# Where a logit is lost, the last estimate of its gate stands in, at most this: one that is ±1
# would let the sweeps stop at infinity.
LARGEST_GATE = 0.999


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one head: offsets (d, d), the step t of query tokens, and what it costs."""

    a: Array
    t: float
    error: float
    """Estimated error of ``W_h q`` that answers' rounding leaves."""


@dataclass(frozen=True, slots=True)
class ReducedError:
    """What reduced answers may be off by, and what errors of the v_h add.

    An answer's terms are as large as Σ_h |v_h·a|, what the query token of norm ``length`` adds at
    values of size ``scale``, and the constant ``c``. A logit is a difference of two scores
    x·u_h, each of which is rounded as its terms are large: a short offset is lost beside a long b.
    """

    precision: Precision
    length: float
    scale: float
    c: float
    v_error: float
    sizes: Array = field(default_factory=lambda: np.zeros(0))
    """‖u_h‖ of all heads (H,); rounding of scores is left out where they are not given."""

    def of_scores(self, a: Array, h: int) -> Array:
        """Return how far rounding inside the target moves logits of head h at offsets a (m, d)."""
        if not len(self.sizes):
            return np.zeros(len(a))
        tokens = np.linalg.norm(a, axis=1) + 2 * self.length
        return np.asarray(self.precision.unit * float(self.sizes[h]) * tokens)

    def of_readings(self, a: Array, v: Array, h: int) -> Array:
        """Return how far reduced answers in the window of head h may be off in all."""
        return np.asarray(self.of_answers(a, v) + np.abs(a @ v[h]) / 2 * self.of_scores(a, h))

    def of_answers(self, a: Array, v: Array) -> Array:
        """Return how far reduced answers at offsets a (m, d) may be off by themselves."""
        size = np.abs(a @ v.T).sum(axis=1) + self.length * self.scale + abs(self.c)
        return np.asarray(2 * self.precision.error(size))

    def of_logits(self, a: Array, v: Array, h: int, s: Array) -> Array:
        """Return how far all that may move logits s (m,) of head h at offsets a (m, d)."""
        answer = self.of_answers(a, v) + self.v_error * np.linalg.norm(a, axis=1)
        with np.errstate(divide="ignore"):
            of_answers = 2 * answer * np.cosh(s / 2) ** 2 / np.abs(a @ v[h])
        return np.asarray(of_answers + self.of_scores(a, h))


@dataclass(frozen=True, slots=True)
class OffsetRoom:
    """How far query tokens may move, and how long offsets may be from there."""

    step: float
    longest: float


def predicted(v: Array, u: Array, a: Array) -> Array:
    """Return Σ_h (v_h·a) tanh(a·u_h / 2) for v, u (H, d) and offsets a (n, d)."""
    return np.asarray(np.sum((a @ v.T) * np.tanh((a @ u.T) / 2), axis=1))


def choose_windows(
    heads: tuple[Array, Array], error: ReducedError, room: OffsetRoom, rng: np.random.Generator
) -> list[Window]:
    """Choose a window for every head of ``heads``, their u and v (H, d).

    Raises
    ------
    NoWindow
        Offsets are too short for the logits.
    """
    u, v = heads
    return [_WindowChoice(h, u, v, error, room).chosen(rng) for h in range(len(u))]


def with_shift(window: Window, h: int, shifted: Array, v: Array, error: ReducedError) -> Window:
    """Return the window of a head whose logits are a·u + s, for ``shifted`` (d + 1,), (u, s).

    Its rows are (a, 1), one more than dimensions, with the logits that they had without a shift;
    the last one is the first on the other side.
    """
    u, s = shifted[:-1], shifted[-1]
    size = float(np.linalg.norm(u))
    n = u / size
    first = window.a[:1]
    mirrored = 2 * (first @ n)[:, None] * n - first
    a = np.concatenate([window.a, mirrored]) - s / size * n
    rows = np.column_stack([a, np.ones(len(a))])
    own = error.of_logits(a, v, h, rows @ shifted)
    lost = float(np.linalg.norm(np.linalg.inv(rows) * own))
    return Window(rows, window.t, lost / window.t)


@dataclass(frozen=True, slots=True)
class _WindowChoice:
    """The choice of one head's window."""

    h: int
    u: Array
    v: Array
    error: ReducedError
    room: OffsetRoom

    @property
    def size(self) -> Array:
        """‖u_g‖ of all heads."""
        return np.asarray(np.linalg.norm(self.u, axis=1))

    @property
    def others(self) -> Indices:
        """The heads that have to be saturated."""
        size = self.size
        strong = size > STRONG * size[self.h]
        strong[self.h] = False
        return np.flatnonzero(strong)

    def chosen(self, rng: np.random.Generator) -> Window:
        """Try bases and margins; return the window of the least error."""
        d, n = self.u.shape[1], self.u[self.h] / self.size[self.h]
        avoided = self._avoided(n)
        s = rng.uniform(*LOGITS, d) * np.where(np.arange(d) % 2, 1.0, -1.0)
        s[-1] = -s[0]  # z_d = z_1: the two rows tell n
        tried = []
        for _ in range(BASES):
            basis, _ = np.linalg.qr(np.column_stack([n, rng.standard_normal((d, d - 1))]))
            for margin in MARGINS:
                z = self._pushed(basis[:, 1:].T, avoided, margin / np.sqrt(d))
                tried.append(self._window(np.concatenate([z, z[:1]]), s, n))
        return min(tried, key=lambda window: window.error)

    def _avoided(self, n: Array) -> Array:
        """Return the normals, across n, of hyperplanes that z must not be near.

        Those of the other heads, in units of the smaller of the two heads, and a·v_h = 0, where
        head h does not show.
        """
        size, v = self.size, self.v[self.h]
        others = self.others
        strong = self.u[others] / np.minimum(size[self.h], size[others])[:, None]
        normals = np.concatenate([strong, v[None] / np.linalg.norm(v)])
        return np.asarray(normals - np.outer(normals @ n, n))

    def _pushed(self, z: Array, normals: Array, margin: float) -> Array:
        """Push unit rows z until every ``|z·normal|`` is at least ``margin``, as far as it goes."""
        for _ in range(PUSHES):
            along = z @ normals.T
            short = np.maximum(0.0, margin - np.abs(along))
            if not np.any(short):
                break
            z = z + PUSH * (short * np.where(along < 0, -1.0, 1.0)) @ normals
            z /= np.linalg.norm(z, axis=1, keepdims=True)
        return z

    def _window(self, z: Array, s: Array, n: Array) -> Window:
        """Make the window of directions z (d, d) and logits s (d,)."""
        own, d = self.size[self.h], len(n)
        T, clear = self._saturating(z, s)
        a = (T[:, None] * z + s[:, None] * n) / own
        length = self.error.length
        t = min(self.room.step, length * min(np.sqrt(d) / np.sqrt(np.mean(T**2)), clear))
        try:
            inverse = np.linalg.inv(a)
        except np.linalg.LinAlgError:
            return Window(a, t, np.inf)
        error = np.linalg.norm(inverse * self.error.of_logits(a, self.v, self.h, s))
        with np.errstate(divide="ignore"):  # t is 0 beside a parallel head
            return Window(a, t, float(np.divide(error, t)))

    def _saturating(self, z: Array, s: Array) -> tuple[Array, float]:
        """Return T that saturate the others, and how far b may move, as a share of ‖b‖."""
        size, others = self.size, self.others
        along = np.abs(z @ self.u[others].T)
        weight = np.linalg.norm(self.v, axis=1)
        needed = SATURATED + np.log(np.maximum(1.0, weight[others] / weight[self.h]))
        with np.errstate(divide="ignore"):
            T = size[self.h] / np.min(along / needed, axis=1, initial=np.inf)
            nearest = np.sqrt(z.shape[1]) * np.min(along / size[others], initial=np.inf)
        longest = self.room.longest * size[self.h]
        if longest <= 2 * np.abs(s).max():
            raise NoWindow
        T = np.minimum(np.clip(T, LEAST, MOST), np.sqrt(longest**2 - np.square(s).max()))
        return T, float(nearest / OTHERS_MOVE)


@dataclass(frozen=True, slots=True)
class WindowedHeads:
    """Heads at one query token, u and v (H, d), and a window for each."""

    u: Array
    v: Array
    windows: list[Window]
    error: ReducedError
    shifted: bool = False
    """Whether logits are a·u + s: u, v and the windows' rows then have an entry more, for s."""

    @property
    def order(self) -> Indices:
        """Weak heads first: windows of others leave them open, so that they are read anyway."""
        return np.argsort(np.linalg.norm(self.u, axis=1))

    def logits(self, h: int, a: Array, y: Array, shifts: Array) -> tuple[Array, Flags]:
        """Return the logits of head h (m, k), and which are lost, from reduced answers y (m, k).

        They were asked at offsets a (m, d); ``shifts`` (H, d, k) is what every u_g moves by at
        the k query tokens.
        """
        values = self.v @ a.T
        gates = a @ shifts
        gates += (self.u @ a.T)[:, :, None]
        gates /= 2
        np.tanh(gates, out=gates)
        own = gates[h].copy()
        gates[h] = 0.0
        rest = np.einsum("gmk,gm->mk", gates, values)
        with np.errstate(invalid="ignore", divide="ignore"):
            s = 2 * np.arctanh((y - rest) / values[h][:, None])
        # the others' logits may still be wrong: where a gate seems past ±1, keep the last estimate
        lost = ~(np.abs(s) < LARGEST_LOGIT)
        s[lost] = 2 * np.arctanh(np.clip(own[lost], -LARGEST_GATE, LARGEST_GATE))
        return s, lost

"""As many queries again, at moderate logits: errors of W from 10⁻¹² to 10⁻¹⁴, or close heads.

Windows pay for saturating the other heads: their offsets are long and query tokens close
together, and where two heads are close no digits are left. Once all heads are nearly known, none
need be saturated. At query tokens b_j of an orthonormal basis all u_h = W_h b_j + w_h are solved
for together,

    F(a, b_j) − c − b_j·s = Σ_h (a·v_h) σ(a·u_h)

from H·d answers each by Newton's method, and a few more to check. The
offsets are picked among random ones of moderate logits by pivoted QR.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.heads_conclusion import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.models import MultiHead
from unsoftmax.probes import Array, Indices, Pairs

# -- The equations Σ_h (a·v_h) σ(a·u_h) = y for all u_h at once, solved by Newton's method.
#
# n ≥ H·d equations for H·d unknowns, each with the noise of its right side: the first ones are
# solved, by least squares where they are more than unknowns, the others check. Where two heads are
# close, the derivative along one direction is as small as their distance, and a second solution
# lies about as far away as they do from each other: the equations that check tell which is right.


# Newton's steps at most: they converge quadratically, but linearly where heads are close.
STEPS = 40
# They end when they are rounding, relative to u.
SETTLED = 1e-14
# Below this size, relative to u, they end as well once they no longer shrink.
FLOOR = 1e-9
# Systems of a larger condition number correct nothing.
SINGULAR = 1e9
# Steps of least squares are halved so often at most, until what is missed shrinks: far from the
# solution they may lead astray.
HALVINGS = 8
# No equation is missed by more, in units of its noise and of what others' pass on to it.
FITS = 30.0
# Power iterations that find the direction of the smallest singular value.
POWERS = 8
# Step along it, as a share of ‖u‖, from which the second derivative is taken.
BEND = 1e-3
# Another solution that is further away than this share of ‖u‖ is none.
FARTHEST_ROOT = 0.5
# Of two solutions one must fit the equations that check so many times better, or the distance
# between the two counts as error.
CLEARLY_BETTER = 10.0


@dataclass(frozen=True, slots=True)
class GateEquations:
    """Offsets a (n, d), right sides y (n,) and their noise (n,), and the values v (H, d)."""

    v: Array
    a: Array
    y: Array
    noise: Array
    checks: int = 0
    """How many of them, the last ones, check."""

    @property
    def solved(self) -> int:
        """How many are solved."""
        return len(self.y) - self.checks

    def of(self, u: Array) -> Array:
        """Return the left sides at u (H, d), in units of noise."""
        return np.asarray(
            np.sum((self.a @ self.v.T) * scipy.special.expit(self.a @ u.T), axis=1) / self.noise
        )

    def missed(self, u: Array) -> Array:
        """Return how far the equations are off, in units of noise."""
        return np.asarray(self.y / self.noise - self.of(u))

    def jacobian(self, u: Array) -> Array:
        """Return the derivatives by all u_h (n, H·d), in units of noise."""
        slope = (self.a @ self.v.T) / (4 * np.cosh(np.clip(self.a @ u.T, -700, 700) / 2) ** 2)
        slope /= self.noise[:, None]
        return np.asarray((slope[:, :, None] * self.a[:, None, :]).reshape(len(self.a), -1))


@dataclass(frozen=True, slots=True)
class GateSolution:
    """The u_h (H, d), and the inverse of the derivative there."""

    u: Array
    inverse: Array

    @property
    def errors(self) -> Array:
        """What unit noise makes of every u_h (H,)."""
        return np.asarray(np.linalg.norm(self.inverse.reshape(len(self.u), -1), axis=1))


def solve_gates(equations: GateEquations, u: Array) -> tuple[Array, Array] | None:
    """Return the u_h and their errors (H,), from an estimate; None where nothing is gained."""
    first = newton(equations, u)
    if first is None:
        return None
    start = _other_root(equations, first)
    second = None if start is None else newton(equations, start)
    first, second = (_fitting(equations, x) for x in (first, second))
    if first is None or second is None:
        only = second if first is None else first
        return None if only is None else (only.u, only.errors)
    checks = [
        float(np.linalg.norm(equations.missed(x.u)[equations.solved :])) for x in (first, second)
    ]
    if CLEARLY_BETTER * checks[1] < checks[0]:
        return second.u, second.errors
    errors = first.errors
    if checks[1] < CLEARLY_BETTER * checks[0]:
        errors = np.hypot(errors, np.linalg.norm(second.u - first.u, axis=1))
    return first.u, errors


def _fitting(equations: GateEquations, solution: GateSolution | None) -> GateSolution | None:
    """Return a solution unless it misses equations by more than their noise explains."""
    if solution is None:
        return None
    missed, passed_on = np.abs(equations.missed(solution.u)), np.zeros(len(equations.y))
    count = equations.solved
    # noise of the equations that were solved passes on to those that check
    checks = equations.jacobian(solution.u)[count:] @ solution.inverse
    passed_on[count:] = np.linalg.norm(checks, axis=1)
    return solution if np.all(missed <= FITS * np.hypot(1.0, passed_on)) else None


def _other_root(equations: GateEquations, at: GateSolution) -> Array | None:
    """Return where another solution may be, along the direction n that is hardest to see.

    σ_min t + ½ (w·F'')t² is 0 once more there, w being where n leads to.
    """
    w = np.ones(equations.solved)
    for _ in range(POWERS):
        w = at.inverse.T @ (at.inverse @ w)
        w /= np.linalg.norm(w)
    n = at.inverse @ w
    smallest = 1 / float(np.linalg.norm(n))
    n = smallest * n.reshape(at.u.shape)
    size = float(np.linalg.norm(at.u))
    h = BEND * size
    bend = equations.of(at.u + h * n) - 2 * equations.of(at.u) + equations.of(at.u - h * n)
    bent = float(w @ bend[: equations.solved]) / h**2
    if not 2 * smallest < FARTHEST_ROOT * abs(bent) * size:
        return None
    return np.asarray(at.u - 2 * smallest / bent * n)


def newton(equations: GateEquations, u: Array) -> GateSolution | None:
    """Return the solution that Newton's steps from u lead to, or None."""
    now, count = np.inf, equations.solved
    for _ in range(STEPS):
        J = equations.jacobian(u)[:count]
        try:
            inverse = np.linalg.inv(J) if count == u.size else np.linalg.pinv(J)
        except np.linalg.LinAlgError:
            return None
        with np.errstate(over="ignore"):
            if not np.linalg.norm(J) * np.linalg.norm(inverse) < SINGULAR:
                return None
        step = (inverse @ equations.missed(u)[:count]).reshape(u.shape)
        last, now = now, float(np.linalg.norm(step) / np.linalg.norm(u))
        if not now < 1:
            return None
        u = u + _damped(equations, u, step)
        if now < SETTLED or last <= now < FLOOR:
            return GateSolution(u, np.asarray(inverse))
    return None


def _damped(equations: GateEquations, u: Array, step: Array) -> Array:
    """Halve a step until what is missed shrinks, where equations are more than unknowns."""
    count = equations.solved
    if count == u.size:
        return step
    before = np.linalg.norm(equations.missed(u)[:count])
    for n in range(HALVINGS):
        shorter = np.asarray(step / 2**n)
        if np.linalg.norm(equations.missed(u + shorter)[:count]) < before:
            return shorter
    return step


class NoHeadsNearby(Exception):
    """Answers at moderate logits are not those of any heads near these."""


# Unknowns H·d of one system: beyond, solving d of them takes longer than asking.
LARGEST = 900
# Logits of one head at the random offsets, in turn: gates are steep there.
LOGITS = (1.0, 2.0, 3.0)
# Random offsets per equation, from which the best conditioned are picked.
CANDIDATES = 6
# The same for large systems.
FEWER = 2
# Unknowns from which on a system is large: picking takes time as their cube.
MANY = 200
# Query tokens are so long that the error of w is at most this share of W b: the estimate must be
# near enough for Newton's steps.
NEAR = 0.1
# Equations more than unknowns, for each query token: they tell which of two solutions is right.
CHECKS = 4
# Heads with errors larger than this share of them are solved for from more equations: beside the
# weakest direction of as many as unknowns, a first error of 10⁻³ is no small one.
ROUGH = 1e-4
# So many more, as a share of the unknowns.
SPARE = 0.5
# Estimated errors, which a few per cent of heads exceeded, are taken so many times.
SAFETY = 2.0


def polished(
    found: RecoveredHeads, reduced: ReducedAnswers, biases: bool, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Correct the heads where that gains something; notes say where it does not."""
    if found.model.H * found.model.dim > LARGEST or found.low_rank:
        reason = "their rank is low" if found.low_rank else f"H·d is more than {LARGEST}"
        return found.with_note(f"The heads were not polished: {reason}.")
    try:
        better = yield from corrected(found, reduced, biases, rng)
    except NoHeadsNearby:
        better = None
    return better or found.with_note("Polishing the heads gained nothing.")


def corrected(
    found: RecoveredHeads, reduced: ReducedAnswers, biases: bool, rng: np.random.Generator
) -> Asking[RecoveredHeads | None]:
    """Correct all W_h (and w_h), or return None where that gains nothing.

    Raises
    ------
    NoHeadsNearby
        Newton's steps come to no solution, or to one that misses the equations.
    """
    model = found.model
    if model.H * model.dim > LARGEST:
        return None
    P = token_frame(model.dim, biases, rng)
    free = np.flatnonzero(np.linalg.norm(model.W, axis=(1, 2)) + np.linalg.norm(model.w, axis=1))
    if not len(free):
        return None
    correction = _Correction(found, reduced, biases, free, P, _even(found, free))
    equations = yield from correction.ask(rng)
    better = correction.solved(equations)
    if better is None:
        raise NoHeadsNearby
    model, W_error = better
    if W_error.max() > found.errors["W"].max():
        return None
    errors = {**found.errors, "W": W_error, "w": W_error * correction.length * biases}
    return replace(found, model=model, errors=errors)


@dataclass(frozen=True, slots=True)
class _Correction:
    """One correction: all heads but W = 0, at query tokens length·P."""

    found: RecoveredHeads
    reduced: ReducedAnswers
    biases: bool
    free: Indices
    """The heads that have logits."""
    P: Array
    """Unit vectors of the query tokens (k, d)."""
    length: float

    @property
    def model(self) -> MultiHead:
        return self.found.model

    @property
    def tokens(self) -> Array:
        return self.length * self.P

    @property
    def u(self) -> Array:
        """The u_h of the model at all query tokens (k, H, d)."""
        return self.model.scores_of(self.tokens)[:, self.free]

    def ask(self, rng: np.random.Generator) -> Asking[list[GateEquations]]:
        """Ask for every query token; return its equations."""
        u, v, picked, probes = self.u, self.model.v[self.free], [], []
        for j, b in enumerate(self.tokens):
            a, noise = self._picked(u[j], b, rng)
            picked.append((a, noise))
            n, ones = np.arange(len(a)), np.ones(len(a))
            probes.append(Pairs(a, b[None], n, 0 * n, ones, ones, phase="polish", purpose="data"))
        answers = yield list(probes)
        constant = self.model.v.sum(axis=0) - v.sum(axis=0)  # of heads W = 0
        equations = []
        for b, y, (a, noise) in zip(self.tokens, answers, picked, strict=True):
            # Σ v_h is known better than all v_h
            rest = self.reduced.c + b @ self.reduced.s + a @ constant / 2
            equations.append(GateEquations(v, a, y - rest, noise, CHECKS))
        return equations

    def _picked(self, u: Array, b: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Pick offsets of query token b, at which all u_h (H, d) show; return their noise too."""
        (H, d), v = u.shape, self.model.v[self.free]
        count = H * d * (CANDIDATES if H * d <= MANY else FEWER)
        a = rng.standard_normal((count, d))
        n = np.arange(count)
        logits = np.array(LOGITS)[(n // H) % len(LOGITS)]
        a *= (logits / np.abs(np.sum(a * u[n % H], axis=1)))[:, None]
        longest = self.reduced.lengths.longest(float(np.linalg.norm(b)))
        a *= np.minimum(1.0, longest / np.linalg.norm(a, axis=1))[:, None]
        a = self.reduced.lengths.turned(a, b)
        beside = float(np.linalg.norm(b)) * self.reduced.scale + abs(self.reduced.c)
        size = np.abs(a @ v.T).sum(axis=1) + beside
        noise = self.reduced.precision.error(size)
        norms = np.linalg.norm(a, axis=1)
        of_scores = np.abs(a @ v.T) @ np.linalg.norm(u, axis=1) / 4
        of_scores *= self.reduced.precision.unit * (norms + 2 * float(np.linalg.norm(b)))
        # what a sum over all v_h is off by: these are not corrected
        noise = noise + of_scores + float(np.linalg.norm(self.found.errors["v"])) * norms
        rows = GateEquations(v, a, noise, noise).jacobian(u)
        _, pivots = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
        spare = SPARE if self.found.vague(ROUGH) else 0.0
        chosen = pivots[: int(H * d * (1 + spare)) + CHECKS]
        return a[chosen], noise[chosen]

    def solved(self, equations: list[GateEquations]) -> tuple[MultiHead, Array] | None:
        """Return the model with each head's estimated error, or None."""
        u, errors = self.u.copy(), np.zeros((len(self.P), len(self.free)))
        for j, one in enumerate(equations):
            solution = solve_gates(one, u[j])
            if solution is None:
                return None
            u[j], errors[j] = solution
        W, w = self.model.W.copy(), self.model.w.copy()
        if self.biases:
            w[self.free] = u.mean(axis=0)
        W[self.free] = u.transpose(1, 2, 0) @ np.linalg.pinv(self.P).T / self.length
        W_error = np.zeros(self.model.H)
        norms = np.linalg.norm(errors, axis=0)
        W_error[self.free] = SAFETY * norms / self.length
        return MultiHead(W, self.model.v, w, self.model.c), W_error


def _even(found: RecoveredHeads, free: Indices) -> float:
    """Return the norm of query tokens: no longer than the search's.

    Offsets of moderate logits should be as long as they are: neither hides the other then.
    """
    size = np.linalg.norm(found.model.W[free], axis=(1, 2)) / np.sqrt(found.model.dim)
    if not len(free) or not np.all(size > 0):
        return found.length
    even = np.sqrt(LOGITS[1] * np.sqrt(found.model.dim) / np.median(size))
    known = np.max(found.errors["w"][free] / size) / NEAR
    return float(min(found.length, max(even, known)))


def token_frame(d: int, biases: bool, rng: np.random.Generator) -> Array:
    """Return d unit vectors at right angles; with biases d + 1 whose sum is 0, evenly spread.

    The query token 0 would tell w alone, and nothing where w is 0.
    """
    if not biases:
        return np.linalg.qr(rng.standard_normal((d, d)))[0]
    Q, _ = np.linalg.qr(np.column_stack([np.ones(d + 1), rng.standard_normal((d + 1, d))]))
    return np.asarray(Q[:, 1:] * np.sqrt((d + 1) / d))

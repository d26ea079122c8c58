"""Attacks on one head behind coarse answers: by where rounding steps, and by least squares.

`EdgeHead`: rounding to multiples of q hides a value, and shows exactly where it passes (n − ½)q.
The answer to tX moves continuously with t, from 0 at t = 0. So t is bisected to where the rounded
answer steps, and there the value is known to as many digits as there are bisections:

    f([t x]) = t·x·v = (n − ½)q                                            x·v, and v
    f([t(a + b); tb]) = t(b·v) + t(a·v)·σ(t²·a·(W b)) = (n − ½)q           a·(W b), and W

A W of rank r is read as a skeleton (`solve.skeleton` has the algebra): of Z W Zᵀ k = r + 4 columns
and rows are enough. Asks 16d + (d² + d)·(bits + 5) queries at most, with k(2d − k) in place of d²
where the rank is known, and no token longer than ``radius``. Needs answers
that do not round to 0: offsets and query tokens lie near v's direction, so that ‖v‖·radius of a
little more than q is enough. Deterministic rounding alone is attacked like this; beside noise the
steps are blurred. It knows q, as whoever sees a few answers does. The head has no biases.

`FittedHead`: answers to random tokens and sequences, no token longer than ``radius``, are fitted
by least squares: v and c from single tokens, f([x]) = x·v + c, then everything from sequences,
beginning with W = 0 and a few random ones. The first fit then tells which of many more sequences
tell most, and all that was asked is fitted again. Beside errors that are independent from answer to
answer, as noise is and rounding nearly, it takes any number of answers.

Logits are linear in W and w, and softmax is monotonic: as with logistic regression there is hardly
a wrong minimum. What a question tells beside errors that are independent is its derivative by all
parameters; those that tell most of all of them together have the largest determinant of JᵀJ (a
D-optimal design, by Titterington's weights).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.settings import Configured
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array, Flags, Indices, Pairs, Probes, Sequences
from unsoftmax.protocol import Certificate, Evidence, Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory import counts

Stretched: TypeAlias = Callable[[Array], Probes]
"""Makes the probes of one family, each at a length t ≤ 1 of its own."""


@dataclass(frozen=True, slots=True)
class EdgeHead(Configured):
    """Learn a single head from answers that are rounded to multiples of ``step``."""

    dim: int
    step: float
    radius: float
    bits: int = 40
    """Bisections of every step."""
    seed: int = 0
    rank: int | None = None
    """Rank of W, where it is known."""

    revision: ClassVar[int] = 1
    octaves: ClassVar[int] = 4
    """Lengths of pairs that are tried, half as long each: long ones saturate the softmax."""

    @property
    def entries(self) -> int:
        """How many entries of Z W Zᵀ are read: those of k columns and rows, or all."""
        return self._crossing * (2 * self.dim - self._crossing)

    @property
    def _crossing(self) -> int:
        """The number k; four beyond the rank: a core of the rank alone may be ill-conditioned."""
        return self.dim if self.rank is None else min(self.dim, self.rank + 4)

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        d, bits, longest = self.dim, self.bits, self.radius * (1 + 1e-12)
        most = 16 * d + d * (1 + bits) + self.entries * (self.octaves + 1 + bits)
        formula = "16d + (d² + d)(bits + 5)"
        return Plan(None, most, 2 * most, 4 + 2 * bits, formula, longest, 2)

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, d, radius = np.random.default_rng(self.seed), self.dim, self.radius
        x = rng.standard_normal((16 * d, d))
        x *= radius / np.linalg.norm(x, axis=1, keepdims=True)
        [y] = yield [Sequences(x[:, None], phase="direction of v", purpose="data")]
        along = x.T @ y
        if not (size := float(np.linalg.norm(along))):
            raise Reason.TOKENS_ROUND_TO_0.error(radius=radius)
        along /= size
        frame, _ = np.linalg.qr(rng.standard_normal((d, d)))
        # on v's side: 1 alongᵀ + frame/2 is then never near singular. Nearer to v values are
        # larger, which coarser rounding shows; farther from it they span directions more evenly
        frame *= np.where(frame @ along < 0, -1.0, 1.0)[:, None]
        Z = along + frame / 2
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)

        def singles(t: Array) -> Probes:
            X = (t * radius)[:, None, None] * Z[:, None]
            return Sequences(X, phase="v", purpose="data")

        t, value, there = yield from self._steps(singles, np.ones(d))
        if not np.any(there):
            raise Reason.VALUES_ROUND_TO_0.error()
        v = np.linalg.lstsq(Z[there], (value / (t * radius))[there])[0]
        W = yield from self._scores(Z, np.asarray(v))
        return unproved(SingleHead(W, v))

    def _scores(self, Z: Array, v: Array) -> Asking[Array]:
        """Read Z W Zᵀ off steps, and W from it."""
        d, half = self.dim, self.radius / 2
        read = np.minimum(*np.indices((d, d))) < self._crossing
        i, j = np.nonzero(read)
        values = half * (Z @ v)

        def pairs(t: Array) -> Probes:
            return Pairs(Z, Z, i, j, t * half, t * half, phase="W", purpose="data")

        longest = yield from self._open_lengths(pairs, values[i], values[j])
        t, value, there = yield from self._steps(pairs, longest)
        with np.errstate(divide="ignore", invalid="ignore"):
            gates = (value / t - values[j]) / values[i]
            logits = np.log(gates / (1 - gates)) / (t * half) ** 2
        table, known = np.zeros((d, d)), np.zeros((d, d), dtype=bool)
        known[read] = there & np.isfinite(logits)
        table[known] = logits[known[read]]
        if self.rank is not None and (k := self._crossing) < d:
            # of the rank, from columns and rows; an entry that is not known counts as 0
            U, sizes, V = np.linalg.svd(table[:k, :k])
            r = max(1, min(self.rank, int(np.count_nonzero(sizes))))
            columns = np.linalg.solve(Z, table[:, :k] @ V[:r].T)
            rows = np.linalg.solve(Z, (U[:, :r].T @ table[:k]).T).T
            return np.asarray(columns @ (rows / np.maximum(sizes[:r], 1e-300)[:, None]))
        columns = np.linalg.solve(Z, table)
        for column, entries, seen in zip(columns.T, table.T, known.T, strict=True):
            if not np.all(seen):  # by the smallest column
                column[:] = np.linalg.lstsq(Z[seen], entries[seen])[0]
        return np.asarray(np.linalg.solve(Z, columns.T).T)

    def _open_lengths(self, pairs: Stretched, of_a: Array, of_b: Array) -> Asking[Array]:
        """Choose each pair's length: the longest at which the gate is seen to be open.

        It is open where its weight is 0.05 from 0 and 1, which answers of two steps show.
        """
        tried = [np.full(len(of_a), 0.5**n) for n in range(self.octaves)]
        answers = yield [pairs(t) for t in tried]
        chosen = tried[0].copy()
        for t, y in zip(tried[::-1], answers[::-1], strict=True):
            gates = (y / t - of_b) / of_a
            seen = np.abs(y) >= 2 * self.step
            chosen = np.where(seen & (np.abs(gates - 0.5) < 0.45), t, chosen)
        return chosen

    def _steps(self, probes: Stretched, longest: Array) -> Asking[tuple[Array, Array, Flags]]:
        """Find where rounded answers step to those of the longest: lengths and exact values there.

        And whether there is one: not where the longest answer rounds to 0.
        """
        [y] = yield [probes(longest)]
        sign, count = np.sign(y), np.rint(np.abs(y) / self.step)
        edge = (count - 0.5) * self.step
        low, high = np.zeros(len(longest)), longest
        for _ in range(self.bits):
            middle = (low + high) / 2
            [y] = yield [probes(middle)]
            beyond = sign * y > edge
            low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
        return (low + high) / 2, sign * edge, count > 0


@dataclass(frozen=True, slots=True)
class HeadFit:
    """Least squares for a head that answers X with y, by Levenberg's and Marquardt's steps.

    A step solves the normal equations, as many as there are parameters, of which there may be some
    thousand: a decomposition of the Jacobian, as SciPy's, would take ten times as long.
    """

    biases: bool
    X: Array
    y: Array

    def head(self, theta: Array) -> SingleHead:
        """Return the head of these parameters: v, with biases c and w, and W."""
        d = self.X.shape[2]
        v, c, w, W = np.split(theta, [d, d + 1, 2 * d + 1] if self.biases else [d, d, d])
        W = W.reshape(d, d)
        return SingleHead(W, v, w, float(c[0])) if self.biases else SingleHead(W, v)

    def parameters(self, head: SingleHead) -> Array:
        """Undo `head`, with biases."""
        return np.concatenate([head.v, [head.c], head.w, np.ravel(head.W)])

    def derivatives(self, theta: Array, X: Array) -> tuple[Array, Array]:
        """Return derivatives of the answers to X by all parameters, and the answers."""
        at = self.head(theta).linearise(X)
        by, names = at.vjp(np.ones((1, len(X)))).by, "vcwW" if self.biases else "vW"
        columns = [by[name][0].whole.reshape(len(X), -1) for name in names]
        return np.hstack(columns), at.value

    def misfit(self, theta: Array) -> float:
        """Return the sum of squares of what a head misses."""
        return float(np.sum((self.y - self.head(theta)(self.X)) ** 2))

    def information(self, theta: Array) -> tuple[Array, Array]:
        """Return JᵀJ and Jᵀ(what is missed), block by block: few derivatives are in memory."""
        normal, gradient = np.zeros((len(theta), len(theta))), np.zeros(len(theta))
        for start in range(0, len(self.y), 4096):
            part = slice(start, start + 4096)
            J, f = self.derivatives(theta, self.X[part])
            normal, gradient = normal + J.T @ J, gradient + J.T @ (self.y[part] - f)
        return normal, gradient

    def _equations(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return the same for parameters of unit effect, and their sizes."""
        normal, gradient = self.information(theta)
        effects = np.diag(normal)
        # a parameter on which answers hardly depend stays
        size = np.sqrt(effects + 1e-30 * np.max(effects))
        return normal / np.outer(size, size), gradient / size, size

    def deviations(self, theta: Array) -> SingleHead:
        """Return how far parameters may be off, as far as the misfit is independent errors."""
        normal, _, size = self._equations(theta)
        variance = self.misfit(theta) / max(1, len(self.y) - len(theta))
        inverse = np.linalg.inv(normal + 1e-12 * np.eye(len(normal)))
        return self.head(np.sqrt(np.maximum(np.diag(inverse), 0.0) * variance) / size)

    def fitted(self, theta: Array) -> Array:
        """Return the parameters that fit best, near some: to few of the answers, then to all."""
        few = 12 * len(theta)
        theta = HeadFit(self.biases, self.X[:few], self.y[:few])._descend(theta, 40)
        return self._descend(theta, 3)

    def _descend(self, theta: Array, steps: int) -> Array:
        misfit, damping = self.misfit(theta), 1e-3
        for _ in range(steps):
            normal, gradient, size = self._equations(theta)
            before = misfit
            while damping <= 1e9:  # beyond it no step fits better
                step = np.linalg.solve(normal + damping * np.eye(len(normal)), gradient) / size
                missed = self.misfit(theta + step)
                if missed < misfit:
                    theta, misfit = theta + step, missed
                    damping = max(damping / 10, 1e-12)
                    break
                damping *= 10
            if before - misfit <= 1e-10 * before:
                break
        return theta


@dataclass(frozen=True, slots=True)
class FittedHead(Configured):
    """Fit a single head to answers of any precision."""

    dim: int
    radius: float
    """The longest token that is asked."""
    queries: int
    """Questions asked."""
    biases: bool = False
    seed: int = 0

    revision: ClassVar[int] = 2
    tokens: ClassVar[int] = 5
    """Of a sequence. Measured with d = 8: those of 2 leave twice the error, of 16 a tenth less."""

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        n, longest = self.queries, self.radius * (1 + 1e-12)
        return Plan(n, n, self.tokens * n, 2, "as given", longest, self.tokens)

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, d = np.random.default_rng(self.seed), self.dim
        size = counts.single_head(d, biases=self.biases)  # so many numbers are fitted
        single = min(2 * (d + 1), max(1, self.queries // 4))
        rest = self.queries - single
        # what tells most is not known from a worse fit than one to two answers per parameter
        opening = min(rest, int(max(0.4 * rest, 2 * size)))
        # where logits are large, only answers to short query tokens tell anything
        x, X = self._tokens(rng, single), self._sequences(rng, opening, 0.6)
        singles = Sequences(x[:, None], phase="single tokens", purpose="data")
        of_x, y = yield [singles, Sequences(X, phase="sequences", purpose="data")]
        columns = np.column_stack([x, np.ones(single)]) if self.biases else x
        straight = np.asarray(np.linalg.lstsq(columns, of_x)[0], dtype=np.float64)
        if not np.any(straight[:d]):
            raise Reason.TOKENS_ALL_ALIKE.error()
        # a single token is a sequence of copies
        X = np.concatenate([X, np.repeat(x[:, None], self.tokens, axis=1)])
        fit = HeadFit(self.biases, X, np.append(y, of_x))
        theta = self._opened(fit, straight, size, rng)
        if (count := rest - opening) > 0:
            # one of eight is chosen, of as many as take a second and fit into memory
            afford = int(min(1e10 / size**2, 2e7 / size))
            more = self._sequences(rng, max(count, min(8 * count, afford)), 1.0)
            if len(more) > count:
                (known, _), (J, _) = fit.information(theta), fit.derivatives(theta, more)
                more = more[most_telling(J, known, count)]
            [y] = yield [Sequences(more, phase="most telling sequences", purpose="data")]
            # the first of all are fitted alone at first: these tell more
            fit = HeadFit(self.biases, np.concatenate([more, X]), np.append(y, fit.y))
            theta = fit.fitted(theta)
        return unproved(fit.head(theta))

    def _opened(self, fit: HeadFit, straight: Array, size: int, rng: np.random.Generator) -> Array:
        """Fit from several starts; return the fit that misses least."""
        d, found = self.dim, list[tuple[float, int, Array]]()
        # several would take too long beyond about 17 dimensions
        for k in range(1 if len(fit.y) * size**2 > 1e9 else 4):
            # logits of about 1
            W = d**0.5 / self.radius**2 * rng.standard_normal(d * d) * (k > 0)
            theta = fit.fitted(np.concatenate([straight, np.zeros(d * self.biases), W]))
            found.append((fit.misfit(theta), k, theta))
            found.sort()
            if k and found[1][0] <= 1.01 * found[0][0]:  # two agree
                break
        return found[0][2]

    def _tokens(self, rng: np.random.Generator, *count: int) -> Array:
        x = rng.standard_normal((*count, self.dim))
        return np.asarray(x * (self.radius / np.linalg.norm(x, axis=-1, keepdims=True)))

    def _sequences(self, rng: np.random.Generator, count: int, most: float) -> Array:
        """Draw sequences; query tokens have a tenth to ``most`` of the length of the others."""
        X = self._tokens(rng, count, self.tokens)
        X[:, -1] *= rng.uniform(0.1, most, (count, 1))
        return X


def most_telling(J: Array, known: Array, count: int) -> Indices:
    """Return which ``count`` rows of J tell most beside ``known``, which is JᵀJ of the others."""
    parameters, shares = J.shape[1], np.full(len(J), 1 / len(J))
    for _ in range(3):
        information = known + count * (J * shares[:, None]).T @ J
        inverse = np.linalg.pinv(information, hermitian=True)
        shares *= np.einsum("np,np->n", J @ inverse, J) / parameters
        shares /= np.sum(shares)
    return np.asarray(np.argsort(-shares, kind="stable")[:count], dtype=np.intp)


def unproved(head: SingleHead) -> Found[SingleHead]:
    """Return what an attack found, which neither bounds its errors nor asks a hold-out."""
    errors = dict.fromkeys("Wvwc", np.inf)
    evidence = Evidence.of(0, np.empty(0), np.empty(0))
    return Found(head, Certificate(errors, ("Nothing bounds the errors.",)), evidence)


@dataclass(frozen=True, slots=True)
class StretchedHead(FittedHead):
    """Learn a single head with biases from coarse answers, by ever longer tokens.

    Without biases longer tokens make rounding and noise negligible (`ApproximateHead`); with them
    the query bias w grows along, a·(W b + w), and saturates the softmax. Around the token b₀ at
    which W b₀ + w = 0 there is none: with every token moved by b₀ a head with biases is one
    without,

        f([a + b + b₀; b + b₀]) = b·v + c' + (a·v)·σ(a·(W b + r)),   r = W b₀ + w ≈ 0.

    b₀ is as good as W and w are known, offsets a may be as long as 1/‖error of r‖, and that error
    falls with the square of their length. So fits of all that was asked, with longer and longer
    offsets and shorter and shorter query tokens b, end near roundoff after a few, where answers are
    so many and so precise that the first lengths are enough to begin with: otherwise they end at
    about ten times the error of `FittedHead`, whose questions tell more. c is known no better than
    by its share: nothing makes it larger.
    """

    biases: bool = True

    rounds: ClassVar[int] = 9
    """Fits after the first one, each with its share of the questions."""

    def plan(self) -> Plan:
        """Say beforehand what it costs."""
        return replace(FittedHead.plan(self), rounds=2 + self.rounds, longest_token=None)

    def steps(self, checks: int) -> Steps[SingleHead]:
        """Ask, and return what was found; nothing is certified, and nothing checked."""
        rng, d = np.random.default_rng([self.seed, 1]), self.dim
        # two in five questions: the others begin with what it finds
        opening = FittedHead(d, self.radius, int(0.4 * self.queries), True, self.seed)
        found = yield from opening.steps(0)
        # it may be off by about 3 % of W
        head, zero = found.model, _zero(found.model, 0.03)
        X, y, misses, length = np.empty((0, 2, d)), np.empty(0), np.inf, self.radius / 2
        for _ in range(self.rounds):
            # ask around b₀ with offsets of this length, and fit all that was asked so far
            drawn = rng.standard_normal((2, (self.queries - opening.queries) // self.rounds, d))
            pairs = self._pairs(head, zero, length, drawn)
            [more] = yield [Sequences(pairs, phase="around W b + w = 0", purpose="data")]
            every, answers = np.concatenate([X, pairs]), np.append(y, more)
            fit = HeadFit(True, every - zero, answers)
            theta = fit.fitted(fit.parameters(_moved(head, zero)))
            fitted = _moved(fit.head(theta), -zero)
            W_off = float(np.linalg.norm(fit.deviations(theta).W))
            new_zero = _zero(fitted, W_off / (fitted.parameter_norm("W") or 1.0))
            fit = HeadFit(True, every - new_zero, answers)
            theta = fit.parameters(_moved(fitted, new_zero))
            missed = np.sqrt(fit.misfit(theta) / len(answers))
            if missed > 1.5 * misses:
                length /= 4
                continue
            head, zero, X, y, misses = fitted, new_zero, every, answers, missed
            # so long that what is not known of r moves logits by about 0.3; not 64 times longer at
            # once; and from 2²⁴ on W b₀ + w no longer cancels in the target's arithmetic
            grown = min(0.3 / float(np.max(fit.deviations(theta).w)), 2.0**6 * length)
            length = min(max(grown, self.radius / 2), 2.0**24 * self.radius)
        return unproved(head)

    def _pairs(self, head: SingleHead, zero: Array, length: float, drawn: Array) -> Array:
        """Make pairs around b₀ of what was drawn, with logits of about 2."""
        # a·W b of unit tokens is about ‖W‖/d
        size = max(head.parameter_norm("W"), 1 / self.radius) / self.dim
        short = min(2 / (length * size), self.radius)
        a, b = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
        a, b = length * a, short * b
        # where W is not known well enough to cancel w, offsets are short
        left = head.W @ zero + head.w
        along = left / (float(np.linalg.norm(left)) or 1.0)
        open_at = float(np.linalg.norm(left)) * length / 2
        a -= (1 - 1 / max(1.0, open_at)) * np.outer(a @ along, along)
        return np.stack([a + b + zero, b + zero], axis=1)


def _zero(head: SingleHead, share: float) -> Array:
    """Return b₀, in the directions in which W is known but for a share of its size.

    Singular values below five times their error are not divided by.
    """
    rcond = min(max(5 * share, 1e-12), 0.5)
    return np.asarray(-np.linalg.lstsq(head.W, head.w, rcond=rcond)[0])


def _moved(head: SingleHead, zero: Array) -> SingleHead:
    """Return the head that answers tokens as this one does those moved by ``zero``."""
    return SingleHead(head.W, head.v, head.W @ zero + head.w, head.c + float(zero @ head.v))

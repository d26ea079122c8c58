"""Members of rank one of a span of matrices, all at once.

Matrices b_j ⊗ e, e in a row space of q dimensions, j = 1 … m, span a space of q·m dimensions of
matrices (p, n); an orthonormal basis of that space is given. With P the projection on it,

    v(b, E) = Σ_k ‖P(b ⊗ e_k)‖²/q ≤ 1

for a unit vector b and q orthonormal rows e_k; it is 1 at members alone. Power steps raise it:
b ← Σ_k (P(b ⊗ e_k)) e_k, then E ← (P(b ⊗ e_k))ᵀ b, made orthonormal (Kileel and Pereira,
arXiv 1912.04007, for matrices). They start at random, hundreds at once, so that a step is two
products of matrices; Newton's steps end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from unsoftmax.probes import Array, Flags, Indices

# Power steps at a time, after which members are taken out; and how often.
STEPS, ROUNDS = 15, 24
# Starts for each member that is missing, and more; and how often new ones are drawn.
STARTS, MORE_STARTS, DRAWS = 1.4, 8, 12
# Values from which Newton's steps converge, as a rule.
NEAR = 0.97
# Newton's steps, at most: each squares what is missing, and one below this is the last.
NEWTON, CLOSE = 5, 1e-7
# A start is at a member where its last step raised the value by less than this share of what a
# member may miss 1 by. Larger: in a coarse span starts pass for members on their way.
SETTLED = 0.01
# Keeps their equations solvable where two members are alike.
RIDGE = 1e-13
# So many members say how many rows each has.
FEW = 4
# A row beside such a b is in the space if so much of it is.
ROW = 0.99
# Members are the same where b's are as parallel as this.
SAME = 1e-2


class Members(NamedTuple):
    """Vectors b (m, p) of norm 1, and orthonormal rows E (m, q, n)."""

    b: Array
    E: Array

    @property
    def rows(self) -> Array:
        """All b_j ⊗ e_k, (m·q, p·n)."""
        m, q, n = self.E.shape
        return _outer(self.b, self.E).reshape(m * q, self.b.shape[1] * n)

    def taken(self, which: Flags | Indices) -> Members:
        """Return some of them."""
        return Members(self.b[which], self.E[which])

    def lacks(self, other: Members) -> Flags:
        """Tell which of others are not alike to one of these, nor to one before them."""
        both, known = self.beside(other), len(self.b)
        alike = np.abs(both.b @ other.b.T) > 1 - SAME
        if self.E.shape[1] == 1:
            alike &= np.abs(both.E[:, 0] @ other.E[:, 0].T) > 1 - SAME
        new = np.ones(len(both.b), dtype=bool)
        for k, one in enumerate(alike.T, start=known):
            new[k] = not np.any(one[:k] & new[:k])
        return new[known:]

    def beside(self, other: Members) -> Members:
        """Return these and others."""
        return Members(np.vstack([self.b, other.b]), np.concatenate([self.E, other.E]))


def _outer(b: Array, E: Array) -> Array:
    """Return b_j ⊗ e_k, (m, q, p, n)."""
    return np.asarray(b[:, None, :, None] * E[:, :, None, :])


def _orthonormal(E: Array) -> Array:
    """Return orthonormal rows of the same span."""
    E = E.copy()
    for k in range(E.shape[1]):
        for before in range(k):
            E[:, k] -= np.sum(E[:, k] * E[:, before], axis=1, keepdims=True) * E[:, before]
        E[:, k] /= np.linalg.norm(E[:, k], axis=1, keepdims=True)
    return E


@dataclass(frozen=True)
class MatrixSpan:
    """A space of matrices (p, n) by an orthonormal basis (r, p·n)."""

    basis: Array
    p: int

    @cached_property
    def blocks(self) -> Array:
        """P's blocks (n, n, p, p): Newton's equations are sums of them, whatever r is."""
        n = self.basis.shape[1] // self.p
        P = (self.basis.T @ self.basis).reshape(self.p, n, self.p, n)
        return np.ascontiguousarray(P.transpose(1, 3, 0, 2))

    def projected(self, one: Members) -> Array:
        """Return P(b_j ⊗ e_k), (m, q, p, n)."""
        m, q, n = one.E.shape
        return np.asarray((one.rows @ self.basis.T) @ self.basis).reshape(m, q, self.p, n)

    def values(self, one: Members) -> Array:
        """Return v (m,): 1 for members."""
        m, q, _ = one.E.shape
        return np.asarray(np.sum((one.rows @ self.basis.T) ** 2, axis=1).reshape(m, q).mean(axis=1))

    def raised(self, one: Members, steps: int) -> Members:
        """Take power steps."""
        for _ in range(steps):
            W = self.projected(one)
            b = np.einsum("jkpn,jkn->jp", W, one.E)
            b /= np.linalg.norm(b, axis=1, keepdims=True)
            one = Members(b, _orthonormal(np.einsum("jkpn,jp->jkn", W, b)))
        return one

    def refined(self, one: Members) -> tuple[Members, Array]:
        """Take Newton's steps on b ⊗ e_k − P(b ⊗ e_k) = 0; tell what the last ones gained."""
        b, E, gained = one.b.copy(), one.E.copy(), np.zeros(len(one.b))
        moving = np.arange(len(b))
        for _ in range(NEWTON):
            steps = [self._newton(part) for part in _parts(Members(b[moving], E[moving]))]
            if not steps:
                break
            parts = map(np.concatenate, zip(*steps, strict=True))
            b[moving], E[moving], gained[moving], change = parts
            moving = moving[change > CLOSE]
        return Members(b, E), gained

    def _newton(self, one: Members) -> tuple[Array, Array, Array, Array]:
        """Take a step; return what it raised values by, and its largest number, too."""
        m, q, n = one.E.shape
        p, by_rows = self.p, self.blocks.reshape(n * n, self.p**2)
        miss = _outer(one.b, one.E) - self.projected(one)
        by_b = np.einsum("jkpn,jkn->jp", miss, one.E)
        by_E = np.einsum("jkpn,jp->jkn", miss, one.b).reshape(m, q * n)
        H = np.zeros((m, p + q * n, p + q * n))
        within = np.einsum("jkn,jkl->jnl", one.E, one.E)
        # scale and turns within the rows change nothing: b bᵀ and what is within fix them
        H[:, :p, :p] = one.b[:, :, None] * one.b[:, None]
        H[:, :p, :p] -= (within.reshape(m, -1) @ by_rows).reshape(m, p, p)
        H[:, range(p), range(p)] += q
        seen = self._along(one.b)
        crossed = np.einsum("jkn,jnlp->jkpl", one.E, seen, optimize=True)
        among = np.eye(n) - np.einsum("jnlp,jp->jnl", seen, one.b)
        for k in range(q):
            own = slice(p + k * n, p + (k + 1) * n)
            cross = one.b[:, :, None] * one.E[:, k, None] - crossed[:, k]
            H[:, :p, own], H[:, own, :p] = cross, cross.transpose(0, 2, 1)
            H[:, own, own] = among + within
        H[:, range(p + q * n), range(p + q * n)] += RIDGE
        slope = np.hstack([by_b, by_E])
        change = -np.linalg.solve(H, slope[:, :, None])[:, :, 0]
        b, E = one.b + change[:, :p], one.E + change[:, p:].reshape(m, q, n)
        b /= np.linalg.norm(b, axis=1, keepdims=True)
        gained = -np.sum(slope * change, axis=1) / q
        return b, _orthonormal(E), gained, np.max(np.abs(change), axis=1)

    def without(self, known: Members) -> MatrixSpan:
        """Return what of the space is orthogonal to known members."""
        inside = known.rows @ self.basis.T
        Q = np.linalg.qr(inside.T, mode="complete")[0]
        return MatrixSpan(Q[:, len(inside) :].T @ self.basis, self.p)

    def multiplicities(self, one: Members) -> Array:
        """Return how many dimensions of rows each b is a member with."""
        return np.asarray(np.sum(np.linalg.eigvalsh(self._shares(one)) > ROW, axis=1))

    def widened(self, one: Members, q: int) -> Members:
        """Return the same b with the q rows that are most in the space."""
        _, vectors = np.linalg.eigh(self._shares(one))
        return Members(one.b, vectors[:, :, -q:].transpose(0, 2, 1))

    def _shares(self, one: Members) -> Array:
        """Return how much of b ⊗ e is in the space, as quadratic forms of e, (m, n, n)."""
        return np.asarray(np.einsum("jnlp,jp->jnl", self._along(one.b), one.b))

    def _along(self, b: Array) -> Array:
        """Return P(b_j ⊗ e_l), rows n of it, for all l, (m, n, l, p)."""
        n = len(self.blocks)
        seen = b @ self.blocks.reshape(-1, self.p).T
        return np.asarray(seen).reshape(len(b), n, n, self.p)


def _parts(one: Members) -> list[Members]:
    """Return few at a time: equations of all would take too much memory."""
    size = max(1, 2**22 // (one.b.shape[1] + one.E.shape[1] * one.E.shape[2]) ** 2)
    return [Members(one.b[k : k + size], one.E[k : k + size]) for k in range(0, len(one.b), size)]


def find_members(span: MatrixSpan, tolerance: float, rng: np.random.Generator) -> Members:
    """Find all members that starts lead to; how many there are says who asks.

    Rows are one each, or two where a few that are found first have two.
    """
    r, n = len(span.basis), span.basis.shape[1] // span.p
    known = Members(np.zeros((0, span.p)), np.zeros((0, 1, n)))
    for _ in range(DRAWS):
        q = known.E.shape[1]
        missing = r // q - len(known.b)
        if missing <= 0:
            break
        count = int(STARTS * missing) + MORE_STARTS
        b, E = rng.standard_normal((count, span.p)), rng.standard_normal((count, q, n))
        tried = Members(b / np.linalg.norm(b, axis=1, keepdims=True), _orthonormal(E))
        if len(known.b):
            tried = span.without(known).raised(tried, STEPS)
        for _ in range(ROUNDS):
            tried = span.raised(tried, STEPS)
            tried = tried.taken(known.lacks(tried))
            near = np.flatnonzero(span.values(tried) > NEAR)
            ended, gained = span.refined(tried.taken(near))
            tried.b[near], tried.E[near] = ended
            done = (span.values(ended) > 1 - tolerance) & (gained < SETTLED * tolerance)
            new = ended.taken(done)
            known = known.beside(new.taken(known.lacks(new)))
            tried = tried.taken(np.delete(np.arange(len(tried.b)), near[done]))
            if q == 1 and len(known.b) >= FEW and np.median(span.multiplicities(known)) == 2:
                q, tried = 2, span.widened(tried, 2)
                known, _ = span.refined(span.widened(known, 2))
                known = known.taken(Members(*(x[:0] for x in known)).lacks(known))
            if len(known.b) >= r // q or not len(tried.b):
                break
    return known

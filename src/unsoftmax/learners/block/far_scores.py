"""Every head's [W_h w_h] beside far query tokens of one coordinate, and maps in all coordinates.

With the M_h known, z = Σ_h M_h Σ_i p_h,i (κ_i − b) is linear in the weights of n keys, and

    log(p_h,i/p_h,0) = (κ_i − b)·(W_h b + w_h),    p_h,0 = 1 − Σ_i p_h,i.

Keys are on the sphere, around b, so far from it that logits are moderate. Some query tokens b_j =
norm₁(R e_j) are asked with keys in all directions, which gives W_h b + w_h, so the column spaces;
the others with as many as these need. The b_j, and norm₁(−R e_1) after an RMSNorm, are corners that
every b is an affine combination of. (r + 2)⌈k/n⌉ + (k − r − 1)⌈(r + 1)/n⌉ queries and k + 1 far
tokens, n = 0.85(d − s − 1)/H at most, fewer where heads share a range.

The rows of M_h that S hid follow by least squares from the same answers: weights are known then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from unsoftmax.learners.attention_layer.key_answers import HeadScores
from unsoftmax.learners.attention_layer.score_reading import ranks_of
from unsoftmax.learners.attention_layer.value_answers import HeadMaps
from unsoftmax.learners.block.far_tokens import FarTokens
from unsoftmax.learners.block.offset_fits import GatedMaps
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.token_map import with_errors
from unsoftmax.models.arrays import TINY, UNIT
from unsoftmax.probes import Array, Flags, Indices, Purpose, Sequences
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost

# Equations for each weight that is solved for, at least 1: fewer keys leave smaller errors.
_EQUATIONS = 1 / 0.85
# What heads make of keys does not tell weights apart where its condition is larger. Smaller: more
# questions for heads whose ranges are merely near.
_DEPENDENT = 1e5
# Logits of keys, as root mean square of the strongest head; keys are no farther from b than this
# share of √d.
_LOGITS, _FARTHEST = 1.5, 1.2
# Weights below this are asked again with keys half as far from b, so often.
_LEAST_WEIGHT, _AGAIN = 1e-5, 6
# Query tokens with keys in all directions beyond the expected rank, whose singular values show it.
_SPARE = 2


def cost(dim: int) -> Cost:
    """Bound the reading of scores: one key at a time, all of them again and again."""
    asked, again = (dim + 1) * dim, 1 + _AGAIN
    steps = 3 + int(np.log2(dim + 1))
    tokens = Cost.of(dim + 1, rounds=steps * again)
    return tokens + Cost.of(again * asked, tokens=2)


class Weighed(NamedTuple):
    """What keys weigh in every answer."""

    keys: Array
    """(Q, H, n)."""
    logits: Array
    """(Q, H, n); NaN where a weight is not positive."""

    @property
    def small(self) -> Indices:
        """Which answers have a weight too small to be read."""
        least = np.minimum(self.keys.min(axis=2), 1 - self.keys.sum(axis=2)).min(axis=1)
        return np.flatnonzero(~(least > _LEAST_WEIGHT))


@dataclass(frozen=True, slots=True)
class FarScores:
    """Answers to keys around far tokens of one coordinate.

    Attributes
    ----------
    tokens : ndarray (T, d)
        b, those with keys in all directions first.
    shown : ndarray (T, d)
        Which coordinates of answers they do not hide.
    token : ndarray (Q,)
    away : ndarray (Q, n, d)
        κ − b.
    y : ndarray (Q, d)
    ranks : tuple of int
        Of all [W_h w_h]; none while they are not known.
    """

    tokens: Array
    shown: Flags
    token: Indices
    away: Array
    y: Array
    ranks: tuple[int, ...] = ()

    def weights(self, maps: Array, seen: Indices) -> Weighed:
        """Decode all answers by maps (H, m, d) in the coordinates ``seen``."""
        (Q, n, _), H = self.away.shape, len(maps)
        keys = np.zeros((Q, H, n))
        for q, away in enumerate(self.away):
            own = self.shown[self.token[q], seen]
            # one by one: together they are gigabytes
            columns = (maps @ away.T).swapaxes(0, 1).reshape(len(seen), H * n)
            keys[q] = _solved(columns[own], self.y[q, seen][own]).reshape(H, n)
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(keys / (1 - keys.sum(axis=2, keepdims=True)))
        return Weighed(keys, np.where(np.isfinite(logits), logits, np.nan))

    def _of_token(self, weighed: Weighed, token: int) -> tuple[Array, Array]:
        """Return κ − b of all keys beside a token, (n, d), and their logits (n, H)."""
        own = np.flatnonzero(self.token == token)
        logits = weighed.logits[own].swapaxes(1, 2)
        return self.away[own].reshape(-1, self.away.shape[2]), logits.reshape(-1, logits.shape[2])

    def whole(self, weighed: Weighed, tokens: Indices, frame: Array) -> Array:
        """Return W_h b + w_h of tokens with keys in all directions, in the frame, (H, k, T)."""
        columns = []
        for token in tokens:
            away, logits = self._of_token(weighed, token)
            columns.append(_solved(away @ frame.T, logits).T)
        return np.stack(columns, axis=2)

    def within(self, weighed: Weighed, tokens: Indices, spaces: list[Array]) -> list[Array]:
        """Return C_hᵀ(W_h b + w_h) of tokens, (r_h, len(tokens)) each, C_h being ``spaces``."""
        parts = [np.zeros((C.shape[1], len(tokens))) for C in spaces]
        for t, token in enumerate(tokens):
            away, logits = self._of_token(weighed, token)
            for part, C, own in zip(parts, spaces, logits.T, strict=True):
                part[:, t] = _solved(away @ C, own)
        return parts

    def columns(self, maps: Array, gates: GatedMaps) -> Array:
        """Return W_h b + w_h of all tokens so far, in the frame, (H, k, T)."""
        weighed = self.weights(maps, gates.shown)
        return self.whole(weighed, np.arange(len(self.tokens)), gates.frame)

    def solved(self, maps: Array, gates: GatedMaps, whole: int) -> tuple[HeadScores, Weighed]:
        """Compute all [W_h w_h]; ``whole`` tokens were asked with keys in all directions."""
        weighed, frame = self.weights(maps, gates.shown), gates.frame
        first, rest = np.arange(whole), np.arange(whole, len(self.tokens))
        columns = self.whole(weighed, first, frame)
        spaces = [
            frame.T @ np.linalg.svd(part, full_matrices=False)[0][:, :rank]
            for part, rank in zip(columns, self.ranks, strict=True)
        ]
        others = self.within(weighed, rest, spaces)
        corners = np.column_stack([self.tokens @ frame.T, np.ones(len(self.tokens))])
        rows = []
        for C, own, further in zip(spaces, columns, others, strict=True):
            seen = np.hstack([C.T @ frame.T @ own, further])
            solved = np.linalg.solve(corners, seen.T).T
            rows.append(np.column_stack([solved[:, :-1] @ frame, solved[:, -1]]))
        return HeadScores(spaces, rows), weighed

    def whole_maps(
        self, maps: Array, ranks: tuple[int, ...], gates: GatedMaps, weighed: Weighed
    ) -> HeadMaps:
        """Return all M_h = U_h V_h in all coordinates, their ranks cut."""
        O, V = [], []  # noqa: E741 - the projections' own names
        for M, rank in zip(maps, ranks, strict=True):
            left, singular, right = np.linalg.svd(M, full_matrices=False)
            # as many as are shown: hidden rows may be of other directions
            rows = singular[:rank, None] * right[:rank] if rank < len(M) else gates.frame
            O.append(np.zeros((M.shape[1], len(rows))))
            O[-1][gates.shown] = left[:, :rank] if rank < len(M) else M @ gates.frame.T
            V.append(rows)
        pooled = np.einsum("qhn,qnd->hqd", weighed.keys, self.away)
        design = np.hstack([own @ rows.T for own, rows in zip(pooled, V, strict=True)])
        cuts = np.cumsum([len(rows) for rows in V])[:-1]
        for i in np.setdiff1d(np.arange(len(O[0])), gates.shown):
            seen = self.shown[self.token, i]
            row = _solved(design[seen], self.y[seen, i])
            for own, part in zip(O, np.split(row, cuts), strict=True):
                own[i] = part
        return HeadMaps(O, V)


@dataclass(frozen=True, slots=True)
class FarScoreReading:
    """What scores are read with."""

    tokens: FarTokens
    gates: GatedMaps
    maps: Array
    ranks: tuple[int, ...]
    """Of the maps."""
    rng: np.random.Generator

    def run(self) -> Asking[tuple[FarScores, int]]:
        """Ask all; return the answers, and how many tokens had keys in all directions."""
        d, k = self.tokens.dim, self.tokens.rank
        corners = np.eye(d) if self.tokens.centred else np.vstack([np.eye(d), -np.eye(d)[:1]])
        corners = corners[self.rng.permutation(len(corners))]
        whole = min(max(self.ranks) + _SPARE, k + 1)
        answers = None
        while True:
            first = corners[0 if answers is None else len(answers.tokens) : whole]
            answers = yield from self._asked(first, k, "column spaces", answers)
            columns = answers.columns(self.maps, self.gates)
            moved = self._redrawn(answers) - columns
            ranks = ranks_of(columns, moved, whole - _SPARE)
            if whole == k + 1 or max(ranks) < whole:
                break
            whole = min(2 * whole, k + 1)
        if whole <= k:
            enough = min(max(ranks) + 1, k)
            answers = yield from self._asked(corners[whole:], enough, "rows", answers)
        return replace(answers, ranks=ranks), whole

    def _redrawn(self, answers: FarScores) -> Array:
        """Return the columns that other errors of all answers would give."""
        noise = self.tokens.noise
        gates = with_errors(self.gates, noise, self.rng)
        return with_errors(answers, noise, self.rng).columns(gates.maps(), gates)

    def _asked(
        self, x: Array, directions: int, phase: str, before: FarScores | None
    ) -> Asking[FarScores]:
        """Ask keys in so many directions around far tokens, and those with small weights again."""
        n, b = self._together(), self.tokens.of(x)
        blocks = -(-directions // n)
        angle = self._angle()
        along = [self._directions(one, directions, blocks * n) for one in b]
        token = np.repeat(np.arange(len(b)), blocks)
        tangents = np.reshape(along, (len(token), n, -1))
        away = self._away(b[token], tangents, np.full(len(token), angle))
        y = yield from self._answered(b[token], away, phase, "data")
        found = FarScores(b, self.tokens.shown(b), token, away, y)
        small = found.weights(self.maps, self.gates.shown).small
        for again in range(1, 1 + _AGAIN):
            if not len(small):
                break
            nearer = self._away(
                b[token[small]], tangents[small], np.full(len(small), angle / 2**again)
            )
            away, y = found.away.copy(), found.y.copy()
            away[small] = nearer
            y[small] = yield from self._answered(b[token[small]], nearer, phase, "again")
            found = replace(found, away=away, y=y)
            some = replace(found, token=token[small], away=nearer, y=y[small])
            small = small[some.weights(self.maps, self.gates.shown).small]
        else:
            raise Reason.WEIGHTS_BELOW_0.error()
        return found if before is None else _joined(before, found)

    def _together(self) -> int:
        """Return how many keys an answer tells the weights of: fewer where heads share a range."""
        H, shown = len(self.maps), len(self.gates.shown)
        n = max(1, min(int((shown - 1) / H / _EQUATIONS), max(self.ranks)))
        unit = self.maps / np.linalg.norm(self.maps, axis=(1, 2), keepdims=True)
        while n > 1 and np.linalg.cond(np.hstack(unit @ self.gates.frame[:n].T)) > _DEPENDENT:
            n -= 1
        return n

    def _angle(self) -> float:
        """Return the angle between b and keys at which logits are moderate."""
        chord = min(_LOGITS / max(self.gates.typical, TINY), _FARTHEST * self.tokens.radius)
        return float(2 * np.arcsin(chord / self.tokens.radius / 2))

    def _directions(self, b: Array, directions: int, count: int) -> Array:
        """Return ``count`` unit vectors orthogonal to b (count, d), in so many directions.

        In all k of a simplex: keys around b are on one side of it, and these span b as well.
        """
        frame = self.gates.frame
        k = len(frame)
        drawn = self.rng.standard_normal((k, k - 1))
        beside = np.linalg.qr(np.column_stack([frame @ b, drawn]))[0][:, 1:]
        if directions == k:
            corners = np.linalg.svd(np.eye(k) - 1 / k)[0][:, : k - 1]
            corners = np.vstack([corners, corners[: count - k]])
        elif count < k:
            corners = np.linalg.qr(self.rng.standard_normal((k - 1, count)))[0].T
        else:
            corners = self.rng.standard_normal((count, k - 1))
        corners = corners / np.linalg.norm(corners, axis=1, keepdims=True)
        return np.asarray(self.rng.permutation(corners) @ beside.T @ frame)

    def _away(self, b: Array, tangents: Array, angle: Array) -> Array:
        """Return κ − b of keys on the sphere, (Q, n, d)."""
        cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
        return np.asarray((cos - 1) * b[:, None] + sin * self.tokens.radius * tangents)

    def _answered(self, b: Array, away: Array, phase: str, purpose: Purpose) -> Asking[Array]:
        X = np.concatenate([b[:, None] + away, b[:, None]], axis=1)
        [y] = yield [Sequences(X, phase=phase, purpose=purpose)]
        return np.asarray(y)


def _solved(columns: Array, y: Array) -> Array:
    """Solve by least squares, by a QR with pivots: singular values take three times as long."""
    cut = 4 * UNIT * max(columns.shape)
    found = scipy.linalg.lstsq(columns, y, cut, check_finite=False, lapack_driver="gelsy")
    return np.asarray(found[0])


def _joined(first: FarScores, more: FarScores) -> FarScores:
    """Put answers beside other tokens behind the first."""
    return FarScores(
        np.vstack([first.tokens, more.tokens]),
        np.vstack([first.shown, more.shown]),
        np.concatenate([first.token, more.token + len(first.tokens)]),
        np.concatenate([first.away, more.away]),
        np.vstack([first.y, more.y]),
    )

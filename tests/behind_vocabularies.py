"""Targets that take ids: heads behind a table, in plain NumPy, and what servers do to ids."""

import numpy as np


class Server:
    """A head behind a table, asked for ids; what it does beside is named by ``kind``.

    Nothing of it is seen but the answers: no attribute says what it takes.
    """

    def __init__(self, seed, kind="plain", ids=60, dim=8, rank=3, scale=1.0):
        self._rng = rng = np.random.default_rng([71, seed, ids])
        self._kind, self.queries = kind, 0
        self.table = rng.standard_normal((ids, dim))
        if kind == "alias":
            self.table[ids // 2 : ids // 2 + ids // 5] = self.table[: ids // 5]
        if kind == "huge rows":
            self.table[rng.choice(ids, 2, replace=False)] *= 1e6
        K, Q = rng.standard_normal((2, rank, dim)) / np.sqrt(dim)
        self.W, self.w = scale * K.T @ Q, K.T @ rng.standard_normal(rank)
        self.v, self.c = rng.standard_normal(dim), 0.3
        self._other = rng.standard_normal((2, dim, dim)) / dim
        self._places = rng.standard_normal((600, dim))
        self._swapped = rng.permutation(ids)

    def vectors(self, ids):
        if self._kind == "other tokenizer":
            ids = self._swapped[ids]
        if self._kind == "BOS":
            ids = np.column_stack([np.full(len(ids), len(self.table) - 1), ids])
        if self._kind == "EOS":
            ids = np.column_stack([ids, np.full(len(ids), len(self.table) - 1)])
        if self._kind == "cut on the right":
            ids = ids[:, :20]
        if self._kind == "cut on the left":
            ids = ids[:, -20:]
        x = self.table[ids]
        return x + self._places[: x.shape[1]] if "positions" in self._kind else x

    def truth(self, ids):
        x = self.vectors(ids)
        scores = np.einsum("bnd,de,be->bn", x, self.W, x[:, -1]) + x @ self.w
        if self._kind == "turned":  # scores that fall with distance
            scores = scores - 0.1 * np.arange(x.shape[1])[::-1]
        y = weighed(scores, x @ self.v + self.c)
        if self._kind == "two heads":
            other = np.einsum("bnd,de,be->bn", x, 4 * self._other[0], x[:, -1])
            y = y + weighed(other, x @ self._other[1, 0] * 8)
        return y

    def __call__(self, ids):
        assert ids.dtype == np.int64
        assert ids.ndim == 2
        self.queries += len(ids)
        y = self.truth(ids)
        if self._kind == "noisy":
            y = y + 1e-3 * self._rng.standard_normal(y.shape)
        return y.astype(np.float32) if self._kind == "float32 answers" else y

    def logits(self):
        """All G_ij = M_ij − M_jj."""
        M = self.table @ self.W @ self.table.T + (self.table @ self.w)[:, None]
        return M - np.diag(M)


class LayerServer(Server):
    """A whole layer behind a table, with or without a residual connection."""

    def __init__(self, seed, kind="plain", shape=(2, 4, 8), scale=1.0, residual=False, ids=None):
        self.shape = heads, rank, dim = shape
        super().__init__(seed, kind, ids or 4 * dim + 100, dim, rank)
        K, Q, V, O = self._rng.standard_normal((4, heads, rank, dim))  # noqa: E741
        self.W = scale * np.einsum("hrd,hre->hde", K, Q) / (dim * np.sqrt(rank))
        self.w = 0.5 * np.einsum("hrd,hr->hd", K, self._rng.standard_normal((heads, rank))) / dim
        self.M = np.einsum("hrm,hrd->hmd", O, V) / np.sqrt(rank * dim)
        self.c, self.residual = self._rng.standard_normal(dim), residual
        self.scale, self.shift = np.exp(self._rng.standard_normal((2, dim)) / 2)
        if kind == "one head saturated":
            self.W[0], self.w[0] = 1e4 * self.W[0], 1e4 * self.w[0]

    def truth(self, ids):
        x = self.vectors(ids)
        y = self.c + self.residual * x[:, -1]
        if self._kind == "the last token alone":
            return y + x[:, -1]
        if self._kind == "a nonlinearity":
            x = x + 0.1 * np.tanh(x)
        for W, w, M in zip(self.W, self.w, self.M, strict=True):
            scores = np.einsum("bnd,de,be->bn", x, W, x[:, -1]) + x @ w
            if self._kind == "turned":
                scores = scores - 0.1 * np.arange(x.shape[1])[::-1]
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            pooled = np.einsum("bn,bnd->bd", weights / weights.sum(axis=1, keepdims=True), x)
            y = y + pooled @ M.T
        if self._kind == "half a residual":
            y = y + x[:, -1] / 2
        if self._kind == "the last token turned":
            y = y + x[:, -1] @ self._other[0]
        if self._kind == "normed behind":
            y = y / np.linalg.norm(y, axis=1, keepdims=True)
        if self._kind == "LayerNorm behind":
            y = self.scale * (y - y.mean(axis=1, keepdims=True)) / y.std(axis=1, keepdims=True)
            y = y + self.shift
        numbers = {"one number": 1, "a number for each head": len(self.W), "few numbers": 5}
        y = y[:, : numbers.get(self._kind)]
        return np.tanh(y) if self._kind == "squashed" else y

    def misses(self, model):
        """How far the errors of c, M, W and w are, the largest over heads, in the order found."""
        found = [next(h for h in self._near(head.M)) for head in model.heads]
        assert sorted(found) == list(range(len(self.M)))
        pairs = [(head, h) for head, h in zip(model.heads, found, strict=True)]
        return {
            name: max(
                float(np.linalg.norm(getattr(a, name) - getattr(self, name)[h])) for a, h in pairs
            )
            for name in ("M", "W", "w")
        } | {"c": float(np.linalg.norm(model.c - self.c))}

    def _near(self, M):
        return np.argsort(np.linalg.norm(self.M - M, axis=(1, 2)))


def weighed(scores, values):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.sum(weights * values, axis=1) / weights.sum(axis=1)

"""Pre-norm blocks in plain NumPy, and what is none: z = y + F(norm₂ y), y = x_N + o(norm₁ X).

F is one of several kinds, which a learner of attention must not care about. ``kind`` names what is
served instead of such a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import erf, expit

import unsoftmax as us
from tests.attention_layers import largest_errors
from tests.rotary_layers import rotary_layer

KINDS_OF_F = ("relu", "gelu", "swiglu", "mixture")


def whole_figures(functions: Any, ratios: Any, shares: Any) -> list[Any]:
    """What a row says of whole blocks, for `part_of_evidence`."""
    return [
        ("function", "max", functions, "{:.3g}"),
        ("queries", "median", ratios, "{:.1f} × the bound"),
        ("median looseness", "median", 1 / np.array(shares), "{:.0f}×"),
    ]


def in_parts(case: tuple[Any, ...], total: int, each: int, *, few: bool = False) -> list[Any]:
    """Return rows of a test (*case, seeds, total): ``each`` seeds a node.

    Only the first is collected where trials are few, or none.
    """
    starts = range(0, total, each)
    rows = [(*case, range(start, min(start + each, total)), total) for start in starts]
    return [
        pytest.param(
            *row,
            id="-".join(map(str, (*case, row[-2].start))),
            marks=[] if few and not place else [pytest.mark.claimed],
        )
        for place, row in enumerate(rows)
    ]


def with_scales(block: Any, spread: float, seed: int) -> Any:
    """Give norms scales of 1/spread to spread, as trained ones have; log-uniform."""
    drawn = np.random.default_rng([seed, 77]).uniform(-1, 1, block.scales.shape)
    block.scales = np.exp(np.log(spread) * drawn)
    return block


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


class PlainBlock:
    """A block of d dimensions, H heads of rank r and m neurons, all of it random."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        seed: int,
        *,
        F: str = "relu",
        rms: bool = False,
        kind: str = "block",
        logits: float = 1.0,
        eps: float = 1e-5,
        neurons: int | None = None,
    ) -> None:
        self.rng = rng = np.random.default_rng([*shape, seed])
        self.dim, self.heads, self.rank = d, H, r = shape
        self.F, self.rms, self.kind, self.eps = F, rms, kind, eps
        m = neurons or 2 * d

        def draw(*size: int, over: float = 1.0) -> Any:
            return rng.standard_normal(size) / np.sqrt(over)

        self.scales = 1 + draw(2, d, over=10)
        self.shifts = 0.0 * draw(2, d) if rms else draw(2, d, over=10)
        self.Q, self.K = draw(2, H, r, d, over=d) * np.sqrt(logits)
        self.V, self.O = draw(H, r, d, over=d), draw(H, d, r, over=H * r)
        self.q_bias, self.k_bias, self.v_bias = draw(3, H, r, over=10)
        self.o_bias = draw(d, over=10)
        self.A, self.G, self.A2 = draw(3, m, d, over=d)
        self.a, self.g, self.a2 = draw(3, m, over=10)
        self.B, self.B2, self.c = draw(d, m, over=m), draw(d, m, over=m), draw(d, over=10)
        self.route = draw(d)

    # -- its parts

    def norm(self, x: Any, which: int) -> Any:
        x = x if self.rms else x - x.mean(axis=-1, keepdims=True)
        size = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return self.scales[which] * (x / size) + self.shifts[which]

    def attention(self, X: Any, last: Any) -> Any:
        q = np.einsum("hrd,bd->bhr", self.Q, last) + self.q_bias
        k = np.einsum("hrd,bnd->bhnr", self.K, X) + self.k_bias[:, None]
        if self.kind == "positions":
            k = k * np.cos(0.3 * np.arange(X.shape[1]))[:, None]
        scores = np.einsum("bhr,bhnr->bhn", q, k) / np.sqrt(self.rank)
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        v = np.einsum("hrd,bnd->bhnr", self.V, X) + self.v_bias[:, None]
        return np.einsum("hdr,bhn,bhnr->bd", self.O, p, v) + self.o_bias

    def network(self, n: Any) -> Any:
        h = n @ self.A.T + self.a
        if self.F == "relu":
            return relu(h) @ self.B.T + self.c
        if self.F == "gelu":
            return (h * (1 + erf(h / np.sqrt(2))) / 2) @ self.B.T + self.c
        gate = n @ self.G.T + self.g
        if self.F == "swiglu":
            return (gate * expit(gate) * h) @ self.B.T
        one, other = relu(h) @ self.B.T, relu(n @ self.A2.T + self.a2) @ self.B2.T
        return np.where((n @ self.route > 0)[:, None], one, other)

    def __call__(self, X: Any) -> Any:
        if self.kind == "two blocks":
            every = [np.roll(X, -1 - p, axis=1) for p in range(X.shape[1])]
            X = np.stack([self.block(one) for one in every], axis=1)
        return self.block(X)

    def block(self, X: Any) -> Any:
        n, x = self.norm(X, 0), X[:, -1]
        o = self.attention(n, n[:, -1])
        if self.kind == "no residual":
            return o + self.network(self.norm(o, 1))
        if self.kind == "post-norm":
            y = self.norm(x + self.attention(X, x), 0)
            return self.norm(y + self.network(y), 1)
        if self.kind == "no norm":
            o = self.attention(X, x)
        y = x + o
        if self.kind == "parallel":
            return y + self.network(n[:, -1])
        if self.kind == "dropout":
            o = o * (self.rng.random(o.shape) > 0.1) / 0.9
            y = x + o
        z = y + self.network(self.norm(y, 1))
        if self.kind == "noise":
            return z + 1e-9 * self.rng.standard_normal(z.shape)
        if self.kind == "float32":
            return z.astype(np.float32).astype(np.float64)
        if self.kind == "first token":
            return z + 1e-3 * np.tanh(n[:, 0] @ self.A[0])[:, None]
        if self.kind == "bent values":
            return z + 1e-3 * np.tanh(o)
        return z

    def model(self) -> us.Stack:
        """Return it as a model: of ReLUs, GELUs or SwiGLU alone."""
        norms = [
            us.LayerNorm(*both, self.eps, before=True, centred=not self.rms)
            for both in zip(self.scales, self.shifts, strict=True)
        ]
        heads, c = [], self.o_bias
        for h in range(self.heads):
            K, Q = self.K[h] / np.sqrt(self.rank), self.Q[h]
            heads.append(
                us.LayerHead.from_factors(self.O[h], self.V[h], K, Q, K.T @ self.q_bias[h])
            )
            c = c + self.O[h] @ self.v_bias[h]
        first = us.AttentionLayer(heads, c, True, norms[0])
        gated = self.F == "swiglu"
        name, last = ("silu", 0 * self.c) if gated else (self.F, self.c)
        gate = (self.G, self.g) if gated else None
        second = us.FeedForward(self.A, self.a, self.B, last, True, norms[1], name, gate)
        return us.Stack([first, second])

    # -- what answers determine of its attention

    def truth(self) -> dict[str, Any]:
        d = self.dim
        P = np.eye(d) - (not self.rms) * np.ones((d, d)) / d
        within = self.scales[0][:, None] * P
        M, W, w = [], [], []
        for out, V, K, Q, q in zip(self.O, self.V, self.K, self.Q, self.q_bias, strict=True):
            M.append(out @ V @ within)
            left = within.T @ K.T / np.sqrt(self.rank)
            W.append(left @ Q @ within)
            w.append(left @ (Q @ self.shifts[0] + q))
        return {"M": np.array(M), "W": np.array(W), "w": np.array(w), "eps": self.eps}

    @property
    def parameters(self) -> int:
        """Numbers that the whole block is made of, biases and norms among them."""
        arrays = (self.Q, self.K, self.V, self.O, self.q_bias, self.k_bias, self.v_bias)
        own = (self.o_bias, self.A, self.a, self.B, self.c, self.scales, self.shifts)
        return int(sum(array.size for array in (*arrays, *own)))

    def neurons(self) -> tuple[Any, Any, Any]:
        """A, a and B of normalised tokens, rows of A as long as columns of B."""
        d = self.dim
        A = self.A * self.scales[1]
        A = A - (not self.rms) * A.mean(axis=1, keepdims=True)
        a = self.a + self.A @ self.shifts[1]
        scale = np.sqrt(np.linalg.norm(self.B, axis=0) / np.linalg.norm(A, axis=1))
        assert A.shape[1] == d
        return scale[:, None] * A, scale * a, self.B / scale

    @property
    def bound(self) -> float:
        """Numbers that attention has, per number of an answer."""
        d, k, r = self.dim, self.dim - (not self.rms), self.rank
        return self.heads * (r * (d + k - r) + r * (2 * k + 1 - r)) / d


def apart(found: us.AttentionLayer, stack: us.Stack) -> dict[str, float]:
    """How far the recovered attention of a block is from its own, as bounds count it."""
    attention: Any = stack.parts[0]
    true = us.canonical(attention)
    far = largest_errors(found, true)
    assert found.norm is not None
    return {name: far[name] for name in "MWw"} | {"eps": abs(found.norm.eps - true.norm.eps)}


def errors_of(recovery: Any, block: PlainBlock) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of M, W, w of the worst head and of eps: as bounds count them, and relative ones."""
    true, heads = block.truth(), recovery.model.heads
    assert len(heads) == block.heads
    far = np.array([[np.linalg.norm(head.M - M) for M in true["M"]] for head in heads])
    rows, columns = linear_sum_assignment(far)
    absolute, relative = {}, {}
    for name in ("M", "W", "w"):
        of_head = zip(rows, columns, strict=True)
        pairs = [(getattr(heads[f], name), true[name][t]) for f, t in of_head]
        missed = np.array([np.linalg.norm(mine - its) for mine, its in pairs])
        absolute[name] = float(missed.max())
        relative[name] = float(np.max(missed / [np.linalg.norm(its) for _, its in pairs]))
    absolute["eps"] = abs(recovery.model.norm.eps - block.eps)
    return absolute, relative | {"eps": absolute["eps"] / block.eps}


def errors_of_whole(recovery: Any, block: PlainBlock) -> dict[str, float]:
    """Errors of all parameters of a recovered block, as bounds count them."""
    attention, network = recovery.model.parts
    true = block.truth()
    far = np.array([[np.linalg.norm(head.M - M) for M in true["M"]] for head in attention.heads])
    assert far.shape == (block.heads, block.heads)
    rows, columns = linear_sum_assignment(far)
    errors = {}
    for name in "MWw":
        pairs = zip(rows, columns, strict=True)
        each = (getattr(attention.heads[f], name) - true[name][t] for f, t in pairs)
        errors[f"{name} of part 0"] = max(float(np.linalg.norm(one)) for one in each)
    n = np.zeros((1, 1, block.dim)) + block.shifts[0]
    c = block.attention(n, n[:, -1])[0]
    off = attention.c - c
    off -= (not block.rms) * off.mean()
    errors["c of part 0"] = float(np.linalg.norm(off))
    errors["eps of part 0"] = abs(attention.norm.eps - block.eps)
    A, a, B = block.neurons()
    products = np.concatenate([A, a[:, None]], axis=1)
    mine = np.concatenate([network.A, network.b[:, None]], axis=1)
    apart_by = np.linalg.norm(mine[:, None] - products, axis=2)
    assert apart_by.shape == (len(A), len(A))
    rows, columns = linear_sum_assignment(apart_by)
    errors["A of part 1"] = float(np.linalg.norm(network.A[rows] - A[columns]))
    errors["b of part 1"] = float(np.linalg.norm(network.b[rows] - a[columns]))
    errors["B of part 1"] = float(np.linalg.norm(network.B[:, rows] - B[:, columns]))
    errors["c of part 1"] = float(np.linalg.norm(network.c + attention.c - block.c - c))
    errors["eps of part 1"] = abs(network.norm.eps - block.eps)
    return errors


def predicted_to(model: Any, block: PlainBlock, rng: Any) -> float:
    """Return the largest error of predictions, of 1 to 32 tokens with entries of .05 to 20."""
    worst = 0.0
    for tokens in (1, 2, 8, 32):
        for size in (0.05, 1.0, 20.0):
            X = size * rng.standard_normal((20, tokens, block.dim))
            z = block(X)
            missed = np.linalg.norm(model(X) - z, axis=1) / np.linalg.norm(z, axis=1)
            worst = max(worst, float(np.max(missed)))
    return worst


class LlamaBlock:
    """Attention of normalised tokens and SwiGLU, each behind an RMSNorm, all of it random."""

    def __init__(self, attention: Any, seed: int, neurons: int = 24, eps: float = 1e-5) -> None:
        self.attention, self.eps, self.dim = attention, eps, int(attention.dim)
        rng, d = np.random.default_rng([seed, 35]), self.dim
        self.scales = 1 + rng.standard_normal((2, d)) / np.sqrt(10)
        self.A, self.G = rng.standard_normal((2, neurons, d)) / np.sqrt(d)
        self.B = rng.standard_normal((d, neurons)) / np.sqrt(neurons)

    @classmethod
    def drawn(cls, shape: tuple[int, int, int, int], seed: int, **settings: Any) -> LlamaBlock:
        """Draw attention of d dimensions, H heads in G groups and rank r; logits are about 1."""
        layer = rotary_layer(*shape, seed, **settings)
        size = np.sqrt(shape[0])
        arrays = {**layer.arrays(), "K": layer.K / size, "k_bias": layer.k_bias / size}
        return cls(us.RotaryLayer.from_arrays(arrays), seed)

    def __call__(self, X: Any) -> Any:
        y = X[:, -1] + self.attention(self.norm(X, 0))
        n = self.norm(y, 1)
        gate = n @ self.G.T
        return y + (gate * expit(gate) * (n @ self.A.T)) @ self.B.T

    def norm(self, x: Any, which: int) -> Any:
        size = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return self.scales[which] * x / size

    def truth(self) -> us.RotaryLayer:
        """Its attention as a layer of tokens that are only divided by their size."""
        arrays = self.attention.arrays()
        scaled = {name: arrays[name] * self.scales[0] for name in "VKQ"}
        return us.RotaryLayer.from_arrays({**arrays, **scaled})

    def numbers(self, *, whole: bool = False) -> int:
        """How many numbers its attention has, or all of it."""
        (H, d, r), G = self.attention.O.shape, self.attention.G
        heads = r * (G * d + H * d - G) + H * d * r + G * r * d - G * r * r
        return int(heads + whole * 3 * self.A.size)

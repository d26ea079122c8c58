"""What a claimed layer says of any sequence: vector answers, how far each number may round.

With seen tokens t_i (normalised ones behind a norm before), u(X) = Σ_h M_h Σ_i α_hi t_i + c, or
B·relu(A t + b) + c, plus x_N with a residual, and y = n(u) with a norm behind. Moves of number k
go through the norm by its Jacobian

    J = diag(γ)/σ · (1 − 11ᵀ/m − ẑẑᵀ/m),    ẑ = (u − mean u)/σ,    σ² = var u + eps

(without 11ᵀ/m for RMSNorm; J = 1 without a norm): ‖∂y_k/∂M_h‖ = ‖J_k‖·‖pool_h‖, by c ‖J_k‖, by W_h
‖Σ_i (J g_i)_k t_i‖·‖t_N‖ with g_i = ∂u/∂s_i. What the gauge hides, such as the mean over outputs
behind a LayerNorm, moves nothing and does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unsoftmax.models import AttentionLayer, FeedForward, LayerHead, LayerNorm, ReluNetwork
from unsoftmax.models.attention import pooled_tokens, softmax, token_scores
from unsoftmax.probes import Array
from unsoftmax.questions.claimed_models import (
    Claim,
    ClaimedAnswers,
    hyperplane_lengths,
    long_sums,
)
from unsoftmax.questions.neuron_sides import NeuronSides

SCALE, SHIFT, EPS = (f"{name} of the norm" for name in ("scale", "shift", "eps"))


@dataclass(frozen=True, slots=True)
class ServedLayerTuning:
    """Knobs of how claims of layers are evaluated."""

    directions: int = 4
    """Random directions that a norm before is moved in: its moves are known to a third."""
    step: float = 1e-5
    """By this share: what curves stays below 1e-10, and rounding below 1e-10 as well."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A norm behind a layer at sums u (B, m), or none."""

    norm: LayerNorm | None
    u: Array
    z: Array
    """ẑ."""
    factors: Array
    """γ/σ, (B, m)."""
    spread: Array
    """σ, (B, 1)."""

    @classmethod
    def of(cls, norm: LayerNorm | None, u: Array) -> Behind:
        """Evaluate it."""
        if norm is None or norm.before:
            return cls(None, u, np.zeros_like(u), np.ones_like(u), np.ones((len(u), 1)))
        centred = u - u.mean(axis=1, keepdims=True) if norm.centred else u
        spread = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + norm.eps)
        spread = np.where(spread > 0, spread, 1.0)
        return cls(norm, u, norm.normalised(u), norm.scale / spread, spread)

    @property
    def answers(self) -> Array:
        """y, (B, m)."""
        return np.asarray(self.u if self.norm is None else self.norm(self.u))

    @property
    def rows(self) -> Array:
        """‖J_k‖, (B, m)."""
        if self.norm is None:
            return self.factors
        m = self.u.shape[1]
        lost = np.square(self.z) * (2 - np.mean(self.z**2, axis=1, keepdims=True))
        kept = np.maximum(0.0, 1 - (float(self.norm.centred) + lost) / m)
        return np.asarray(np.abs(self.factors) * np.sqrt(kept))

    def moved(self, g: Array) -> Array:
        """Return J g_i for changes g_i of u, (B, N, m)."""
        if self.norm is None:
            return g
        if self.norm.centred:
            g = g - g.mean(axis=2, keepdims=True)
        z = self.z[:, None]
        along = np.mean(g * z, axis=2, keepdims=True)
        return np.asarray(self.factors[:, None] * (g - along * z))

    def rounded(self, sizes: Array) -> Array:
        """Return the sizes of the answers' terms, of those of u (B, m)."""
        if self.norm is None:
            return sizes
        z, mean = np.abs(self.z), np.mean(sizes, axis=1, keepdims=True)
        common = mean * float(self.norm.centred)
        along = z * np.mean(z * sizes, axis=1, keepdims=True)
        own = 2 * np.abs(self.norm.scale) * z + np.abs(self.norm.shift)
        return np.asarray(np.abs(self.factors) * (sizes + common + along) + own)

    def own_moves(self) -> dict[str, Array]:
        """Return how the norm's own parameters move the answers."""
        if self.norm is None:
            return {}
        by_eps = np.abs(self.norm.scale * self.z) / (2 * self.spread**2)
        return {SCALE: np.abs(self.z), SHIFT: np.ones_like(self.z), EPS: by_eps}


class ServedVectors(Claim):
    """A layer that answers with vectors: what attention and feed-forward layers have in common."""

    _by_question: tuple[str, ...] = ()
    """Beginnings of the names of tensors of which one change moves all numbers of an answer."""
    tuning = ServedLayerTuning()
    _sum: AttentionLayer | FeedForward
    """The layer without its norm behind."""

    def __init__(self, model: AttentionLayer | FeedForward) -> None:
        super().__init__(model)
        self.layer, self.norm = model, model.norm
        self.before = self.norm if self.norm is not None and self.norm.before else None
        self.behind = None if self.before is not None else self.norm
        self.outputs = len(model.c)
        self.smooth = self.norm is not None

    @property
    def normalises(self) -> bool:
        """Whether tokens are normalised before the layer sees them."""
        return self.before is not None

    def seen_tokens(self, X: Array) -> Array:
        """Return the tokens as the layer sees them."""
        return X if self.before is None else self.before(X)

    def sums(self, X: Array) -> Array:
        """Map sequences (B, N, d) to what a norm behind is given, (B, m)."""
        return np.asarray(self._sum(X))

    def token_sizes(self, X: Array) -> Array:
        """Return ‖t_i‖ (B, N), as large as what seen tokens are made of."""
        if self.before is None:
            return np.asarray(np.linalg.norm(X, axis=2))
        z = np.abs(self.before.normalised(X))
        own = X - X.mean(axis=2, keepdims=True) if self.before.centred else X
        spread = np.sqrt(np.mean(own**2, axis=2, keepdims=True) + self.before.eps)
        away = np.abs(X.mean(axis=2, keepdims=True)) / np.where(spread > 0, spread, 1.0)
        terms = np.abs(self.before.scale) * (z + away) + np.abs(self.before.shift)
        return np.asarray(np.linalg.norm(terms, axis=2))

    def separate(self, tensor: str, moves: Array) -> Array:  # noqa: D102
        if tensor == EPS:
            return np.array([np.max(moves)])
        if moves.shape[1] == 1:
            return moves[:, 0]
        by_question = self.before is not None and tensor in (SCALE, SHIFT)
        by_question = by_question or tensor.startswith(self._by_question)
        return np.asarray(moves.max(axis=int(by_question)))

    def presented(self, X: Array, number: int) -> Array:  # noqa: D102
        # every other one where eps counts: it is seen nowhere else
        if self.before is None or not self.before.eps or number % 2 == 0:
            return X
        return np.asarray(X * 2.0 ** np.round(np.log2(np.sqrt(self.before.eps))))

    def norm_tensors(self) -> dict[str, tuple[float, int]]:
        """Return the norm's parameters as `tensors` does."""
        if self.norm is None:
            return {}
        width = self.norm.width
        return {
            SCALE: (float(np.linalg.norm(self.norm.scale)), width),
            SHIFT: (float(np.linalg.norm(self.norm.shift)), width),
            EPS: (self.norm.eps, 1),
        }

    def weighty_norm(self) -> dict[str, float]:
        """Return what counts of the norm's parameters; eps hardly ever moves an answer."""
        if self.norm is None:
            return {}
        scale, shift = (float(np.linalg.norm(x)) for x in (self.norm.scale, self.norm.shift))
        return {SCALE: scale or shift or 1.0, SHIFT: max(scale, shift) or 1.0}

    def moves_before(self, X: Array) -> dict[str, Array]:
        """Return ‖∂y/∂γ‖, ‖∂y/∂β‖ and ‖∂y/∂eps‖ (B, m) of a norm before, from differences."""
        if (norm := self.before) is None:
            return {}
        rng, tuning = np.random.default_rng(0), self.tuning
        given = {"scale": norm.scale, "shift": norm.shift}
        found = {}
        for name, array in given.items():
            step = tuning.step * (float(np.linalg.norm(norm.scale)) or 1.0) / np.sqrt(norm.width)
            squares: Array | float = 0.0
            for _ in range(tuning.directions):
                move = step * rng.standard_normal(norm.width)
                squares = squares + self._change(X, {name: array + move}, {name: array - move}) ** 2
            found[name] = np.sqrt(squares / tuning.directions) / (2 * step)
        spreads = np.mean((X - float(norm.centred) * X.mean(axis=2, keepdims=True)) ** 2, axis=2)
        step = tuning.step * float(np.min(spreads) + norm.eps)
        found["eps"] = (
            np.abs(self._change(X, {"eps": norm.eps + step}, {"eps": norm.eps})) / step
            if step
            else np.zeros((len(X), len(self.layer.c)))
        )
        return {f"{name} of the norm": move for name, move in found.items()}

    def _change(self, X: Array, one: dict[str, object], other: dict[str, object]) -> Array:
        """Return the difference of answers of the layer with two other norms before."""
        arrays = self.layer.arrays()

        def answer(own: dict[str, object]) -> Array:
            named = {f"norm.{name}": x for name, x in own.items()}
            return type(self.layer).from_arrays({**arrays, **named})(X)

        return answer(one) - answer(other)


class ServedLayer(ServedVectors):
    """An attention layer."""

    _by_question = ("W", "w")
    layer: AttentionLayer

    def __init__(self, model: AttentionLayer) -> None:
        super().__init__(model)
        self.affine = model.norm is None
        self._sum = AttentionLayer(model.heads, model.c, model.residual, self.before, dim=model.dim)

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        d, m, found = self.dim, len(self.layer.c), {}
        for name, size in (("M", m * d), ("W", d * d), ("w", d)):
            for h, head in enumerate(self.layer.heads):
                found[f"{name} of head {h}"] = (head.parameter_norm(name), size)
        c = float(np.linalg.norm(self.layer.c))
        return {**found, "c": (c, m), **self.norm_tensors()}

    def weighty(self) -> dict[str, float]:  # noqa: D102
        norms = {name: norm for name, (norm, _) in self.tensors().items()}
        values = [norms[f"M of head {h}"] for h in range(self.layer.H)]
        beside = float(self.layer.residual) * np.sqrt(self.dim)
        found = {"c": max(norms["c"], *values, beside, 0.0) or 1.0} | self.weighty_norm()
        for h in np.flatnonzero(values).tolist():
            W, w = norms[f"W of head {h}"], norms[f"w of head {h}"]
            found[f"M of head {h}"] = values[h]
            found[f"W of head {h}"] = W or w or 1.0
            found[f"w of head {h}"] = max(W, w) or 1.0
        return found

    def slope(self) -> Array:  # noqa: D102
        M = sum((head.M for head in self.layer.heads), np.zeros((len(self.layer.c), self.dim)))
        M = M + np.eye(self.dim) if self.layer.residual else M
        return np.asarray(M[np.argmax(np.linalg.norm(M, axis=1))])

    def vectors(self, x: Array) -> Array:  # noqa: D102
        u = self._vectors(self.seen_tokens(x))
        if self.before is None:
            return u
        # what tokens beside x are scored with, to first order
        z, spread = self.before.normalised(x), np.linalg.norm(x, axis=1) / np.sqrt(self.dim)
        back = Behind(self.before, x, z, self.before.scale / spread[:, None], spread[:, None])
        return back.moved(u / np.where(self.before.scale, self.before.scale, 1.0)) * (
            self.before.scale
        )

    def _vectors(self, seen: Array) -> Array:
        vectors = np.empty((len(seen), self.layer.H, self.dim))
        for h, head in enumerate(self.layer.heads):
            vectors[:, h] = head.vectors(seen)
        return vectors

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        seen, sizes = self.seen_tokens(X), self.token_sizes(X)
        u = self._vectors(seen[:, -1])
        weights = softmax(token_scores(seen, u))
        pooled = pooled_tokens(seen, weights)
        behind = Behind.of(self.behind, self._sum(X))
        queries = np.linalg.norm(seen[:, -1], axis=1, keepdims=True)
        longest = sizes.max(axis=1, keepdims=True)
        # heads round one by one: their errors add up as random numbers do
        squares: Array = np.zeros_like(behind.u)
        rounder = np.maximum(1.0, sizes[:, -1:] / np.where(queries > 0, queries, np.inf))
        moves = {}
        for h, head in enumerate(self.layer.heads):
            g = _by_scores(head, seen, weights[:, h])
            scored = np.linalg.norm(u[:, h], axis=1, keepdims=True) * rounder
            own = longest * long_sums(X) * value_rows(head)
            own = own + scored * np.einsum("bnm,bn->bm", np.abs(g), sizes)
            squares += own**2
            by_w = _lengths(behind.moved(g), seen - pooled[:, h, None])
            moves[f"w of head {h}"] = by_w
            moves[f"W of head {h}"] = by_w * queries
            lengths = np.linalg.norm(pooled[:, h], axis=1, keepdims=True)
            moves[f"M of head {h}"] = behind.rows * lengths
        moves |= {"c": behind.rows, **behind.own_moves(), **self.moves_before(X)}
        added = np.abs(X[:, -1]) if self.layer.residual else 0.0
        terms = np.sqrt(squares) + np.abs(self.layer.c) + added
        return self._answers(behind.answers, behind.rounded(terms), moves, longest)


class ServedFeedForward(ServedVectors):
    """A feed-forward layer of single tokens."""

    attends = False
    note = "Only single tokens were asked: what the target does with several is not tested."
    _by_question = ("A", "b")
    layer: FeedForward

    def __init__(self, model: FeedForward) -> None:
        super().__init__(model)
        a = model.arrays()
        self._sum = FeedForward(
            model.A, model.b, model.B, model.c, bool(a["residual"]), self.before
        )
        # in the tokens that neurons are given: ẑ of a norm before
        A, b = model.A, model.b
        if self.before is not None:
            A, b = A * self.before.scale, b + A @ self.before.shift
            A = A - A.mean(axis=1, keepdims=True) if self.before.centred else A
        heights = np.linalg.norm(model.B, axis=0) / np.sqrt(len(model.c))
        self._neurons = ReluNetwork(A.T, heights, b)
        self.sides = NeuronSides.of(self._neurons)

    def given(self, X: Array) -> Array:  # noqa: D102
        x = X[:, -1]
        return x if self.before is None else self.before.normalised(x)

    @property
    def lengths(self) -> Array:  # noqa: D102
        if self.before is not None:
            return np.array([np.sqrt(self.dim)])
        return hyperplane_lengths(self._neurons)

    def bend_bounds(self, at: ClaimedAnswers, bounds: Array) -> Array:  # noqa: D102
        with np.errstate(divide="ignore", invalid="ignore"):
            before = np.where(at.moves["c"] > 0, bounds / at.moves["c"], np.inf)
        return np.asarray(np.median(before, axis=1))

    def tensors(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        arrays = {name: getattr(self.layer, name) for name in ("A", "b", "B", "c")}
        found = {name: (float(np.linalg.norm(x)), x.size) for name, x in arrays.items()}
        return found | self.norm_tensors()

    def weighty(self) -> dict[str, float]:  # noqa: D102
        A, b, B, c = (float(np.linalg.norm(getattr(self.layer, name))) for name in "AbBc")
        beside = float(self.layer.residual) * np.sqrt(self.dim)
        found = {"c": max(c, B * max(A, b), beside) or 1.0} | self.weighty_norm()
        return found | ({"A": A or b, "B": B, "b": max(A, b)} if B * max(A, b) else {})

    def at(self, X: Array) -> ClaimedAnswers:  # noqa: D102
        A, b, B = self.layer.A, self.layer.b, self.layer.B
        x, seen, sizes = X[:, -1], self.seen_tokens(X)[:, -1], self.token_sizes(X[:, -1:])
        z = seen @ A.T + b
        on: NDArray[np.bool_] = z > 0
        behind = Behind.of(self.behind, self._sum(x))
        inside = (sizes * np.linalg.norm(A, axis=1) + np.abs(b)) * on
        terms = 2 * np.sqrt(inside**2 @ np.square(B).T) + np.abs(behind.u) + np.abs(self.layer.c)
        terms = terms + np.abs(x) if self.layer.residual else terms
        by_b = _active_rows(behind, B, on)
        relus = np.linalg.norm(np.maximum(z, 0.0), axis=1, keepdims=True)
        moves = {
            "A": by_b * np.linalg.norm(seen, axis=1, keepdims=True),
            "b": by_b,
            "B": behind.rows * relus,
            "c": behind.rows,
            **behind.own_moves(),
            **self.moves_before(x[:, None]),
        }
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        return self._answers(behind.answers, behind.rounded(terms), moves, lengths)


def value_rows(head: LayerHead) -> Array:
    """Return how large the terms of each row of M t are for a token of length 1, (m,).

    Of factors √Σ_r O_kr² ‖V_r‖²: what V t rounds, O passes on.
    """
    arrays = head.arrays()
    if "M" in arrays:
        return np.asarray(np.linalg.norm(arrays["M"], axis=1))
    return np.asarray(np.linalg.norm(arrays["O"] * np.linalg.norm(arrays["V"], axis=1), axis=1))


def _by_scores(head: LayerHead, seen: Array, weights: Array) -> Array:
    """Return ∂u/∂s_i = α_i (M t_i − Σ α M t), (B, N, m)."""
    B, N, d = seen.shape
    values = head.mapped(seen.reshape(-1, d)).reshape(B, N, -1)
    mean = np.einsum("bn,bnm->bm", weights, values)
    return np.asarray(weights[..., None] * (values - mean[:, None]))


def _lengths(g: Array, tokens: Array) -> Array:
    """Return ‖Σ_i g_ik t_i‖, (B, m), by the tokens' inner products."""
    gram = tokens @ tokens.transpose(0, 2, 1)
    squares = np.sum(g * (gram @ g), axis=1)
    return np.asarray(np.sqrt(np.maximum(0.0, squares)))


def _active_rows(behind: Behind, B: Array, on: NDArray[np.bool_]) -> Array:
    """Return ‖(J B)_k‖ over the neurons that are on, (B, m)."""
    active = on.astype(np.float64)
    if behind.norm is None:
        return np.sqrt(active @ np.square(B).T)
    own = B - B.mean(axis=0) if behind.norm.centred else B
    along = active * (behind.z @ own) / B.shape[0]
    squares = active @ np.square(own).T - 2 * behind.z * (along @ own.T)
    squares += np.square(behind.z) * np.sum(along**2, axis=1, keepdims=True)
    return np.asarray(np.abs(behind.factors) * np.sqrt(np.maximum(0.0, squares)))

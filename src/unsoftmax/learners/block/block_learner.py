"""A block of hidden states: its attention, whatever its feed-forward part is, or all of it.

Target z = y + F(norm₂ y), y = x_N + attention(norm₁ X), F of any kind and unknown: what a server
of one pre-norm block answers. No paper that we know of recovers one.

Beside query tokens of length 2⁵⁶ with few coordinates other than 0, F sees the token alone, and
differences of answers are those of attention to a roundoff (`far_tokens`). What is left is a layer
after a norm whose query tokens are on a sphere: its heads are found by soft gates (`gate_reading`),
its scores beside tokens of one coordinate (`far_scores`); how it ends is `block_attention`. With
rotary positions (Llama) gates are those of tokens behind tokens 0 (`zero_gates`), and keys and
queries are read as those of a layer (`far_groups`).

With attention known, what follows can be asked at any input. If that is a layer of ReLUs it is
found, and with it the whole block (`whole_block`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unsoftmax.learners.attention_layer.search_limits import LONGEST
from unsoftmax.learners.block import block_attention as steps_of
from unsoftmax.learners.block import (
    far_expansion,
    far_groups,
    far_scores,
    far_tokens,
    gate_reading,
    norm_centre,
    post_norm,
    read_network,
    zero_gates,
)
from unsoftmax.learners.block.behind_keys import COPIES
from unsoftmax.learners.block.far_tokens import FAR
from unsoftmax.learners.block.whole_block import whole_block
from unsoftmax.learners.compose import Asking, as_planned
from unsoftmax.learners.feed_forward.feed_forward_learner import (
    NEURONS,
    NEURONS_PER_DIM,
    FeedForwardLearner,
)
from unsoftmax.learners.settings import Configured, one_of, whole_number
from unsoftmax.models import Stack
from unsoftmax.protocol import Found, Outputs, Plan, Steps
from unsoftmax.theory import counts
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.conclude import SHORT
from unsoftmax.validate.drawn_models import Layer
from unsoftmax.validate.long_sequences import MOST_ROUNDS, most_tokens

PARTS = ("attention", "block")


@dataclass(frozen=True, slots=True)
class BlockLearner(Configured):
    """Learn the attention of a pre-norm block, or all of a block, from hidden states.

    Parameters
    ----------
    dim : int
        Dimension d of a token and of an answer, 4 or more.
    part : {"attention", "block"}
        What is recovered of the block: its attention, or the whole of it, if its feed-forward part
        is a layer of ReLUs or of smooth neurons (GELU, SwiGLU).
    max_heads : int
        More distinct heads than this are refused.
    seed : int
        Decides tokens and the hold-out: the same seed asks the same.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Target*: z = y + F(norm₂ y), y = x_N + attention(norm₁ X), as in GPT-2, OPT and Llama. norm₁ is
    a LayerNorm or an RMSNorm; which, is found. Positions are none, or rotary ones after an RMSNorm
    and without biases of keys and queries; heads may share keys and values in groups then. F may be
    anything that is a function of norm₂ y: ReLU, GELU, SwiGLU, a mixture of experts; it may also
    stand in parallel to attention, which a note says. Answers must be those of float64.
    *Queries*: about 61 + (k + s)(H + s + 3) + (r + 2)⌈k/n⌉ + (k − r − 1)⌈(r + 1)/n⌉ + k for H heads
    of rank r, k = d − 1, s = 3 from d = 8 on, 4 from 24, 5 from 100, n = min(r, 0.85(d − s − 1)/H):
    240 for two heads of 8 at d = 16, 5 times what d numbers per answer allow. Where that is less,
    (3r/2)(2H + s + 3) + (k + s − 3r/2)(s + 4) take the place of (k + s)(H + s + 3): 1,009 for four
    heads of 16 at d = 64, 6,262 for twelve of 32 at d = 384, 4.5 times what d numbers per answer
    allow. Strong scores (logits of 10) take 24 more, or a second search.
    With rotary positions about 32 + (d − s)(H + 2) + s(s + 1)/2·(H + 3) + 2d + d⌈r/n⌉ + 2T⌈d/n⌉
    for T = ⌈rG/H⌉ + 1, n = min(r, 0.85(d − 1)/H) and G groups: 252 for four heads of 4 in two
    groups at d = 16, 5.5 times what d numbers per answer allow. Where the norm's scale varies by
    ten times up to half as many more.
    With ``part="block"`` about 100 + 6d + 11m more for m = 4d ReLUs, 17m for 2d: 1,011 in the
    median at d = 16 and m = 32, 2,200 at (32, 128), 5 to 7 for each d numbers of the block.
    60 + 4d + 17m of smooth neurons (GELU), 30m of gated ones (SwiGLU). Feed-forward parts that do
    not show their input in all directions are refused.
    *Determined up to* the order of heads, and an invertible matrix between the factors of M_h and
    of W_h. The scale and the shift of the norm before are parts of M_h, W_h and w_h, the mean that
    a LayerNorm takes off is not in them. c, of value and output biases, is not determined: it is 0
    in the model, and its bound is infinite. So the model's answers differ from one context to
    another, for one query token, as the target's attention's do. *Model*: an `AttentionLayer`, or
    with rotary positions a `RotaryLayer`, with a residual connection after its norm, whose eps is
    found. W and its bound are those of W_h(Δ) then.
    With ``part="block"`` the model is a `Stack` of attention and a `FeedForward`; c is determined,
    but for a mean that the second norm takes off, which is in c of the second part. Bounds are
    named after parts, ``M of part 0``. If what follows attention is no such layer the refusal
    has the attention in its ``determined``.
    *Refused*: no residual connection, other positions, dropout and noise, float32; post-norm, with
    the norm behind the block in the error's ``determined`` (``scale_behind``, ``shift_behind``) and
    of the norm inside its ``centre``, the token that attention and residual make nothing of.
    *Source*: beyond arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> norm = us.LayerNorm(np.ones(8), np.zeros(8), 1e-5, before=True)
    >>> M, W = rng.standard_normal((2, 2, 8, 8)) / 4
    >>> attention = us.AttentionLayer([*map(us.LayerHead, M, W)], np.ones(8), True, norm)
    >>> A, B = rng.standard_normal((12, 8)), rng.standard_normal((8, 12))
    >>> block = us.Stack([attention, us.FeedForward(A, np.ones(12), B, np.ones(8), True, norm)])
    >>> recovery = us.learn(block, us.learners.BlockLearner(8))
    >>> recovery.model
    AttentionLayer(H=2, d=8, residual, norm before)
    >>> mine, true = (sum(h.M for h in one.heads) for one in (recovery.model, attention))
    >>> bool(np.allclose(mine, true - true.mean(axis=1, keepdims=True), rtol=0, atol=1e-10))
    True
    """

    dim: int
    part: str = "attention"
    max_heads: int = 64
    seed: int = 0

    revision: ClassVar[int] = 8
    far: ClassVar[str] = "so long that every gate is 0 or 1"
    outputs: ClassVar[Outputs] = "vector"
    rotary: ClassVar[bool] = True
    """Rotary positions are known: refusals are not for them."""

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 4)
        one_of("part", self.part, PARTS)
        whole_number("max_heads", self.max_heads, 1)
        whole_number("seed", self.seed, 0)

    def plan(self) -> Plan:
        """Say what learning costs at most; what it takes is known only with the heads."""
        d, H = int(self.dim), int(self.max_heads)
        r = max(1, d // H)
        formula = (
            "about 61 + (d + s)(H + s + 3) + (r + 2)⌈d/n⌉ + (d − r)⌈(r + 1)/n⌉ + d for H heads of "
            "rank r, s = 3 to 5 coordinates of far tokens, n = min(r, 0.85(d − s)/H); for many "
            "heads (3r/2)(2H + s + 3) + (d + s − 3r/2)(s + 4) in the place of (d + s)(H + s + 3): "
            f"{counts.block_attention_queries(d, H, r):,} for {H} of rank {r}; with rotary "
            f"positions {counts.rotary_block_attention_queries(d, H, H, r):,}"
        )
        plain = gate_reading.cost(d, H) + far_scores.cost(d)
        turned = zero_gates.cost(d, H) + far_groups.cost(d)
        attention = far_tokens.cost()
        attention += (steps_of.SEARCHES + 1) * ((plain | turned) + steps_of.cost())
        cost = post_norm.cost(d) + attention
        most = max(gate_reading.MOST_TOKENS, LONGEST + d + 1, *(one.tokens for one in SHORT))
        ending = Cost.of(2, tokens=2, rounds=2 + MOST_ROUNDS)
        longest = 2 * FAR * np.sqrt(d)
        if self.part == "block":
            formula += (
                "; and about 100 + 6d + 11m for m ReLUs, 17m where m is 2d; 60 + 4d + 17m for m "
                "smooth neurons, 30m for gated ones"
            )
            most_neurons = NEURONS_PER_DIM * d + NEURONS
            following = FeedForwardLearner(d, "pre", activation="relu").plan()
            asked = Cost.of(following.at_most, tokens=COPIES + 1, rounds=following.rounds)
            cost += steps_of.SEARCHES * (norm_centre.cost(d) + asked)
            cost += far_expansion.cost(d) + read_network.cost(d, most_neurons) + attention
        return (cost + ending).plan(formula, most_tokens(d, most), longest, known=False)

    def steps(self, checks: int) -> Steps[Layer | Stack]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        d, most, rng = int(self.dim), int(self.max_heads), np.random.default_rng(self.seed)
        steps: Asking[Found[Any]] = steps_of.attention_of_block(d, most, rng, checks)
        if self.part == "block":
            steps = whole_block(d, most, NEURONS_PER_DIM * d + NEURONS, rng, checks)
        excess = "the target is no pre-norm block, or its answers are too noisy"
        return (yield from as_planned(steps, self.plan(), excess, "no pre-norm block"))

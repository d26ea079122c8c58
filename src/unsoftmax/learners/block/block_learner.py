"""A block of hidden states: its attention, whatever its feed-forward part is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from unsoftmax.learners.block.block_attention import attention_of_block
from unsoftmax.learners.compose import as_planned
from unsoftmax.learners.settings import Configured, one_of, whole_number
from unsoftmax.models import AttentionLayer
from unsoftmax.protocol import Outputs, Plan, Steps
from unsoftmax.theory.costs import Cost

PARTS = ("attention",)


@dataclass(frozen=True, slots=True)
class BlockLearner(Configured):
    dim: int
    part: str = "attention"
    max_heads: int = 64
    seed: int = 0

    revision: ClassVar[int] = 1
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 4)
        one_of("part", self.part, PARTS)
        whole_number("max_heads", self.max_heads, 1)
        whole_number("seed", self.seed, 0)

    def plan(self) -> Plan:
        return Cost.of(100000, tokens=3, rounds=300).plan("about", 1000, known=False)

    def steps(self, checks: int) -> Steps[AttentionLayer]:
        rng = np.random.default_rng(self.seed)
        steps = attention_of_block(int(self.dim), int(self.max_heads), rng, checks)
        return (yield from as_planned(steps, self.plan(), "no block", "no block"))

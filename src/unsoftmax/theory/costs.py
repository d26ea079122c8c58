"""What steps cost: one record, in which the costs of steps add up to a learner's plan."""

from __future__ import annotations

from dataclasses import dataclass

from unsoftmax.probes import FARTHEST
from unsoftmax.protocol import Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step asks: as a rule, and on top at worst.

    Parameters
    ----------
    queries : int
        Sequences that are asked as a rule; at worst, where no more is known.
    tokens : int
        Tokens in these.
    rounds : int
        Rounds at most.
    again : int
        Sequences that may have to be asked on top.

    Examples
    --------
    >>> d = 4
    >>> heads = Cost.of(d, rounds=1) + Cost.of(d * d, tokens=2, rounds=2, again=2 * d)
    >>> heads.queries, heads.at_most, heads.tokens, heads.rounds
    (20, 28, 36, 3)
    >>> (2 * heads).rounds, (heads | Cost(rounds=7)).rounds
    (6, 7)
    """

    queries: int = 0
    tokens: int = 0
    rounds: int = 0
    again: int = 0

    @classmethod
    def of(cls, queries: int, *, tokens: int = 1, rounds: int = 0, again: int = 0) -> Cost:
        """Return the cost of so many sequences of so many tokens each."""
        return cls(queries, queries * tokens, rounds, again)

    @classmethod
    def of_plan(cls, plan: Plan) -> Cost:
        """Return what another learner takes at most."""
        return cls(plan.at_most, plan.tokens, plan.rounds)

    @property
    def at_most(self) -> int:
        """Return the sequences at worst."""
        return self.queries + self.again

    def __add__(self, other: Cost) -> Cost:
        """Return what one step and then another take."""
        return Cost(*(a + b for a, b in zip(self._counts, other._counts, strict=True)))

    def __rmul__(self, times: int) -> Cost:
        """Return what as many repetitions take."""
        return Cost(*(times * count for count in self._counts))

    def __or__(self, other: Cost) -> Cost:
        """Return what either of two steps takes at most."""
        return Cost(*map(max, self._counts, other._counts))

    @property
    def _counts(self) -> tuple[int, int, int, int]:
        return self.queries, self.tokens, self.rounds, self.again

    def plan(
        self, formula: str, most_tokens: int, longest_token: float = FARTHEST, *, known: bool = True
    ) -> Plan:
        """Return the plan of a learner that takes this; ``known``: as a rule, not only at worst."""
        queries = self.queries if known else None
        return Plan(
            queries, self.at_most, self.tokens, self.rounds, formula, longest_token, most_tokens
        )

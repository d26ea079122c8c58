"""What is left of a budget, and what is said when that is not enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unsoftmax.campaign.budget import Budget
from unsoftmax.campaign.failures import kept
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.recorded_questions import RecordedQuestionTuning
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import BudgetExceeded


@dataclass(slots=True)
class Spending:
    """A budget beside the ledger that it limits."""

    ledger: Ledger
    budget: Budget
    expected: int | None
    """Queries of the plan and the hold-out; None where the plan knows only a bound."""
    at_most: int
    """The same with everything that the plan may ask again."""
    fingerprint: RecordedQuestionTuning
    """By how many queries a resumed run recognises its target."""
    noisy: bool = False
    """Whether those queries were answered otherwise than before: then they are asked twice."""

    def allowed(self, span: Span) -> int:
        """Return how many sequences of a span the budget still allows."""
        spent = self.ledger.spent
        limits = [len(span)]
        if self.budget.queries is not None:
            limits.append(self.budget.queries - spent.queries)
        if self.budget.tokens is not None:
            limits.append((self.budget.tokens - spent.tokens) // span.probes.tokens)
        return max(0, int(min(limits)))

    def covers(self, spans: Iterable[Span]) -> bool:
        """Whether the budget still allows all of several spans."""
        cost = [(len(span), len(span) * span.probes.tokens) for span in spans]
        queries, tokens = map(sum, zip(*cost, strict=True))
        budget, spent = self.budget, self.ledger.spent
        return (budget.queries is None or spent.queries + queries <= budget.queries) and (
            budget.tokens is None or spent.tokens + tokens <= budget.tokens
        )

    def exceeded(self, pending: list[Span]) -> BudgetExceeded:
        """Say that ``pending`` cannot be paid, and what would be enough."""
        spent, needed = self.ledger.spent, self._needed(pending)
        doubt = f", {spent.in_doubt:,} of them in doubt" if spent.in_doubt else ""
        more = " and more tokens" if self.budget.tokens is not None else ""
        allowed = f"With a budget of {spent.queries + needed:,} queries{more}"
        if self.expected is None:
            wanted = f"{needed:,} more queries are needed for the next step"
            enough = (
                f"{allowed} that step can be asked; how many follow depends on the target, and the "
                f"plan allows {self.at_most:,} in all."
            )
        else:
            wanted = f"about {needed:,} more queries are needed"
            enough = f"{allowed} it can be finished."
        return BudgetExceeded(
            f"The budget of {self.budget} is spent: {spent.queries:,} queries and "
            f"{spent.tokens:,} tokens were paid{doubt}, {wanted}. {kept(self.ledger)} {enough}",
            spent=spent.queries,
            needed=needed,
            in_doubt=spent.in_doubt,
        )

    def _needed(self, pending: list[Span]) -> int:
        counts = self.ledger.counts()
        done = sum(counts.get(purpose, 0) for purpose in ("data", "pilot", "check"))
        now = sum(map(len, pending))
        # what is asked again comes on top of the plan
        repeats = sum(len(span) for span in pending if span.probes.purpose == "again")
        needed = max(now, (self.expected or 0) - done + repeats)
        # a resumed run asks some questions again: twice if the target is noisy
        again = self.fingerprint.asked(self.ledger.answered)
        return needed + (2 * again if self.noisy else again)

"""What is left of a budget, and what is said when that is not enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unsoftmax.campaign.fingerprint import asked
from unsoftmax.campaign.ledger import Ledger
from unsoftmax.campaign.limits import Budget
from unsoftmax.campaign.outcomes import kept
from unsoftmax.campaign.spans import Span
from unsoftmax.errors import BudgetExceeded
from unsoftmax.probes import Probes


@dataclass(slots=True)
class Spending:
    """A budget beside the ledger that it limits."""

    ledger: Ledger
    budget: Budget
    expected: int | None
    """Queries of the plan and the hold-out; None where the plan knows only a bound."""
    at_most: int
    """The same with everything that the plan may ask again."""
    tokens: int | None
    """Tokens of the plan, without the hold-out; None like ``expected``."""
    checks: int
    """Queries of the hold-out."""
    noisy: bool = False
    """Whether the questions by which a resumed run recognises its target were answered otherwise
    than before: then they are asked twice."""

    def allowed(self, count: int, probes: Probes) -> int:
        """Return how many of so many probes the budget still allows."""
        budget = self.budget
        if budget.queries is not None:
            count = min(count, budget.queries - self.ledger.spent.queries)
        if budget.tokens is not None:
            count = min(count, (budget.tokens - self.ledger.spent.tokens) // probes.tokens)
        return max(0, count)

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
        spent, needed, tokens = self.ledger.spent, self._needed(pending), None
        doubt = f", {spent.in_doubt:,} of them in doubt" if spent.in_doubt else ""
        enough = f"With a budget of {spent.queries + needed:,} queries"
        if self.budget.tokens is not None:
            tokens = self._needed_tokens(pending)
            enough += f" and {spent.tokens + tokens:,} tokens{self._unknown_tokens(pending)}"
        if self.expected is None:
            wanted = f"{needed:,} more queries are needed for the next step"
            enough += (
                " that step can be asked; how many follow depends on the target, and the plan "
                f"allows {self.at_most:,} in all. Every start asks {self._to_recognise()} recorded "
                "questions again: a budget well above this one saves them."
            )
        else:
            wanted = f"about {needed:,} more queries are needed"
            again = self._may_be_repeated(pending)
            enough += " it can be finished" + (
                f", unless some must be asked again, {again:,} at most." if again else "."
            )
        return BudgetExceeded(
            f"The budget of {self.budget} is spent: {spent.queries:,} queries and "
            f"{spent.tokens:,} tokens were paid{doubt}, {wanted}. {kept(self.ledger)} {enough}",
            spent=spent.queries,
            needed=needed,
            needed_tokens=tokens,
            in_doubt=spent.in_doubt,
        )

    def _needed(self, pending: list[Span]) -> int:
        counts = self.ledger.counts()
        done = sum(counts.get(purpose, 0) for purpose in ("data", "pilot", "check"))
        now = sum(map(len, pending))
        # what is asked again comes on top of the plan
        needed = max(now, (self.expected or 0) - done + _repeats(pending))
        return needed + self._to_recognise()

    def _needed_tokens(self, pending: list[Span]) -> int:
        """Count the tokens of the plan that are left, and of what is known of the hold-out."""
        done = self.ledger.tokens()
        asked = {"check": 0, "again": 0, "data": 0, "pilot": 0}
        for span in pending:
            asked[span.probes.purpose] += len(span) * span.probes.tokens
        planned = (self.tokens or 0) - done.get("data", 0) - done.get("pilot", 0)
        left = max(asked["data"] + asked["pilot"], planned) + asked["again"] + asked["check"]
        return left + self._to_recognise() * self.ledger.longest()

    def _unknown_tokens(self, pending: list[Span]) -> str:
        """Name the sequences of the hold-out that are not made yet: of any length."""
        made = sum(len(span) for span in pending if span.probes.purpose == "check")
        left = self.checks - self.ledger.counts().get("check", 0) - made
        known = self.expected is None or left <= 0
        return "" if known else f", with those of {left:,} more sequences of the hold-out,"

    def _to_recognise(self) -> int:
        """Return how many questions a resumed run asks again: twice if the target is noisy."""
        again = asked(self.ledger.answered)
        return 2 * again if self.noisy else again

    def _may_be_repeated(self, pending: list[Span]) -> int:
        """Bound how many queries may yet be asked again beyond those that are ``pending``."""
        again = self.ledger.counts().get("again", 0) + _repeats(pending)
        return max(0, self.at_most - (self.expected or 0) - again)


def _repeats(pending: list[Span]) -> int:
    return sum(len(span) for span in pending if span.probes.purpose == "again")

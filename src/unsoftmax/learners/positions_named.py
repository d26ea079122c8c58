"""Refusals that say so where it is positions that a learner does not know.

A target whose scores depend on positions is refused by every learner without them, for as many
reasons as there are learners. One transformation around them all asks, where a learner has
refused, whether answers change when tokens change places, and what positions do
(`unsoftmax.measure.token_order`). *Queries*: 57 after a refusal, 57 more where the order matters.

It may not know why a learner has refused. Where tokens may change places the refusal stays as it
is, and so it does where these questions are not answered, or are beyond a budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from unsoftmax.errors import (
    BudgetExceeded,
    DimensionRefused,
    ModelMismatch,
    NotIdentifiable,
    OracleError,
)
from unsoftmax.learners.compose import Asking, T
from unsoftmax.measure.token_order import OrderQuestions, Positions
from unsoftmax.protocol import Learner

ORDER = "Scores depend on positions: answers change when tokens before the last one change places"
NOT_HERE = "No learner here recovers that."


def naming_positions(steps: Asking[T], learner: Learner[Any]) -> Asking[T]:
    """Run a learner's steps; a refusal names the target's positions, if there are any.

    Raises
    ------
    ModelMismatch
        Instead of the learner's refusal, which is its cause: scores depend on positions.
    """
    try:
        return (yield from steps)
    except DimensionRefused:
        raise
    except (NotIdentifiable, ModelMismatch) as refusal:
        if not np.any(refusal.determined.get("v", 1.0)):
            raise  # no answer depends on scores
        try:
            said = yield from _named(learner)
        except (OracleError, BudgetExceeded):
            said = None
        if said is None:
            raise
        raise ModelMismatch(said, determined=refusal.determined) from refusal


def _named(learner: Learner[Any]) -> Asking[str | None]:
    """Ask, and say what positions the target has; None if none are seen that are not known."""
    plan, known = learner.plan(), _knows_rotary(learner)
    tolerance = getattr(learner, "tolerance", None) or 0.0
    ask = OrderQuestions(int(learner.dim), tolerance=float(tolerance))
    if plan.longest_token is not None:
        ask = replace(ask, longest=plan.longest_token)
    if plan.most_tokens is not None:
        ask = replace(ask, most=plan.most_tokens)
    if not (yield from ask.order_matters()):
        return None
    found = yield from ask.position_kind()
    if known and found.kind in ("products", "labels", "unclear"):
        return None
    return f"{ORDER}{_in_words(found, hasattr(learner, 'rotary'))}"


def _knows_rotary(learner: Any) -> bool:
    """Whether a learner, or the one it is made of, learns rotary positions."""
    given = getattr(learner, "rotary", False) is not False
    given = given or getattr(learner, "rotary_base", None) is not None
    return given or (hasattr(learner, "of") and _knows_rotary(learner.of))


def _in_words(found: Positions, takes_rotary: bool) -> str:
    """Go on with a sentence that says that the order of tokens matters."""
    whose = "" if takes_rotary else ", in learners of heads that take it, such as LowRankHead"
    if found.kind == "products":
        return (
            ", and where the last token is 0 all others weigh the same, as with rotary positions: "
            f"rotary=True recovers these{whose}."
        )
    if found.kind == "slope":
        return (
            f", and scores fall by {found.slope:.3g} per token of distance, whatever tokens are, "
            f"as with ALiBi. {NOT_HERE}"
        )
    if found.kind == "window":
        near, far = found.window
        return (
            f", and a token that is {near} before the last one counts, one that is {far} before it "
            f"does not: a sliding window. {NOT_HERE}"
        )
    if found.kind == "labels":
        return ". No learner here recovers positions from labels."
    if found.kind == "distance":
        return (
            ", and a token's weight depends on its distance from the last one, whatever tokens "
            f"are: biases by distance, as T5's, or ALiBi's in several heads. {NOT_HERE}"
        )
    return (
        ". Rotary positions beside biases of keys and queries may do this: rotary=True with "
        f"biases=True recovers these of one head{whose}. So may positions that are added to tokens, causal "
        "masks in more layers than one, and biases by distance, which no learner here recovers."
    )

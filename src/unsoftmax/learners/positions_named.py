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
WHOLE_LAYERS = "AttentionLayerLearner (whole vectors)"
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
        if getattr(refusal, "names_positions", False):
            raise
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
    if not known and not (yield from ask.order_matters()):
        return None
    found = yield from ask.position_kind()
    if known and found.kind in ("products", "labels", "unclear"):
        return None
    return in_words(found, learner)


def _of_vectors(learner: Any) -> bool:
    return getattr(learner, "outputs", "scalar") == "vector"


def _knows_rotary(learner: Any) -> bool:
    """Whether a learner, or the one it is made of, learns rotary positions."""
    given = getattr(learner, "rotary", False) is not False
    given = given or getattr(learner, "rotary_base", None) is not None
    return given or (hasattr(learner, "of") and _knows_rotary(learner.of))


def in_words(found: Positions, learner: Any = None, *, vectors: bool = False) -> str:
    """Say what positions a target has, and what a learner, or another one, does about them.

    ``vectors``: whether the target answers with vectors, as it does where a learner asks for them.
    """
    takes, vectors = hasattr(learner, "rotary"), vectors or _of_vectors(learner)
    whose = "" if takes else " (in LowRankHead and the other learners of heads that take it)"
    of_one = (
        "LowRankHead (one head) and MultiHeadLearner (several) recover them with rotary=True and "
        "biases=True, from float64 answers"
    )
    if vectors:
        whose = "" if takes else " (in AttentionLayerLearner)"
        of_one = f"{WHOLE_LAYERS} recovers them with rotary=True, from float64 answers"
    near, far = found.window
    said = {
        "products": ", and if the last token is 0 all others weigh the same, as with rotary "
        f"positions. rotary=True{whose} recovers rotary positions.",
        "slope": f", and scores fall by {found.slope:.3g} per token of distance for all tokens, "
        f"as with ALiBi. {NOT_HERE}",
        "window": f", and a token {near} places before the last one counts, one {far} places "
        f"before it does not: a sliding window. {NOT_HERE}",
        "labels": ". No learner here recovers positions from labels.",
        "distance": ", and a token's weight depends on its distance from the last one only: "
        f"biases by distance, as T5's, or ALiBi's in several heads. {NOT_HERE} Small biases of "
        "keys and queries beside rotary positions look alike in noisy or rounded answers: from "
        "exact ones rotary=True and biases=True recover them.",
        "unclear": ". Rotary positions with biases of keys and queries may be the reason: "
        f"{of_one}. Other possible reasons, which no learner here recovers: positions added to "
        "tokens, causal masks in more than one layer, biases by distance.",
    }
    return f"{ORDER}{said[found.kind]}"

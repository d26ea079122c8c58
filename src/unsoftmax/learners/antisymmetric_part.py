"""Section 4.1's oracle as a learner of its own: f(X) − f(−X), two queries each.

Recovers that function, by any learner of it, where f itself is of no class that can be learned.
The case of the paper is one head, W, before a network without biases:

    f(X) = Σ_k w_k φ(p·A_k),  p = Σ_i α_i x_i,  φ(z) − φ(−z) = z     ReLU, GELU, SiLU, softplus
    f(X) − f(−X) = p·(A w_o)                                         a single head, v = A w_o

for the scores x_i·(W x_N) of −X are those of X. Nothing of the network need be known, and nothing
of it is learned but A w_o.

Queries: two for every one of the learner's. Differences from the paper: the errors of both answers
count, relative to their own sizes: where f's even part is large beside the odd one, little of the
answers' precision is left, and the certificate is wider by as much. From about 10² times on the
differences look like rounded answers, and exact learners refuse them.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic

import numpy as np

from unsoftmax.errors import DimensionRefused, ModelMismatch, NotIdentifiable
from unsoftmax.learners.compose import antisymmetric, mapped
from unsoftmax.learners.settings import Configured
from unsoftmax.learners.single_head.exact import ExactHead
from unsoftmax.learners.single_head.low_rank import LowRankHead
from unsoftmax.measure.precision import KAPPA
from unsoftmax.probes import Round
from unsoftmax.protocol import (
    Answers,
    Found,
    Learner,
    M,
    Outputs,
    Plan,
    Steps,
    outputs_of,
    vocabulary_of,
)
from unsoftmax.refusals import reworded


@dataclass(frozen=True)  # dim is a property here, which a slotted class does not protect
class SeveralPerQuery(Configured, Generic[M]):
    """What learns by another learner, asking so many times for every query of its."""

    of: Learner[M]

    times: ClassVar[int]

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.of.dim)

    @property
    def outputs(self) -> Outputs:  # type: ignore[override]
        """What a sequence is answered with, as the learner takes it."""
        return outputs_of(self.of)

    def plan(self) -> Plan:
        """Say beforehand what learning costs: so many times what the learner does."""
        one, times = self.of.plan(), self.times
        queries = None if one.queries is None else times * one.queries
        most, tokens, formula = times * one.at_most, times * one.tokens, f"{times}·({one.formula})"
        return replace(one, queries=queries, at_most=most, tokens=tokens, formula=formula)


@dataclass(frozen=True)
class Antisymmetric(SeveralPerQuery[M]):
    """Learn f(X) − f(−X) by another learner, at two queries each (Section 4.1).

    Parameters
    ----------
    of : Learner
        What f(X) − f(−X) is: `ExactHead` or `LowRankHead` for one head before a network without
        biases, whatever its neurons are as long as φ(z) − φ(−z) = z. Without query biases: these
        change the scores of −X. A tolerance is that of a difference, twice that of an answer.

    Raises
    ------
    TypeError, ValueError
        ``of`` is no learner, or learns biases.

    Notes
    -----
    *Queries*: twice the learner's, the hold-out's included. *Determined up to* what its learner
    says: with a single head W and v = A w_o, and W is free where A w_o = 0. The model is that of
    f(X) − f(−X), not of f. *Source*: Section 4.1 of arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, scipy, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> head, A = us.SingleHead(rng.standard_normal((4, 4)), np.ones(4)), np.eye(4)
    >>> def gelu_layer(X):
    ...     z = np.einsum("bn,bnd->bd", head.attention(X), X) @ A
    ...     return (z * scipy.special.ndtr(z)).sum(axis=1)
    >>> recovery = us.learn(gelu_layer, us.learners.Antisymmetric(us.learners.ExactHead(4)))
    >>> bool(np.allclose(recovery.model.W, head.W, rtol=0, atol=1e-12))
    True
    """

    of: Learner[M]

    times: ClassVar[int] = 2
    revision: ClassVar[int] = 1
    parts: ClassVar[dict[str, tuple[type[Any], ...]]] = {"of": (ExactHead, LowRankHead)}
    """What ``of`` may be on the command line, the first by default."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.of, "steps", None)) or not hasattr(self.of, "dim"):
            raise TypeError(f"of must be a learner; it is {self.of!r}.")
        if vocabulary_of(self.of) is not None:
            raise ValueError("of must learn from vectors: ids have no −X.")
        if getattr(self.of, "biases", False):
            raise ValueError(
                "of must learn no biases: they change the scores of −X, and f(X) − f(−X) is no "
                "head then."
            )

    def steps(self, checks: int) -> Steps[M]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        loss = Cancellation()
        learning = antisymmetric(self.of.steps(checks // 2))
        found: Found[M] = yield from _about_differences(mapped(learning, answer=loss.noted), loss)
        return loss.counted(found)


@dataclass(slots=True)
class Cancellation:
    """How much larger than their differences answers are.

    An answer's error is relative to its own size, a learner of differences takes it for relative
    to theirs: what it bounds is wider by the ratio, family by family of probes at its largest.
    Nor is an answer to one unit vector one product here, rounded once: it is a sum over neurons.
    """

    ratio: float = 2.0
    """Two answers of the differences' size, at least."""

    def noted(self, answers: Answers) -> Answers:
        """Take a round's answers, those to −X after those to X, and return them."""
        half = len(answers) // 2
        for plus, minus in zip(answers[:half], answers[half:], strict=True):
            left = float(np.max(np.abs(plus - minus), initial=0.0))
            if left > 0:
                both = float(np.max(np.abs(plus) + np.abs(minus)))
                self.ratio = max(self.ratio, both / left)
        return answers

    @property
    def sentence(self) -> str:
        """Say what is lost."""
        return (
            f"Answers are up to {self.ratio:.3g} times as large as their differences, which are "
            "less precise by that factor."
        )

    def counted(self, found: Found[M]) -> Found[M]:
        """Widen the certificate by it."""
        certificate = found.certificate
        errors = {name: KAPPA * self.ratio * error for name, error in certificate.errors.items()}
        assumes = (
            "The model, and all statements about the target here, are about f(X) − f(−X).",
            f"{self.sentence} The bounds are wider by that factor, and by {KAPPA:g} for sums "
            "inside the target.",
            *certificate.assumes,
        )
        wider = replace(certificate, errors=errors, assumes=assumes)
        note = "The model is f(X) − f(−X), not the target: its v is A w_o of a network behind it."
        return replace(found, certificate=wider, notes=(note, *found.notes))


def _about_differences(
    steps: Generator[Round, Answers, Found[M]], loss: Cancellation
) -> Generator[Round, Answers, Found[M]]:
    """Say of refusals that they are about f(X) − f(−X)."""
    about = "As f(X) − f(−X), which is asked here: "
    try:
        return (yield from steps)
    except DimensionRefused:
        raise
    except NotIdentifiable as error:
        raise reworded(error, f"{about}{error}") from error
    except ModelMismatch as error:
        raise reworded(error, f"{about}{error} {loss.sentence}") from error

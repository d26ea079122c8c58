"""The two seams, Learner and Oracle, and what passes through them.

The only two-way edge of the whole program is ``answers = yield round`` in `Learner.steps`.
A learner is a value: settings in frozen fields, no I/O, no clock, no global randomness. An
oracle is any callable from (B, N, d), or from ids (B, N), to (B,) or (B, m). Neither knows the
other; the runner feeds both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from unsoftmax.probes import FARTHEST, Array, Round

Answers: TypeAlias = list[Array]
"""The answers of a round: for each part (n,), or (n, m) for a learner of vectors."""

Outputs: TypeAlias = Literal["scalar", "vector", "positions"]
"""A number; m numbers; or m at the last position or at all N of them, a row of N·m."""


class Model(Protocol):
    """What a learner recovers: a function that can be called and saved."""

    @property
    def dim(self) -> int:
        """Dimension d of a token."""

    def __call__(self, X: Array, /) -> Array:
        """Map sequences (B, N, d) to numbers (B,), or to vectors (B, m)."""

    def save(self, path: str) -> None:
        """Write the parameters to a safetensors file."""

    def parameter_norm(self, name: str) -> float:
        """Return the norm of a parameter that the certificate bounds."""


M = TypeVar("M", bound=Model)
M_co = TypeVar("M_co", bound=Model, covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Oracle(Protocol):
    """Anything that answers: (B, N, d) → B numbers, or B rows of m numbers, m always the same.

    It may raise `unsoftmax.RetryLater` for a batch that it does not answer now. One that answers at
    all positions as well, (B, N, m), as a block does, may have a method ``all`` for that: it is
    called instead where all positions are of use (`verify` of a `Stack` or of a function).
    """

    def __call__(self, X: Array, /) -> Any:
        """Answer a batch of sequences: (B,) or (B, m)."""


class Asks(Protocol[R_co]):
    """What to ask, and what the answers mean.

    Where answers are vectors it has a class attribute ``outputs = "vector"``; see `outputs_of`.
    """

    revision: ClassVar[int]
    """Raised whenever the same settings would ask other probes than before."""

    @property
    def dim(self) -> int:
        """Dimension d of a token."""

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the probes, as nested JSON."""

    def plan(self) -> Plan:
        """Say beforehand what it will cost."""

    def steps(self, checks: int) -> Generator[Round, Answers, R_co]:
        """Yield rounds, take their answers, and return what was found.

        ``checks`` queries, no more, go into the learner's own hold-out.
        """


class Learner(Asks["Found[M_co]"], Protocol[M_co]):
    """What asks in order to recover a model."""


def outputs_of(learner: object) -> Outputs:
    """Return what a sequence is answered with: "scalar", a number, or "vector", m numbers.

    With "positions" it may be m numbers at every position as well. Rounds are answered with arrays
    (n,) or (n, m). A learner that does not say takes numbers; one of vectors takes (B,) as m = 1.

    Raises
    ------
    TypeError
        The learner's ``outputs`` are something else.
    """
    outputs: Outputs = getattr(learner, "outputs", "scalar")
    if outputs not in get_args(Outputs):
        raise TypeError(f'A learner\'s outputs are "scalar" or "vector"; they are {outputs!r}.')
    return outputs


def asks_far(learner: object) -> str:
    """Say how long a learner's tokens are whatever the target is; "" where they follow its weights.

    A learner says so by a class attribute ``far``.
    """
    return str(getattr(learner, "far", ""))


def at_all_positions(oracle: Oracle) -> Callable[[Array], Any]:
    """Return what answers with (B, N, m) where an oracle can: its ``all``, or itself."""
    everywhere: Callable[[Array], Any] = getattr(oracle, "all", oracle)
    return everywhere


def vocabulary_of(asks: object) -> int | None:
    """Return how many ids a learner asks of, or None where it asks vectors.

    A learner with an attribute ``vocabulary`` that is a number asks ids below it: its probes have
    one number per token, and an oracle gets whole numbers (B, N). Targets that say what they take
    have the attribute as well; it is None where they do not say how many ids there are.

    Examples
    --------
    >>> vocabulary_of(object())
    """
    vocabulary = getattr(asks, "vocabulary", None)
    return None if vocabulary is None else int(vocabulary)


def as_array(numbers: Any) -> NDArray[Any]:
    """Return numbers as an array; one that is masked is missing: NaN.

    Lists of masked arrays keep their masks, which NumPy alone would drop.
    """
    if _holds_masks(numbers):
        numbers = [as_array(part) for part in numbers]
    y = np.asarray(numbers)
    if np.ma.is_masked(numbers) and y.dtype.kind in "fiub":
        return np.where(np.ma.getmaskarray(numbers), np.nan, y)
    return y


def _holds_masks(numbers: Any) -> bool:
    if not isinstance(numbers, (list, tuple)):
        return False
    return any(isinstance(x, np.ma.MaskedArray) or _holds_masks(x) for x in numbers)


@dataclass(frozen=True, slots=True)
class Plan:
    """What learning will cost, before anything is asked.

    Attributes
    ----------
    queries : int or None
        Queries that the learner needs; None when only a bound is known.
    at_most : int
        The same with every query that may have to be asked again. The hold-out comes on top.
    tokens : int
        Tokens in those ``queries`` sequences (in ``at_most`` where ``queries`` is None).
    rounds : int
        Rounds at most: steps that wait for the answers of the one before.
    formula : str
        Where ``queries`` comes from.
    longest_token : float or None
        No token is longer (2-norm), the hold-out's included: the learner's radius, or the end of
        float32's range where lengths are chosen from the answers. `learn` sends no longer one.
        None where the learner does not say.
    most_tokens : int or None
        No sequence has more tokens, the hold-out's included. None where the learner does not say.
    vocabulary : int or None
        How many ids tokens are chosen from; None where they are vectors.
    """

    queries: int | None
    at_most: int
    tokens: int
    rounds: int
    formula: str
    longest_token: float | None = None
    most_tokens: int | None = None
    vocabulary: int | None = None

    @property
    def lengths(self) -> str:
        """Say how many tokens sequences have and how long tokens are; some targets refuse some.

        Examples
        --------
        >>> Plan(4, 4, 4, 1, "d", longest_token=100.0, most_tokens=512).lengths
        'Questions have up to 512 tokens, none longer than 100 (2-norm).'
        """
        count = "any number of" if self.most_tokens is None else f"up to {self.most_tokens:,}"
        unit = "token" if self.most_tokens == 1 else "tokens"
        if self.vocabulary is not None:
            return f"Questions have {count} {unit}, ids of a vocabulary of {self.vocabulary:,}."
        if self.longest_token is None:
            norms = "of lengths that the learner does not say"
        elif self.longest_token < FARTHEST:
            norms = f"none longer than {self.longest_token:.4g} (2-norm)"
        else:
            norms = (
                "of lengths chosen from the answers: the smaller the weights, the longer, up to "
                f"{self.longest_token:.1g} (2-norm)"
            )
        return f"Questions have {count} {unit}, {norms}."

    def _repr_html_(self) -> str:
        rows = (
            ("queries", self.queries),
            ("at most, the hold-out on top", self.at_most),
            ("tokens", self.tokens),
        )
        cells = "".join(f"<tr><th>{k}</th><td>{v:,}</td></tr>" for k, v in rows if v is not None)
        return f"<table>{cells}<tr><th>formula</th><td>{self.formula}</td></tr></table>"


@dataclass(frozen=True, slots=True)
class Certificate:
    """How far the recovered parameters can be from the true ones.

    The bounds need no ground truth: they follow from the theorem, the answers' precision and
    the answers themselves, under the assumptions listed in ``assumes``.

    Attributes
    ----------
    errors : dict of str to float
        Absolute bound per parameter: Frobenius norm for matrices, 2-norm for vectors,
        absolute value for numbers. ``inf`` where no finite bound exists. ``constant`` and ``slope``
        bound a function: of a network behind heads that of the network alone, by constant +
        slope·‖p‖ of the pooled p, and not the answer to a sequence. Of gated neurons ``square``
        does far out: there square·‖x‖² is more than slope·‖x‖.
    assumes : tuple of str
        What the bounds rest on, a sentence each; also why a bound is ``inf``.
    """

    errors: Mapping[str, float]
    assumes: tuple[str, ...]

    @property
    def W_error(self) -> float:
        """Bound on ‖Ŵ − W‖_F."""
        return self._bound("W")

    @property
    def v_error(self) -> float:
        """Bound on ‖v̂ − v‖₂."""
        return self._bound("v")

    def _bound(self, name: str) -> float:
        if name not in self.errors:
            raise KeyError(
                f"This certificate has no bound on {name}; errors has {', '.join(self.errors)}."
            )
        return self.errors[name]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Fresh answers that the recovered model was not learned from, and how well it predicts them.

    Residuals are relative to the answer's natural size ``max_i‖x_i‖·‖v‖ + |c|``; those of
    vectors count number by number.

    Attributes
    ----------
    queries : int
        Queries spent on checking.
    max_residual, rms_residual : float
        Largest and root-mean-square relative residual; NaN when nothing was checked.
    tolerance : float
        The largest residual that the certificate lets one expect.
    passed : bool
        Whether every residual is within its own tolerance; False when nothing was checked, or
        nothing that depends on W (a note says so).
    residuals : tuple of (float, float)
        Residuals with their tolerances, smallest residual first: all of them up to `MOST`, of
        more as many that are evenly spaced among them, the largest included.
    """

    MOST: ClassVar[int] = 256
    """Residuals kept: enough for a picture of them. More: files grow."""

    queries: int
    max_residual: float
    rms_residual: float
    tolerance: float
    passed: bool
    residuals: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, queries: int, residuals: Array, tolerances: Array) -> Evidence:
        """Summarise relative residuals, each with its own tolerance."""
        if not len(residuals):
            return cls(queries, np.nan, np.nan, np.nan, False)
        missed, allowed = np.abs(residuals).ravel(), np.ravel(tolerances)
        order = np.argsort(missed, kind="stable")
        kept = order[np.linspace(0, len(order) - 1, min(len(order), cls.MOST)).astype(np.intp)]
        return cls(
            queries=queries,
            max_residual=float(np.max(missed)),
            rms_residual=float(np.sqrt(np.mean(missed**2))),
            tolerance=float(np.max(allowed)),
            passed=bool(np.all(missed <= allowed)),
            residuals=tuple(zip(missed[kept].tolist(), allowed[kept].tolist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Course:
    """When the answers of a run came, and what they were for.

    Attributes
    ----------
    points : tuple of (float, int, str)
        Seconds since the run began, answers known by then (those of earlier runs on the same
        ledger included), and the phase they were asked in. Of a long run some are left out.
    phases : dict of str to (int, float)
        Answers that came in each phase, in the learner's words, and the seconds it took.
    recorded : int
        Answers of earlier runs on the same ledger: when these came is not known.
    paid : int
        Queries paid over the ledger's life.
    """

    points: tuple[tuple[float, int, str], ...] = ()
    phases: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    recorded: int = 0
    paid: int = 0

    def __post_init__(self) -> None:
        took = [*(s for s, _, _ in self.points), *(s for _, s in self.phases.values())]
        if not max(took, default=0.0) < 1e15:
            raise ValueError(f"{max(took)} seconds")


@dataclass(frozen=True, slots=True)
class FunctionBound:
    """How far a model is from its target on a distribution of sequences (§7.1, question (ii)).

    Attributes
    ----------
    bound : float
        The largest ``|y − f̂(X)|`` of the samples, number by number for vectors: all but a share
        ``eps`` of the distribution's sequences are missed by no more, with confidence
        1 − ``delta``.
    eps, delta : float
        ε and δ.
    samples : int
        Samples asked, ln(1/δ)/ε or more.
    """

    bound: float
    eps: float
    delta: float
    samples: int


@dataclass(frozen=True, slots=True)
class Found(Generic[M_co]):
    """What a learner returns: the model, how sure it is, and what a user should know."""

    model: M_co
    certificate: Certificate
    evidence: Evidence
    notes: tuple[str, ...] = field(default=())
    function: FunctionBound | None = None
    """A bound on the function, where samples of a distribution were asked."""


Steps: TypeAlias = Generator[Round, Answers, Found[M]]

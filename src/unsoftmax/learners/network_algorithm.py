"""A_FFN as a plain function: any algorithm that asks an oracle and returns a network.

Section 4.1 of arXiv 2601.16873 reduces a one-layer Transformer to a network from its values: let
A_FFN be any algorithm that learns the network g from queries; then T([x]) = g(x) gives it g.
Here A_FFN is a function of the user's, ``algorithm(oracle) → ReluNetwork``; ``oracle`` maps points
(B, d) to g's values (B,). Every call of ``oracle`` is one round, kept in the ledger and counted
like any learner's; nothing else of the function is known.

Queries: the algorithm's own, ``most_queries`` at most, and a hold-out of fresh points. What its
result is off by is the user's word, for the answers to a function's questions say nothing of it:

    |ĝ(x) − g(x)| ≤ constant_error + slope_error·‖x‖

Without that word the network must predict fresh points roughly, and nothing is certified.

A function that asks by calling is run as a generator that is asked: an algorithm written as
``algorithm(ask) → result`` calls ``ask(question)`` and waits for the answer. Learners are
generators: they yield questions and are sent the answers. `as_generator` joins the two: the
function runs in a thread of its own, and exactly one of the two sides runs at a time, so this is a
coroutine in a thread's clothes: no two things happen at once, and what is asked does not depend on
timing.

However the generator ends, the function ends with it: it is told at its next question, by an
exception that is no `Exception`, so that ``except Exception`` does not swallow it. A function
that computes on and asks nothing cannot be stopped; it is left behind after some seconds and
ends with the process.
"""

import contextvars
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from unsoftmax.arrangement.strips import Hyperplanes, Strips
from unsoftmax.errors import AlgorithmError, UnsoftmaxError
from unsoftmax.learners.compose import limited
from unsoftmax.learners.settings import Configured, at_least_0, name_of, whole_number
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.models import ReluNetwork
from unsoftmax.models.arrays import points
from unsoftmax.models.relu_network import typical_length
from unsoftmax.probes import Array, Indices, Round, Singles
from unsoftmax.protocol import Answers, Certificate, Found, Plan, Steps
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.judge import Residuals, hold_out


@dataclass(frozen=True, slots=True)
class PointOracle:
    """What an algorithm asks: the values of a network at points.

    Attributes
    ----------
    dim : int
        Dimension d of a point.
    """

    dim: int
    ask: Callable[[Array], Array]

    def __call__(self, x: ArrayLike) -> Array:
        """Map points (B, d), or (B, 1, d), to values (B,).

        Raises
        ------
        ValueError
            The points have another shape, or are not finite.
        """
        x = points(x, self.dim, "oracle")
        if not np.isfinite(x).all():
            raise ValueError("The oracle takes finite points; these hold NaN or infinity.")
        return self.ask(x.copy()).copy() if len(x) else np.zeros(0)


Algorithm: TypeAlias = Callable[[PointOracle], ReluNetwork]
"""A_FFN: a function from an oracle of points to the network that it learned."""


# Ranges of log₁₀ of the length of fresh points, in distances of a typical hyperplane, half of them
# each. Near points see most hyperplanes; far ones see neurons that are dead near 0.
NEAR, FAR = (-0.5, 0.5), (0.5, 4.0)
# Share of the answers' size that a network may miss fresh points by where no error is stated: what
# misses more is no copy of the target.
ROUGHLY = 0.01
# Seconds for which an algorithm that is no longer needed is waited for.
PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class NetworkAlgorithm(Configured):
    """Learn a network by a plain function, ``algorithm(oracle) → ReluNetwork`` (A_FFN).

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    algorithm : callable
        A function that learns the network: it takes an oracle, which maps points (B, d) to values
        (B,) and has an attribute dim, and returns a ReluNetwork. Every call of the oracle is a
        round: ask in large batches. Started again on a ledger it must ask the same, so random
        numbers need a seed.
    constant_error : float, optional
        Your word that the function's network is off by constant_error + slope_error·‖x‖ at most.
        Where one is given the other is 0; without both nothing is certified.
    slope_error : float, optional
        The other half of constant_error.
    most_queries : int
        Most points that the function may ask.
    seed : int
        Decides the hold-out.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or not of its type.

    Notes
    -----
    *Queries*: the function's own. *Determined up to* what the function determines: its network is
    returned unchanged, and the certificate is the error that was stated.
    While learning: `AlgorithmError` where the function raises, returns no network of ``dim``
    dimensions, or asks for too much; errors of unsoftmax pass as they are. The function runs in
    a thread of its own while the learner waits for it, and ends with the learner: its next
    question raises. *Source*: Section 4.1 of arXiv 2601.16873.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> def two_neurons(oracle):
    ...     up, down = oracle(np.array([[1.0], [-1.0]]))
    ...     return us.ReluNetwork([[1.0, -1.0]], [up, down])
    >>> target = us.ReluNetwork([[3.0, -1.0]], [1.0, 2.0])
    >>> recovery = us.learn(target, us.learners.NetworkAlgorithm(1, two_neurons))
    >>> recovery.model.w_o
    array([3., 2.])
    """

    dim: int
    algorithm: Algorithm
    constant_error: float | None = None
    slope_error: float | None = None
    most_queries: int = 1_000_000
    seed: int = 0

    revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("most_queries", self.most_queries, 1)
        whole_number("seed", self.seed, 0)
        if isinstance(self.algorithm, type) or not callable(self.algorithm):
            raise TypeError(
                "algorithm must be a function from an oracle to a ReluNetwork; it is "
                f"{self.algorithm!r}."
            )
        for name in ("constant_error", "slope_error"):
            if getattr(self, name) is not None:
                at_least_0(name, getattr(self, name))

    @property
    def name(self) -> str:
        """What the function is called, module:function."""
        return name_of(self.algorithm)

    def plan(self) -> Plan:
        """Say what learning costs at most: nobody knows what the function will ask."""
        most = int(self.most_queries)
        formula = f"those of {self.name}, {most:,} at most"
        return Cost.of(most, rounds=most + 1).plan(formula, 1, known=False)

    def steps(self, checks: int) -> Steps[ReluNetwork]:
        """Ask, and return what was found; see `unsoftmax.protocol.Learner`."""
        too_many = AlgorithmError(
            f"The algorithm {self.name} asks for more than most_queries = {self.most_queries:,} "
            "points: allow more, or end it earlier."
        )
        network = yield from limited(self._called(), too_many, queries=int(self.most_queries))
        errors, stated = self._errors()
        residuals = AlgorithmResiduals(network, *errors, stated)
        rng = np.random.default_rng(self.seed)
        fresh = residuals.points(checks, rng)
        beside = residuals.beside_hyperplanes(rng)[: checks // 2]
        fresh[: len(beside)] = beside
        asked = [Singles(fresh, phase="hold-out", purpose="check")] if checks else []
        judgement = yield from hold_out(asked, residuals.at, checks)
        if judgement.refuses:
            miss, allowed = judgement.worst
            word = "stated" if stated else "allowed"
            raise Reason.ALGORITHM_MISSES.error(
                name=self.name, missed=miss, most=allowed, word=word
            )
        certificate = Certificate(
            dict(zip(("constant", "slope"), errors, strict=True)), self._assumes(stated, checks)
        )
        note = f"The network was learned by {self.name}."
        return Found(network, certificate, judgement.evidence, (note,))

    def _called(self) -> Generator[Round, Answers, ReluNetwork]:
        """Run the function: every question is a round; name it where it fails."""
        phase = f"network, by {self.name}"

        def asked(x: Array) -> Round:
            return [Singles(x, phase=phase, purpose="data")]

        network = yield from _as_rounds(as_generator(self._answered, PATIENCE_S), asked)
        if not isinstance(network, ReluNetwork) or network.dim != self.dim:
            raise AlgorithmError(
                f"The algorithm {self.name} must return a ReluNetwork of {self.dim} dimensions; "
                f"it returned {network!r}."
            )
        return network

    def _answered(self, ask: Callable[[Array], Array]) -> ReluNetwork:
        """Call the function; name it where it fails by itself."""
        answers = _Answers(ask)
        try:
            return self.algorithm(PointOracle(int(self.dim), answers))
        except (UnsoftmaxError, MemoryError):
            raise
        except BaseException as error:  # SystemExit too: it would end the process without a word
            if error is answers.error:
                raise
            raise AlgorithmError(
                f"The algorithm {self.name} failed: {type(error).__name__}: {error}"
            ) from error

    def _errors(self) -> tuple[tuple[float, float], bool]:
        """Return the stated error's constant and slope, and whether there is one."""
        given = self.constant_error, self.slope_error
        if given == (None, None):
            return (np.inf, np.inf), False
        constant, slope = (float(error or 0.0) for error in given)
        return (constant, slope), True

    def _assumes(self, stated: bool, checks: int) -> tuple[str, ...]:
        sentence = (
            f"The network of {self.name} is off by at most constant + slope·‖x‖, as stated: the "
            "hold-out tests this but cannot prove it."
            if stated
            else f"Nothing is certified about the network of {self.name}: no error was stated."
        )
        return (sentence, *(() if checks else ("Nothing was checked.",)))


@dataclass(slots=True)
class _Answers:
    """Answers to an algorithm's questions, and the error that came in place of one."""

    ask: Callable[[Array], Array]
    error: BaseException | None = None

    def __call__(self, x: Array) -> Array:
        try:
            return self.ask(x)
        except BaseException as error:
            self.error = error
            raise


def _as_rounds(
    steps: Generator[Array, Array, ReluNetwork], asked: Callable[[Array], Round]
) -> Generator[Round, Answers, ReluNetwork]:
    """Ask points one family at a time."""
    try:
        x = next(steps)
        while True:
            try:
                [y] = yield asked(x)
            except Exception as error:
                x = steps.throw(error)
            else:
                x = steps.send(y)
    except StopIteration as end:
        network: ReluNetwork = end.value
        return network
    finally:
        steps.close()


@dataclass(frozen=True, slots=True)
class AlgorithmResiduals:
    """How far fresh points are from a network's values, and how far they may be."""

    network: ReluNetwork
    constant: float
    slope: float
    stated: bool

    @property
    def length(self) -> float:
        """Typical distance of a hyperplane from 0."""
        return typical_length(self.network)

    def points(self, count: int, rng: np.random.Generator) -> Array:
        """Draw fresh points of many lengths, (count, d)."""
        x = rng.standard_normal((count, self.network.dim)) / np.sqrt(self.network.dim)
        near, far = (rng.uniform(*decades, (count, 1)) for decades in (NEAR, FAR))
        lengths = 10.0 ** np.where(np.arange(count)[:, None] % 2, far, near)
        return np.asarray(self.length * lengths * x)

    def beside_hyperplanes(self, rng: np.random.Generator) -> Array:
        """Draw points on both sides of hyperplanes, where a loss would be told from errors."""
        g = self.network
        steep = np.linalg.norm(g.A, axis=0) * np.abs(g.w_o)
        bends = np.flatnonzero(steep)

        def noticed(x: Array, which: Indices) -> Array:
            slope = steep[bends[which]]
            allowed = ROUGHLY * slope
            if self.stated:
                allowed = self.constant + self.slope * np.linalg.norm(x, axis=1)
            return np.asarray(2 * (self._own(x, g(x)) + allowed) / slope)

        planes = Hyperplanes.of(g.A.T[bends], g.b[bends])
        strips = Strips.beside(planes, np.sign(g.w_o[bends]), noticed, self.length, np.inf, rng)
        return rng.permutation(strips.tokens)

    def _own(self, x: Array, y: Array) -> Array:
        """Return what answers y to points x are off by themselves."""
        g = self.network
        terms = (np.abs(x) @ np.abs(g.A) + np.abs(g.b)) @ np.abs(g.w_o)
        return np.asarray(KAPPA * UNIT * g.dim * (terms + abs(g.c) + np.abs(y)))

    def at(self, X: Array, y: Array) -> Residuals:
        """Compare answers to points (B, 1, d)."""
        x = X[:, 0]
        norm = np.linalg.norm(x, axis=1)
        height = np.hypot(norm / self.length, 1.0)
        size = height * (float(np.sqrt(np.mean((y / height) ** 2))) or 1.0)
        own = self._own(x, y)
        allowed = self.constant + self.slope * norm if self.stated else ROUGHLY * size
        return Residuals.of(y - self.network(x), own=own, allowed=allowed, size=size)


Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
CallingFunction: TypeAlias = Callable[[Callable[[Q], A]], T]
"""A function of ``ask``, which it calls with a question for an answer."""


class NoMoreAnswers(BaseException):
    """Raised in a function at its next question: nobody is there to answer."""


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """How something ended: with a value or an error."""

    value: T | None = None
    error: BaseException | None = None

    def unwrapped(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


@dataclass(slots=True)
class _Meeting(Generic[Q, A, T]):
    """Where the function and the generator meet: one waits while the other runs."""

    told: SimpleQueue[tuple[Q] | _Outcome[T]] = field(default_factory=SimpleQueue)
    """A question, or how the function ended."""
    replies: SimpleQueue[_Outcome[A]] = field(default_factory=SimpleQueue)
    over: threading.Event = field(default_factory=threading.Event)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """The function may ask from threads of its own."""

    def ask(self, question: Q) -> A:
        """Ask, from the function's side."""
        with self.one_at_a_time:
            if self.over.is_set():
                raise NoMoreAnswers
            self.told.put((question,))
            return self.replies.get().unwrapped()

    def run(self, function: CallingFunction[Q, A, T]) -> None:
        """Run the function to its end."""
        try:
            end: _Outcome[T] = _Outcome(function(self.ask))
        except BaseException as error:
            end = _Outcome(error=error)
        self.over.set()
        self.told.put(end)

    def end(self) -> None:
        """End the function at the question it waits at, or at its next one."""
        self.over.set()
        self.replies.put(_Outcome(error=NoMoreAnswers()))


def as_generator(function: CallingFunction[Q, A, T], patience_s: float) -> Generator[Q, A, T]:
    """Yield what a function asks, send it the answers, and return what it returns.

    Parameters
    ----------
    function : callable
        Takes ``ask``. Its errors are raised here, with the function's own traceback.
    patience_s : float
        For how long a function that was told to end is waited for.
    """
    meeting: _Meeting[Q, A, T] = _Meeting()
    # settings of this context, NumPy's error state among them, are the function's too
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(meeting.run, function), daemon=True)
    thread.start()
    try:
        while not isinstance(told := meeting.told.get(), _Outcome):
            try:
                answer = yield told[0]
            except Exception as error:
                meeting.replies.put(_Outcome(error=error))
            else:
                meeting.replies.put(_Outcome(answer))
        return told.unwrapped()
    finally:
        meeting.end()
        thread.join(patience_s)

"""Transformations of learning: functions from generator to generator.

A learner's generator yields rounds, is sent their answers and returns what it found. Each
function here takes such a generator and returns another one, which asks something else of the
target or asks the same under a condition:

    restricted     tokens of a subspace: the target as a function on R^k
    antisymmetric  f(X) − f(−X) instead of f(X): two queries each (Section 4.1)
    limited        no more queries and rounds than a limit
    short          no more tokens than a target takes
    within_reach   no longer tokens than a target takes, as it is told or found out
    as_planned     no more than the plan; singular equations are a refusal
    named          the same rounds under another phase
    recorded       the same rounds, which are kept with their answers
    read_as        the same rounds, and answers that are read beside what was asked
    together       several generators in step: what they ask at the same time is one round

One loop drives the inner generators (`_driven`). Results and errors of an inner generator pass
through; an error that is thrown in at a round is thrown into the generators that asked it; and
however it ends, the inner generators are closed. Nothing here knows what a round asks, or why.

Source: Section 4.1 (antisymmetric part) and Proposition C.2 (restriction) of arXiv 2601.16873.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np

from unsoftmax.errors import DimensionRefused, OracleError, TokensRefused
from unsoftmax.probes import Array, Design, Embedded, Probes, Round, Sequences
from unsoftmax.protocol import Answers, Learner, M, Plan, Steps
from unsoftmax.refusals import Reason

T = TypeVar("T")
Asking: TypeAlias = Generator[Round, Answers, T]
"""A generator that asks: yields rounds, is sent answers, returns a T."""
Recorded: TypeAlias = "list[tuple[Probes, Array]]"
"""What was asked, each family with its answers."""


def restricted(steps: Asking[T], basis: Array) -> Asking[T]:
    """Run a learner of k dimensions on the span of the columns of ``basis``, (d, k).

    Where the columns are orthonormal inner products of tokens stay, so a head (W, v) looks like
    (EᵀWE, Eᵀv) to it.
    """

    def embedded(asked: Round) -> Round:
        return [Embedded.of(probes, basis) for probes in asked]

    return mapped(steps, ask=embedded)


@dataclass(frozen=True, slots=True)
class Negated(Probes):
    """Other probes, every token with its sign changed."""

    of: Probes

    @property
    def tokens(self) -> int:  # noqa: D102
        return self.of.tokens

    @property
    def dim(self) -> int:  # noqa: D102
        return self.of.dim

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, span: slice) -> Array:
        return np.negative(self.of[span])

    def design(self) -> Design:  # noqa: D102
        return self.of.design()


def antisymmetric(steps: Asking[T]) -> Asking[T]:
    """Let a learner of f learn f(X) − f(−X) instead: every query becomes two.

    For a Transformer without biases that is a single head, whatever its network:

        T(X) − T(−X) = (A w_o)·Σ_i softmax_i(x_iᵀW x_N) x_i,

    for relu(z) − relu(−z) = z, and the scores of −X are those of X: a head with v = A w_o.
    """

    def both(asked: Round) -> Round:
        return [*asked, *(Negated(p, phase=f"{p.phase}, −X", purpose=p.purpose) for p in asked)]

    def difference(answers: Answers) -> Answers:
        half = len(answers) // 2
        return [plus - minus for plus, minus in zip(answers[:half], answers[half:], strict=True)]

    return mapped(steps, ask=both, answer=difference)


def limited(
    steps: Asking[T], error: Exception, *, queries: int, rounds: int | None = None
) -> Asking[T]:
    """Raise ``error`` instead of asking more than so many queries, or more than so many rounds.

    Queries of the hold-out (purpose "check") are not counted, as in `Plan.at_most`.
    """
    asked_queries = asked_rounds = 0

    def counted(asked: Round) -> Round:
        nonlocal asked_queries, asked_rounds
        asked_queries += sum(len(probes) for probes in asked if probes.purpose != "check")
        asked_rounds += 1
        if asked_queries > queries or (rounds is not None and asked_rounds > rounds):
            raise error
        return asked

    return mapped(steps, ask=counted)


def answered_by(steps: Asking[T], answer: Callable[[Round], Asking[Answers]]) -> Asking[T]:
    """Run a generator whose rounds another one has answered; its errors are thrown into it."""
    try:
        asked = next(steps)
        while True:
            try:
                answers = yield from answer(asked)
            except Exception as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answers)
    except StopIteration as end:
        found: T = end.value
        return found
    finally:
        steps.close()


def short(steps: Asking[T], most_tokens: int) -> Asking[T]:
    """Ask no sequence of more tokens; steps that want to get the refusal a target would give.

    They may do without, as a hold-out does (`validate.judge.fresh_answers`).
    """

    def answer(asked: Round) -> Asking[Answers]:
        longest = max((probes.tokens for probes in asked), default=0)
        if longest > most_tokens:
            raise OracleError(
                f"Sequences of {longest} tokens were not asked: the limit is most_tokens = "
                f"{most_tokens}."
            )
        return (yield asked)

    return answered_by(steps, answer)


# Norms that are tried where a target refuses a token: limits that people set are round numbers.
LENGTHS = tuple(digit * 10.0**power for power in range(-3, 15) for digit in (1.0, 2.0, 3.0, 5.0))
# Tokens are shorter than a limit by this share: its owner may round otherwise.
INSIDE = 1 - 2.0**-20
# … and no longer than one that is told by more than this: sums of two tokens are rounded.
SLACK = 1 + 1e-9
# A target may refuse some directions before others: so often a learner begins again.
RESTARTS = 4
# Sequences of a round are made so many at a time to find its longest token.
AT_A_TIME = 1024


def within_reach(
    learner: Learner[M], steps: Callable[[Learner[M]], Steps[M]], radius: float | None = None
) -> Steps[M]:
    """Run a learner within the lengths of tokens that the target takes, and say which.

    A hold-out, and two-token readings, do with shorter tokens. A learner that has a radius begins
    again with it. Others end with the refusal.

    Parameters
    ----------
    learner : Learner
        The learner.
    steps : callable
        Returns a learner's steps.
    radius : float, optional
        The longest token that the target takes, where that is known.
    """
    reach = Reach() if radius is None else Reach(radius, f"The limit is radius = {radius:g}.")
    for again in range(RESTARTS + 1):
        try:
            found = yield from reach.within(steps(learner))
            break
        except TokensRefused as refused:
            own = getattr(learner, "radius", 0.0)
            if again == RESTARTS or (own is not None and own <= refused.longest):
                raise
            try:
                learner = replace(learner, radius=refused.longest)  # type: ignore[type-var]
            except ValueError:  # not beside its other settings
                raise refused from None
    if not reach.met:
        return found
    said = (
        f"No token was longer than {reach.longest:.3g} (2-norm), as "
        f"{'the target refuses some' if radius is None else 'radius says'}: longer ones may be "
        "answered otherwise."
    )
    assumes = (*found.certificate.assumes, said)
    return replace(found, certificate=replace(found.certificate, assumes=assumes))


@dataclass(slots=True)
class Reach:
    """How long tokens may be; `within` holds steps to it.

    Attributes
    ----------
    longest : float
        No token is longer.
    why : str
        Who says so.
    met : bool
        Whether longer ones were wanted.
    """

    longest: float = np.inf
    why: str = ""
    met: bool = False

    def within(self, steps: Asking[T]) -> Asking[T]:
        """Ask no longer token; steps that want to get a `TokensRefused`.

        Where the target refuses a round its longest token is asked by itself, and shorter ones
        along it: what is answered is the limit from then on.
        """
        return answered_by(steps, self._answers)

    def _answers(self, asked: Round) -> Asking[Answers]:
        if np.isfinite(self.longest):
            norm = float(np.linalg.norm(_longest_token(asked)))
            if norm > self.longest * SLACK:
                raise self._refusal(norm)
        try:
            return (yield asked)
        except OracleError as refusal:
            if not refusal.refused or isinstance(refusal, DimensionRefused):
                raise
            token = _longest_token(asked)
            answered = yield from _answered_length(token)
            if answered is None:
                raise
            self.longest = answered
            said = refusal.refused.rstrip(".")
            self.why = f"{said}. The target answers tokens up to norm {answered:.3g}."
            raise self._refusal(float(np.linalg.norm(token))) from refusal

    def _refusal(self, norm: float) -> TokensRefused:
        self.met = True
        return TokensRefused(
            f"{self.why} This learner needs a token of norm {norm:.3g}. ExactHead, LowRankHead, "
            "SensingHead, ApproximateHead and MultiHeadLearner keep within a radius; learners of "
            "networks and layers cannot. us.audit finds what is answered.",
            self.longest,
        )


def _longest_token(asked: Round) -> Array:
    """Return the longest token of a round, of no numbers where it has no token."""
    longest, most = np.zeros(0), -1.0
    for probes in asked:
        for start in range(0, len(probes), AT_A_TIME):
            tokens = probes[start : start + AT_A_TIME].reshape(-1, probes.dim)
            norms = np.linalg.norm(tokens, axis=1)
            if float(np.max(norms, initial=-1.0)) > most:
                most, longest = float(norms.max()), tokens[int(np.argmax(norms))]
    return longest


def _answered_length(token: Array) -> Asking[float | None]:
    """Ask for the longest of `LENGTHS` at which a token is answered that is refused by itself.

    None where it is answered as it is, or at no length: the refusal has another reason.
    """
    norm = float(np.linalg.norm(token))
    lengths = [INSIDE * length for length in LENGTHS if length < norm]
    if not lengths or (yield from _is_answered(token)):
        return None
    unit = token / norm
    if not (yield from _is_answered(lengths[0] * unit)):
        return None
    answered, refused = 0, len(lengths)
    while refused - answered > 1:
        tried = (answered + refused) // 2
        if (yield from _is_answered(lengths[tried] * unit)):
            answered = tried
        else:
            refused = tried
    return lengths[answered]


def _is_answered(token: Array) -> Asking[bool]:
    asked = Sequences(token[None, None], phase="how long tokens may be", purpose="pilot")
    try:
        yield [asked]
    except OracleError:
        return False
    return True


def as_planned(steps: Asking[T], plan: Plan, excess: str, contrary: str) -> Asking[T]:
    """Refuse a target that takes more than is planned, or whose equations are singular.

    ``excess`` says what the first means, ``contrary`` what the target is not in the second case.
    """
    error = Reason.MORE_THAN_PLANNED.error(
        limit=f"{plan.at_most:,} queries or {plan.rounds:,} rounds", why=excess
    )
    try:
        return (yield from limited(steps, error, queries=plan.at_most, rounds=plan.rounds))
    except np.linalg.LinAlgError as singular:
        raise Reason.SINGULAR_EQUATIONS.error(contrary=contrary) from singular


def refusing_no_numbers(steps: Asking[T]) -> Asking[T]:
    """Refuse a target whose answers end in arithmetic that has no result.

    Solvers raise errors of their own where numbers are infinite or NaN, as hostile answers and
    ill-conditioned equations make them; other errors are left as they are.
    """
    try:
        return (yield from steps)
    except (ArithmeticError, ValueError) as error:
        solver = isinstance(error, ArithmeticError | np.linalg.LinAlgError)
        if not solver and "nan" not in str(error).lower():
            raise
        raise Reason.NO_NUMBERS.error(error=str(error).rstrip(".")) from error


def named(steps: Asking[T], name: str) -> Asking[T]:
    """Ask the same under the phase "name: phase", for the progress that a user sees."""

    def renamed(asked: Round) -> Round:
        return [replace(probes, phase=f"{name}: {probes.phase}") for probes in asked]

    return mapped(steps, ask=renamed)


def read_as(steps: Asking[T], read: Callable[[Round, Answers], Answers]) -> Asking[T]:
    """Ask the same, and send what ``read`` makes of a round and its answers."""
    [found] = yield from _driven(
        [steps], lambda asked: asked[0], lambda asked, answers: [read(asked[0], answers)]
    )
    return found


def recorded(steps: Asking[T], kept: Recorded) -> Asking[T]:
    """Run a generator, and keep what it asks with the answers."""
    last: Round = []

    def ask(asked: Round) -> Round:
        last[:] = asked
        return asked

    def answer(answers: Answers) -> Answers:
        kept.extend(zip(last, answers, strict=True))
        return answers

    return mapped(steps, ask, answer)


def together(steps: Sequence[Asking[T]]) -> Asking[list[T]]:
    """Run generators in step: what they ask at the same time is one round.

    One that ends earlier drops out; one that raises ends all.
    """

    def joined(asked: list[Round]) -> Round:
        return [probes for one in asked for probes in one]

    def parted(asked: list[Round], answers: Answers) -> list[Answers]:
        rest = iter(answers)
        return [list(islice(rest, len(one))) for one in asked]

    return _driven(steps, joined, parted)


def mapped(
    steps: Asking[T],
    ask: Callable[[Round], Round] = lambda asked: asked,
    answer: Callable[[Answers], Answers] = lambda answers: answers,
) -> Asking[T]:
    """Run a generator that is asked for ``ask(round)`` and sent ``answer(answers)``."""
    [found] = yield from _driven(
        [steps], lambda asked: ask(asked[0]), lambda _, answers: [answer(answers)]
    )
    return found


def _driven(
    steps: Sequence[Asking[T]],
    join: Callable[[list[Round]], Round],
    part: Callable[[list[Round], Answers], list[Answers]],
) -> Asking[list[T]]:
    """Drive generators in step to their ends and return their results; close them all.

    ``join`` makes one round of those that the unfinished ones ask, in order, and ``part`` makes
    the answers of each of them from that round's.
    """
    asked: dict[int, Round] = {}
    found: dict[int, T] = {}

    def advance(k: int, resume: Callable[[], Round]) -> None:
        try:
            asked[k] = resume()
        except StopIteration as end:
            asked.pop(k, None)
            found[k] = end.value

    try:
        for k, one in enumerate(steps):
            advance(k, partial(next, one))
        while asked:
            rounds = list(asked.values())
            joint = join(rounds)
            resume: list[Callable[[], Round]]
            try:
                answers = yield joint
            except Exception as error:
                resume = [partial(steps[k].throw, error) for k in asked]
            else:
                each = part(rounds, answers)
                resume = [partial(steps[k].send, y) for k, y in zip(asked, each, strict=True)]
            for k, go_on in zip(list(asked), resume, strict=True):
                advance(k, go_on)
        return [found[k] for k in range(len(steps))]
    finally:
        for one in steps:
            one.close()

"""The first round of every learner of a head's values: v, c, and how precise answers are.

    f([0]) = c, f([ρe_k]) = ρv_k + c        d queries, d + 1 with biases
    three tokens, one token                 the first two families of the hold-out
    three tokens again                      what changes from call to call

v and c are read by `unsoftmax.measure.single_tokens`; the precision is recognised from the
answers' format, what changes between two answers to one question, and what single tokens
miss x·v + c by. What cannot be a head's answers is refused here, and v = 0, which leaves W free.

A target that computes X → V → output adds up value biases for c, which may cancel: c is small and
its rounding is not. Short tokens show it, whose answers are c but for rounding.

Single tokens are answered by round numbers where v is round, so their answers tell no format:
several tokens do. Where the hold-out asks too few of these first, float64 is assumed until the
answers that W is read from tell (`Values.reread`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from unsoftmax.errors import TokensRefused
from unsoftmax.learners.compose import Asking
from unsoftmax.measure.precision import (
    FLOAT32_UNIT,
    KAPPA,
    UNIT,
    WITNESSES,
    Precision,
    noise_factor,
    significant_bits,
    small_by_chance,
    why,
)
from unsoftmax.measure.single_tokens import SingleTokens, Values
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Sequences
from unsoftmax.refusals import Reason
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.head_comparison import of_straight
from unsoftmax.validate.judge import Answered

# -- What two answers to one question differ by: how much, of which kind, and whether it grows
#
# Answers y₁ and y₂ to n questions asked twice differ by d. What changes from call to call may be
#
#     of the terms     d ∝ S, the natural size of the answer (sums in another order)
#     of the answer    d ∝ |y| (a relative jitter)
#     absolute         d does not depend on the question (noise on top)
#
# Each kind is a normal distribution whose deviation is fitted; the likeliest is taken, and every
# other that is nearly as likely on top. Questions of very different sizes tell the kinds apart; of
# one size they do not, and all are assumed.
#
# *Drift.* Where all d have one sign and nearly one size (t-statistic), answers drift. Between the
# two askings lie ``apart`` questions; all of the run's are further apart, so what was seen is
# scaled up to them, and goes into the precision. That takes the answers' natural sizes; where they
# are not known yet, before a network is, a drift is refused: `validate.sequences.refuse_drift`.
#
# Nothing is asked here. Source: beyond the paper.


# A kind is left out where its log-likelihood is so far below the best one's. Smaller: the wrong
# kind is taken alone by chance; larger: all are assumed, and certificates are wider.
CLEAR = 10.0
# Changes drift where their mean is so many times its own standard error.
COHERENT = 4.0
# Fewer changes show no drift.
TELLING = 3
# Relative changes beyond this are cut: squares must stay float64 numbers.
LARGEST_CHANGE = 1e150
# A drift is taken to be so many times as fast as it was seen.
DRIFT_MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Answers to the same questions, asked twice.

    Attributes
    ----------
    first, second : ndarray (n,)
        The answers.
    size : ndarray (n,)
        Their natural sizes.
    apart : int
        Questions between the two.
    ahead : int
        Questions of the whole run.

    Examples
    --------
    >>> y = np.array([1.0, -2.0, 3.0, 4e-3, 5e-2, -60.0])
    >>> jitter = np.array([1e-9, -2e-9, 0.0, 1e-9, -1e-9, 2e-9])
    >>> found = Changes(y, y * (1 + jitter), np.abs(y), 1, 1).added_to(Precision())
    >>> 1e-9 < found.relative < 1e-7, found.absolute
    (True, 0.0)
    """

    first: Array
    second: Array
    size: Array
    apart: int = 1
    ahead: int = 1

    @property
    def deviation(self) -> float:
        """Standard deviation of an answer, whatever it depends on."""
        return _deviation(self.second - self.first)

    def added_to(self, precision: Precision) -> Precision:
        """Return the precision with the changes seen, as large as they may be."""
        if not self.deviation:
            return precision
        factor = noise_factor(len(self.first))
        of_terms, of_answers, absolute = (self._bound(scale, factor) for scale in self._kinds())
        parts = {
            f"{of_terms:.1e} of their terms": of_terms,
            f"{of_answers:.1e} of themselves": of_answers,
            f"{absolute:.1e}": absolute,
        }
        drifts = any(self._drift(scale) for scale in self._kinds())
        sentence = (
            f"The same question got different answers: noise of standard deviation about "
            f"{self.deviation:.1e}, estimated from {len(self.first)} repeats; answers are taken "
            f"to be off by ±{', ±'.join(name for name, part in parts.items() if part)}."
        )
        drifting = (
            f"They all change the same way, as if answers drifted: {self.apart} questions lay "
            f"between, and up to {self.ahead} are counted on.",
        )
        return replace(
            precision,
            unit=precision.unit + of_terms / KAPPA,
            relative=precision.relative + of_answers,
            absolute=precision.absolute + absolute,
            noise=self.deviation,
            why=(*precision.why, sentence, *(drifting if drifts else ())),
        )

    def _kinds(self) -> tuple[Array | None, Array | None, Array | None]:
        """Return what changes are relative to, of each kind; None where it is none of that."""
        # answers keep their signs: a drift by a share of them has one sign then
        scales = (self.size, self.first, np.ones(len(self.first)))
        likely = np.array([self._likelihood(scale) for scale in scales])
        nearly = likely >= likely.max() - CLEAR
        of_terms, of_answers, absolute = (
            scale if taken else None for scale, taken in zip(scales, nearly, strict=True)
        )
        return of_terms, of_answers, absolute

    def _likelihood(self, scale: Array) -> float:
        """Return the log-likelihood of changes proportional to a scale, their deviation fitted."""
        deviation = _deviation(self._relative_to(scale))
        sizes = np.maximum(np.abs(scale), TINY)
        return float(-len(scale) * np.log(deviation) - np.sum(np.log(sizes)))

    def _bound(self, scale: Array | None, factor: float) -> float:
        """Bound the changes of one kind."""
        if scale is None:
            return 0.0
        return factor * _deviation(self._relative_to(scale)) + self._drift(scale)

    def _drift(self, scale: Array | None) -> float:
        """Bound what a drift adds up to over the whole run; 0 where there is none."""
        if scale is None or len(scale) < TELLING:
            return 0.0
        changes = self._relative_to(scale)
        mean = float(np.mean(changes))
        error = float(np.std(changes, ddof=1)) / np.sqrt(len(changes))
        if abs(mean) <= COHERENT * error:
            return 0.0
        return DRIFT_MARGIN * abs(mean) * max(1.0, self.ahead / self.apart)

    def _relative_to(self, scale: Array) -> Array:
        """Return the changes relative to a scale, at most so large that squares do not overflow."""
        with np.errstate(over="ignore"):
            relative = (self.second - self.first) / np.where(np.abs(scale) > TINY, scale, TINY)
        return np.clip(relative, -LARGEST_CHANGE, LARGEST_CHANGE)


def _deviation(changes: Array) -> float:
    """Return the deviation of one answer where two differ by ``changes``."""
    return float(np.sqrt(np.mean(changes**2) / 2)) if len(changes) else 0.0


# ρ, the norm of single tokens, with biases: c is subtracted from every answer, and longer tokens
# save v's digits. Without biases ρ is 1.
BIASED_SCALE = 2.0**10
# What single tokens miss x·v + c by is put down to arithmetic no coarser than float32 at d =
# 1024; beyond, the target is refused.
COARSEST_UNIT = 4 * FLOAT32_UNIT
# Arithmetic is assumed to be so many times as coarse as the largest miss seen: few tokens were
# asked, and their misses may be small by chance.
DEFECT = 2.0
# Answers that change by this share of their size from call to call are refused: nothing is left
# of the logits.
MOST_NOISE = 0.03
# Larger answers, and answers below its inverse, are refused: their squares leave float64.
LARGEST_ANSWER = 1e100
# Answers of so few significant bits are labels: even 8-bit floats have more.
LABEL_BITS = 2
# v counts as 0 where ‖v̂‖ is below so many times its error: offsets are balanced on v̂, so that
# its direction must be known.
STANDS_OUT = 3.0
# Norm of the single tokens that show the rounding of c. Smaller: float32 would not see them;
# larger: v's own rounding hides c's.
SHORT = 2.0**-16
# c is taken to be off by so many times what short tokens miss it by: three are asked, and all may
# miss it by little by chance (once in 16,000 for 16).
OF_C = 16.0
# The same for entries of v, and longer tokens.
OF_V = 3.0
# A token misses x·v̂ + ĉ by its answer's error, ĉ's, and those of v̂.
ERRORS_OF_A_MISS = 3.0
# What short tokens miss c by is put down to rounding up to this share of tokens of norm 1: in
# float32 biases are 4,000 times as large as the values then. Beyond, it is no head.
MOST_HIDDEN = 2.0**-12
# Where all of what short tokens miss is one share of x·v but for this part, answers are straight
# near 0 with another slope, as those of sigmoid weights are. Three misses are alike by chance once
# in a million times.
IN_PROPORTION = 2.0**-10
# What longer tokens then miss is put down to answers in steps up to so many times that.
MOST_IN_STEPS = 16.0
# All entries of v together may be small beside their terms with this probability, and no less
# likely: with 2 dimensions that is 100 times, with 16 or more it is within κ.
BY_CHANCE = 1e-4
# An answer tells whether it is rounded where a rounding like the single tokens' is more than this
# share of it: far beyond float64's own.
ROUNDING_SEEN = 2.0**-40


@dataclass(frozen=True, slots=True)
class FirstRoundSettings:
    """What the learner knows before the first round."""

    biases: bool = False
    """Whether there may be a c."""
    declared: Precision | None = None
    """What answers may be off by, where the user says so; read off the answers otherwise."""
    scale: float | None = None
    """Norm ρ of the single tokens that give v."""
    radius: float = np.inf
    """No token of the hold-out is longer."""
    listens: bool = False
    """Whether the learner passes answers to two tokens on to `Values.told_by`, and takes
    `Values.shared` for the errors of v and c in them."""
    ahead: int = 1
    """Queries of the whole run: answers that drift go on drifting."""

    @property
    def token_norm(self) -> float:
        """ρ."""
        if self.scale is not None:
            return self.scale
        within = float(np.exp2(np.floor(np.log2(self.radius))))
        return min(BIASED_SCALE if self.biases else 1.0, within)


@dataclass(frozen=True, slots=True)
class FirstRound:
    """What the first round gave."""

    values: Values
    probes: Sequences
    """The three-token sequences of the hold-out."""
    answers: Array
    closing: int
    """Queries left for the hold-out's last round."""
    checks: int
    """Queries of the whole hold-out."""
    as_rounded: Callable[[], Values] | None = None
    """Where it is open whether these answers are rounded: reads v and c as if they were."""

    @property
    def answered(self) -> Answered:
        """The hold-out's first sequences with their answers."""
        return self.probes.X, self.answers


def ask_first_round(
    dim: int, checks: int, rng: np.random.Generator, given: FirstRoundSettings
) -> Asking[FirstRound]:
    """Learn v (and c) and the precision of the answers; refuse what is no head, and v = 0.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    checks : int
        Queries of the whole hold-out.
    rng : Generator
        Makes the hold-out.
    given : FirstRoundSettings
        What is known before.
    """
    share = holdout.Shares.of(checks)
    # with biases more single tokens, and fewer repeats: some are short, others as long as those
    # that v is read from, where nothing hides what it is off by
    moved = share.repeats // 4 if given.biases else 0
    three = holdout.opening(dim, share.opening, rng, given.radius)
    norms = (given.token_norm, SHORT) if given.biases else (1.0, 1.0)
    straight = holdout.straight(dim, share.straight + moved, rng, given.radius, norms)
    singles = SingleTokens.probes(dim, given.token_norm, given.biases)
    try:
        opened, line, *answers = yield [three, straight, *singles]
    except TokensRefused as refused:
        if given.scale is not None or not refused.longest < given.radius:
            raise
        within = replace(given, radius=refused.longest)
        return (yield from ask_first_round(dim, checks, rng, within))
    tokens = SingleTokens.of(answers, given.token_norm)
    _refuse_size(tokens.y)
    if given.declared is None:  # coarse answers may be round numbers
        _refuse_labels(np.concatenate([opened, line]))
    again = np.empty(0)
    if share.repeats:
        [again] = yield [holdout.repeated(three, share.repeats - moved)]
    asked = _Asked(tokens, (three.X, opened), (straight.X[:, 0], line), again, given)
    values = asked.values()
    if _counts_as_zero(values):
        longer = holdout.opening(dim, share.closing, rng, given.radius)
        [y] = yield [longer]
        _refuse_without_value(values, np.concatenate([three.X, longer.X]), np.append(opened, y))
    if not given.listens:
        values = replace(values, shared=None)
    as_rounded = None if values.reread is None else asked.as_rounded
    return FirstRound(values, three, opened, share.closing, checks, as_rounded)


def or_biased(biases: bool) -> str:
    """Say what else may explain a target that is no head without biases."""
    if biases:
        return ""
    return ", or it has biases: then ExactHead, LowRankHead or MultiHeadLearner with biases=True"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the first round asked and was answered."""

    tokens: SingleTokens
    three: Answered
    """Three tokens: no weights make their answers round."""
    line: Answered
    """One token (n, d)."""
    again: Array
    """The first of the three tokens' answers once more."""
    given: FirstRoundSettings

    @property
    def _answers(self) -> list[Array]:
        return [self.three[1], self.line[1], self.tokens.y]

    def values(self) -> Values:
        """Read v and c; where these answers do not tell their format, exact ones are assumed."""
        if self.given.declared is not None:
            before = self.three[1][: len(self.again)]
            _refuse_beyond(self.given.declared, before, self.again)
            return self._straightened(self.given.declared)
        form = Precision.of_format(self._answers)
        values = self._straightened(self._with_noise(form))
        if not (self.given.listens and self._open(form)):
            return values
        exact = _read(self.tokens, self._with_noise(Precision()), *self.line)
        return replace(exact, reread=partial(self._reread, form))

    def as_rounded(self) -> Values:
        """Read v and c as if these answers were as rounded as they look."""
        form = Precision.of_format(self._answers)
        return self._stood_out(self._straightened(self._with_noise(form)))

    def _open(self, form: Precision) -> bool:
        """Say whether these answers may be round without being rounded, or are too few to tell."""
        few = np.count_nonzero(np.concatenate(self._answers)) < WITNESSES
        return bool(np.count_nonzero(self.three[1]) < WITNESSES and (few or form != Precision()))

    def _reread(self, form: Precision, y: Array) -> Values | None:
        """Read v and c again with the format that telling answers have; ``form`` is to be seen."""
        if form.absolute:  # what is relative to answers is seen in all of them
            y = y[form.absolute > ROUNDING_SEEN * np.abs(y)]
        if len(y) < WITNESSES:
            return None
        told = Precision.of_format([*self._answers, y])
        return self._stood_out(self._straightened(self._with_noise(told)))

    def _stood_out(self, values: Values) -> Values:
        """Refuse a v that is 0 as far as its error tells."""
        if _counts_as_zero(values):
            _refuse_without_value(values, *self.three)
        return values

    def _with_noise(self, precision: Precision) -> Precision:
        """Add the noise that repeated questions show; refuse where it leaves nothing."""
        n, first = len(self.again), self.tokens
        longest = np.linalg.norm(self.three[0][:n], axis=2).max(axis=1)
        changes = Changes(
            self.three[1][:n],
            self.again,
            longest * np.linalg.norm(first.v) + abs(first.constant),
            sum(map(len, self._answers)) + (first.at_zero is not None),
            self.given.ahead,
        )
        precision = changes.added_to(precision)
        seen = np.concatenate(self._answers[:2])
        size = np.sqrt(np.mean(seen**2)) if precision.noise else 0.0
        if precision.noise > MOST_NOISE * size:
            raise Reason.ANSWERS_VARY.error(noise=precision.noise, size=size)
        return precision

    def _straightened(self, precision: Precision) -> Values:
        return _straightened(self.tokens, precision, *self.line, self.given)


def _counts_as_zero(values: Values) -> bool:
    """Say whether v is 0 as far as its error tells."""
    return bool(values.norm <= STANDS_OUT * np.linalg.norm(values.v_error))


def _refuse_beyond(declared: Precision, before: Array, again: Array) -> None:
    """Refuse answers that vary by more than twice the declared tolerance."""
    moved = float(np.max(np.abs(before - again), initial=0.0))
    largest = float(np.max(np.abs(before), initial=0.0))
    rounding = (2 * KAPPA * UNIT + declared.relative) * largest
    if moved > 2 * declared.absolute * (1 + 1e-9) + rounding:
        raise Reason.BEYOND_TOLERANCE.error(moved=moved, tolerance=declared.absolute)


def _straightened(
    tokens: SingleTokens, precision: Precision, x: Array, line: Array, given: FirstRoundSettings
) -> Values:
    """Read v and c; hold x·v + c against fresh tokens x (n, d) and their answers ``line``.

    Where answers miss it coarser arithmetic is assumed, as far as that may be.
    """
    values = _read(tokens, precision, x, line)
    declared, compared = given.declared is not None, of_straight(x, line, values)
    if np.all(np.abs(compared.relative) <= compared.tolerance):
        if declared or not given.listens:
            return values if declared else _all_entries(values, precision, x, line)
        # v's own bound may be wide enough to explain what is missed; the errors that W is read
        # with are not, and answers to two tokens are off by as much
        unit = _coarseness(x, line, replace(values, v_error=values.among_others.v))
    else:
        unit = _coarseness(x, line, values)
        if declared or unit > max(COARSEST_UNIT, values.precision.unit):
            least = ", or the tolerance is too small" if declared else ""
            missed = np.max(np.abs(compared.relative))
            raise Reason.TOKENS_NOT_LINEAR.error(
                form="x·v + c" if given.biases else "x·v",
                missed=missed,
                otherwise=or_biased(given.biases) + least,
            )
    # terms that seemed to cancel in c are counted anew, in roundoffs of this size
    coarser = precision.with_unit(unit, "Single tokens are not answered exactly")
    if coarser is not precision:
        values = _read(tokens, coarser, x, line)
    return _all_entries(values, precision, x, line)


def _all_entries(values: Values, precision: Precision, x: Array, line: Array) -> Values:
    """Widen the bound on v to what fresh tokens x (n, d) show all d entries to be off by."""
    long = np.linalg.norm(x, axis=1) > np.sqrt(SHORT)
    return as_missed(
        values, precision, x[long], line[long] - values.c - x[long] @ values.v, line[long]
    )


def as_missed(values: Values, precision: Precision, x: Array, missed: Array, y: Array) -> Values:
    """Widen the bound on v to what answers y (n,) to tokens x (n, d), alone or pooled, miss.

    They miss x·v̂ + ĉ by x·(v̂ − v) as well, in random directions ‖x‖/√d of ‖v̂ − v‖, whatever
    the entries' errors have in common; ``precision`` is what answers of any target are off by.
    """
    bound, lengths = float(np.linalg.norm(values.v_error)), np.linalg.norm(x, axis=1)
    usual = precision.deviation(lengths * values.norm + abs(values.c), y)
    seen = usual * np.sqrt(x.shape[1]) < bound * lengths
    if not np.any(seen):
        return values
    beyond = (missed**2 - ERRORS_OF_A_MISS * usual**2)[seen] / lengths[seen] ** 2
    off = np.sqrt(x.shape[1] * max(0.0, float(np.mean(beyond))))
    wider = max(1.0, small_by_chance(len(beyond)) * float(off) / bound)
    return replace(values, v_error=wider * values.v_error)


def _coarseness(x: Array, line: Array, values: Values) -> float:
    """Return the roundoff that explains what tokens x (n, d) miss x·v + c by; 0 if none has to."""
    compared = of_straight(x, line, values)
    residual = np.abs(compared.relative)
    if np.all(residual <= compared.tolerance):
        return 0.0
    exact = replace(values, precision=replace(values.precision, unit=0.0))
    beyond = np.max(residual - of_straight(x, line, exact).tolerance)
    return DEFECT * float(beyond) / KAPPA


def _read(tokens: SingleTokens, precision: Precision, x: Array, line: Array) -> Values:
    """Read v and c with errors as large as fresh tokens x show those of sums to be.

    What they miss x·v̂ + ĉ by are errors of the target's own arithmetic: their own, and those of
    v̂ and ĉ. Where none is asked errors are taken to be those of sums as large as v and c, of c at
    tokens of norm 1.
    """
    inside = KAPPA / 2 * precision.unit  # as `Precision.error_at_unit_vector`
    missed = np.abs((line - tokens.constant) - x @ tokens.v)  # the first difference is exact
    # both answers are rounded; where arithmetic matches the format only one is taken off
    both = 2 if precision.unit == UNIT else 1
    rounded = both * precision.relative * np.abs(line) + 2 * precision.absolute
    clear = np.maximum(missed - rounded, 0.0)
    lengths = np.linalg.norm(x, axis=1)
    short = lengths < np.sqrt(SHORT)
    terms = 0.0
    if not np.all(short):
        d = len(tokens.v)
        chance = 2 * small_by_chance(d, BY_CHANCE) / KAPPA
        by_chance = max(1.0, chance) * np.linalg.norm(tokens.v) / np.sqrt(d)
        # the last rounding may hide what sums are off by (a large c): it is not taken off
        terms = min(float(by_chance), OF_V * float(np.max((missed / lengths)[~short])) / inside)
    if tokens.at_zero is None:
        return tokens.values(precision, terms)
    if not np.any(short):
        return tokens.values(precision, terms, float(np.linalg.norm(tokens.v)))
    coarse, c = float(np.max(clear[short])) / inside, abs(tokens.constant)
    most = MOST_HIDDEN * float(np.linalg.norm(tokens.v) + c) / inside
    in_steps = bool(np.all(line[short] == tokens.constant))
    own_share = line[short] - tokens.constant, x[short] @ tokens.v
    if coarse > most or (not in_steps and _in_proportion(*own_share)):
        return tokens.values(precision, terms)  # no rounding: judged as it is
    if coarse > c and in_steps:
        # answers in steps leave short tokens at c's own, and miss longer ones by half a step
        own = lengths * np.linalg.norm(tokens.v)
        longer = DEFECT * float(np.max(clear / inside - own))
        coarse = max(coarse, min(longer, MOST_IN_STEPS * most))
    precision = precision.with_hidden(
        max(0.0, coarse - c), "Short tokens are not answered by c exactly: terms that cancel in it"
    )
    return tokens.values(precision, terms, max(0.0, OF_C * coarse - c))


def _in_proportion(y: Array, expected: Array) -> bool:
    """Say whether answers are one share of what is expected, another than 1, as no rounding is."""
    missed = y - expected
    share = float(missed @ expected) / max(float(expected @ expected), TINY)
    left = np.linalg.norm(missed - share * expected)
    return len(y) > 1 and bool(left < IN_PROPORTION * np.linalg.norm(missed))


def _refuse_size(y: Array) -> None:
    """Refuse answers whose squares float64 cannot hold."""
    largest, most = float(np.max(np.abs(y))), LARGEST_ANSWER
    if largest > most or 0 < largest < 1 / most:
        raise Reason.NO_ROOM_IN_FLOAT64.error(size=largest, least=1 / most, most=most)


def _refuse_labels(y: Array) -> None:
    """Refuse answers that are a handful of round numbers."""
    values = np.unique(y)
    if len(values) > 1 and significant_bits(y) <= LABEL_BITS:
        raise Reason.ANSWERS_ARE_LABELS.error(
            values=", ".join(f"{value:g}" for value in values[:6]), what="an attention head"
        )


def _refuse_without_value(values: Values, X: Array, y: Array) -> None:
    """Refuse v = 0, as far as the answers tell: W is free if longer sequences X say so too."""
    size = np.linalg.norm(X, axis=2).max(axis=1)
    precision = values.precision
    if precision.exact:
        # rounding to zero hides the format until something longer is not zero
        precision = Precision.of_format([y])
    v_error = np.linalg.norm(values.v_error + precision.absolute)
    bound = precision.error(size * values.norm + abs(values.c), y) + values.c_error
    bound = bound + size * (values.norm + v_error)
    if np.any(np.abs(y - values.c) > bound):
        raise Reason.LONGER_SEQUENCES_CONTRADICT.error(
            also="Heads whose values cancel are MultiHeadLearner's.",
            how="as if v = 0",
            contrary="not an attention head",
        )
    raise Reason.VALUE_IS_0.error(
        {"v": values.v, "c": values.c},
        also=why(precision) if v_error else "",
        known=" as far as the answers tell" if v_error else "",
    )

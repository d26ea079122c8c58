"""What tells the heads and maps of a layer of ids: counts of tokens, and mixtures of them.

A few tokens at H + 4 ratios each show all heads, and mixtures of these which belong together and
their odds. Beside this base every other token takes H + 4 ratios and 2H/3 mixtures, until the V_hi
of all tokens show every head's range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.learners.attention_layer.count_curves import MixtureFit, matched
from unsoftmax.learners.attention_layer.id_answers import EXPLAINED, CountAnswers, LoneVectors
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.tokens.table_head import TokenTable
from unsoftmax.measure.precision import KAPPA, UNIT
from unsoftmax.measure.token_map import AnswerNoise
from unsoftmax.probes import Array, Copies, Ids, Indices, Round
from unsoftmax.refusals import Reason

# Tokens whose heads are told apart together, of which so many must be readable.
_BASE, _LEAST_BASE = 6, 3
# Ratios of counts beyond the number of heads, ...
_SPARE_RATIOS = 4
# ... and mixtures of several of the base for each head. Without them logits of twelve heads are off
# by 1e-5 where they can be by 1e-13.
_MIXED = 5
# Mixtures of every other token with some of the base, for each head, and at least.
_MIXED_BESIDE, _LEAST_MIXED = 2 / 3, 2
# Counts in mixtures differ by so much, in logarithms, from those that make all weights alike.
_SPREAD = 2.0
# Tokens beyond the mean rank of the heads: their singular values show the rank.
SPARE_TOKENS = 8
# Singular values of answers so many times what errors make are heads, those of a range likewise.
_HEAD_NOISE, _RANGE_NOISE = 30.0, 12.0
# Tokens whose logits are known no better are left out.
_UNREAD = 1e-2
# Fits that miss answers by so many times as much are of no heads: what answers are off by is known
# only from fits themselves, up to two times as much as lone tokens and copies show.
_NO_HEADS = 25.0
# Answers may be off by so many times what fits of single tokens miss.
_BESIDE = 2.0


@dataclass(frozen=True, slots=True)
class IdReading:
    """What a layer of ids is read with."""

    table: TokenTable | None
    lone: Indices
    """Ids that were asked alone; the first one is the query token of counts."""
    single: LoneVectors
    noise: AnswerNoise
    context: int
    rng: np.random.Generator

    def without_residual(self, answers: CountAnswers) -> tuple[IdReading, CountAnswers]:
        """Leave out what a residual connection adds to the answers there are."""
        assert self.table is not None
        x = self.table.vectors[self.lone]
        single = replace(self.single, y=self.single.y - x)
        return replace(self, single=single), replace(answers, single=single, y=answers.y - x[0])

    # -- heads

    def few_heads(self) -> Asking[tuple[int, bool]]:
        """Return how many heads counts of ids show, and whether the last id adds something itself.

        With a table that is a residual connection. Without one vectors of ids are not used.

        Raises
        ------
        ModelMismatch, NotIdentifiable
            Heads do not answer counts like this, or answers have too few numbers to tell; or the
            last id adds what is not its vector.
        """
        answers = yield from self.opened()
        curves = replace(answers, lone=False)
        H, adds = self.heads(curves), self._jumps(answers)
        if not H:
            raise Reason.FIRST_TOKEN_DOES_NOT_COUNT.error()
        self._refuse_other_curves(curves, self._alone(curves, H))
        if adds and self.table is not None:
            same = self.table.vectors.shape[1] == answers.y.shape[1]
            left = self.without_residual(answers)[1] if same else answers
            yield from self.refuse_what_the_last_adds(left)
        return H, adds

    def refuse_what_the_last_adds(self, answers: CountAnswers) -> Asking[None]:
        """Refuse a layer whose last id adds to answers what no residual connection does.

        Lone ids are answered then by something that counts of them beside another id never show. A
        saturated head may do so, too, but as a rule not beside each of several query tokens.

        Raises
        ------
        ModelMismatch
            The last id adds something itself.
        """
        count = self.heads(answers) + _SPARE_RATIOS
        for t in answers.places.tolist():
            if not self._jumps(answers):
                return
            other = self._with_first(t)
            answers = yield from other._with_ratios(
                other._unasked(np.array([1])), np.array([0]), self._ratios(count)
            )
        raise Reason.LAST_ID_ADDS.error()

    def _jumps(self, answers: CountAnswers) -> bool:
        """Tell whether lone ids show more than counts of them beside another one."""
        return self.heads(answers) > self.heads(replace(answers, lone=False))

    def _with_first(self, t: int) -> IdReading:
        """Take another lone token as the query token."""
        order = np.append(t, np.setdiff1d(np.arange(len(self.lone)), t))
        single = replace(self.single, y=self.single.y[order], lifted=self.single.lifted[order])
        return replace(self, lone=self.lone[order], single=single)

    def _unasked(self, places: Indices) -> CountAnswers:
        """Return answers to counts of some lone tokens, none yet."""
        none = np.zeros((0, len(places))), np.zeros(0), np.zeros((0, self.single.y.shape[1]))
        return CountAnswers(self.single, places, *none, self.noise)

    def opened(self) -> Asking[CountAnswers]:
        """Ask counts of a few tokens, more of them than heads."""
        answers = self._unasked(np.arange(1, 1 + min(_BASE, len(self.lone) - 1)))
        places, count = answers.places, 2 * _SPARE_RATIOS
        ratios = self._ratios(count)
        while True:
            answers = yield from self._with_ratios(answers, np.arange(len(places)), ratios)
            asked = len(answers.own) // len(places)
            if self.heads(answers) <= asked + 1 - _SPARE_RATIOS:
                break
            count = 2 * count - 1
            if count > 4 * self.context:
                heads = self.heads(answers)
                raise Reason.RATIOS_TOO_FEW.error(heads=heads, context=self.context)
            ratios = self._ratios(count)[1::2]
        span = answers.y.shape[1]
        if self.heads(answers) == span:
            raise Reason.NUMBERS_TOO_FEW.error(heads=span, span=span)
        return answers

    def heads(self, answers: CountAnswers) -> int:
        """Count heads: the rank of what a token adds."""
        H = 0
        for t in range(len(answers.places)):
            z = answers.shown(np.array([t]), np.flatnonzero(answers.counts[:, t]))
            s = np.linalg.svd(z, compute_uv=False)
            H = max(H, int(np.sum(s > _HEAD_NOISE * answers.off * np.sqrt(max(z.shape)))))
        return H

    def _ratios(self, count: int) -> Indices:
        """Return counts (count, 2) of a token and of the query token."""
        most = max(1, self.context - 1)
        ratios = np.geomspace(1 / most, most, count)
        pairs = np.column_stack([np.rint(np.maximum(1.0, x)) for x in (1 / ratios, ratios)])
        return np.asarray(pairs, dtype=np.intp)

    def _with_ratios(
        self, answers: CountAnswers, tokens: Indices, ratios: Indices
    ) -> Asking[CountAnswers]:
        y = yield from self._counted(self.lone[answers.places[tokens], None], ratios, "counts")
        counts = np.zeros((len(tokens), len(ratios), answers.counts.shape[1]))
        counts[np.arange(len(tokens)), :, tokens] = ratios[:, 0]
        own = np.tile(ratios[:, 1], len(tokens)).astype(np.float64)
        return answers.joined(counts.reshape(len(own), -1), own, y.reshape(len(own), -1))

    def _counted(self, ids: Indices, counts: Indices, phase: str) -> Asking[Array]:
        """Ask the same counts (R, S + 1) of every row of ids (T, S) and the query token."""
        whole = np.column_stack([ids, np.full(len(ids), self.lone[0])])
        asked: Round = [
            Copies.of(Ids(whole[:, n > 0], phase=phase, purpose="data"), n[n > 0]) for n in counts
        ]
        answers = yield asked
        return np.stack(answers, axis=1)

    # -- maps

    def maps(self, answers: CountAnswers, rank: int | None) -> Asking[CountAnswers]:
        """Ask mixtures of the base, and other tokens, until every range is known."""
        H, layer = self.heads(answers), answers.layer()
        if not H:
            raise Reason.FIRST_TOKEN_DOES_NOT_COUNT.error({"c": layer.c, "M": layer.M})
        answers = yield from self._based(answers, H)
        count = self._mean_rank(H) if rank is None else rank
        taken = 1 + min(_BASE, len(self.lone) - 1)
        while True:
            missing = max(0, count + SPARE_TOKENS - len(answers.places))
            answers = yield from self._further(answers, np.arange(len(self.lone))[taken:][:missing])
            taken, known = taken + missing, len(answers.places)
            ranks = tuple(max(1, int(np.sum(s > _RANGE_NOISE))) for s, _ in answers.ranges())
            if max(ranks) < known or known == len(self.lone) - 1:
                break
            if taken >= len(self.lone):
                raise Reason.BAGS_SATURATED.error()
            count = 2 * known
        m = answers.y.shape[1]
        if sum(ranks) > m:
            raise Reason.NUMBERS_TOO_FEW.error(heads=H, span=m)
        return replace(answers, ranks=ranks)

    def _mean_rank(self, heads: int) -> int:
        s = np.linalg.svd(self.single.layer().M, compute_uv=False)
        return -(-int(np.sum(s > 1e-10 * s[0])) // heads)

    def _based(self, answers: CountAnswers, heads: int) -> Asking[CountAnswers]:
        """Fit the first tokens by themselves, and then together beside mixtures of them."""
        answers = replace(answers, logits=np.zeros((heads, len(answers.places))))
        fits = self._alone(answers, heads)
        self._refuse_other_curves(answers, fits)
        answers = replace(answers, noise=_beside(answers, fits))
        answers, fits = self._read(answers, fits, np.arange(len(fits)))
        base = len(fits)
        if base < min(_LEAST_BASE, len(self.lone) - 1):
            raise Reason.BAGS_SATURATED.error()
        logits = [fits[0].logits]
        for t in range(1, base):
            n = self._whole(np.array([_even(fits[0]), _even(fits[t]), 1.0]))[None]
            answers, y = yield from self._with_mixtures(answers, np.array([0, t]), n)
            order = matched(fits[0], fits[t], n[0] * 1.0, y[0] - self.single.y[0])
            logits.append(fits[t].logits[order])
        answers = replace(answers, logits=np.hstack(logits), base=base)
        counts = self._mixed(answers, _MIXED * heads)
        answers, _ = yield from self._with_mixtures(answers, np.arange(base), counts)
        return replace(answers, logits=answers.together().logits)

    def _alone(self, answers: CountAnswers, heads: int) -> list[MixtureFit]:
        """Fit every token by itself."""
        return [answers.alone(t, heads) for t in range(len(answers.places))]

    def _refuse_other_curves(self, answers: CountAnswers, fits: list[MixtureFit]) -> None:
        """Refuse what answers counts of most tokens otherwise than so many heads do."""
        missed = [_misses(fit, _NO_HEADS * answers.off) for fit in fits]
        if sum(missed) > len(fits) // 2:
            raise Reason.CURVES_OF_NO_HEADS.error(heads=fits[0].logits.shape[0])

    def _with_mixtures(
        self, answers: CountAnswers, tokens: Indices, counts: Indices
    ) -> Asking[tuple[CountAnswers, Array]]:
        """Ask counts (R, S + 1) of tokens (S,) and the query token; return the answers as well."""
        [y] = yield from self._counted(self.lone[answers.places[tokens]][None], counts, "mixtures")
        rows = np.zeros((len(counts), len(answers.places)))
        rows[:, tokens] = counts[:, :-1]
        return answers.joined(rows, counts[:, -1].astype(np.float64), y), y

    def _read(
        self, answers: CountAnswers, fits: list[MixtureFit], tokens: Indices
    ) -> tuple[CountAnswers, list[MixtureFit]]:
        """Leave out tokens that cannot be read; the best first."""
        worst = np.array([_worst(fit, answers.off) for fit in fits])
        order = np.argsort(worst, kind="stable")
        order = order[worst[order] <= _UNREAD]
        first = np.setdiff1d(np.arange(len(answers.places)), tokens)
        kept = np.append(first, tokens[order]).astype(np.intp)
        return answers.of_tokens(kept), [fits[k] for k in order]

    def _further(self, answers: CountAnswers, left: Indices) -> Asking[CountAnswers]:
        """Ask further lone tokens, each by itself and beside the base."""
        H, old = len(answers.logits), len(answers.places)
        if not len(left):
            return answers
        answers = answers.with_tokens(left)
        tokens = np.arange(old, old + len(left))
        answers = yield from self._with_ratios(answers, tokens, self._ratios(H + _SPARE_RATIOS))
        fits = [answers.alone(int(t), H) for t in tokens]
        answers, fits = self._read(answers, fits, tokens)
        tokens, B, base = np.arange(old, len(answers.places)), answers.base, answers.together()
        if not len(tokens):
            return answers
        even = float(np.exp(np.mean([np.log(_even(fit)) for fit in fits])))
        counts = self._mixed(answers, max(_LEAST_MIXED, round(_MIXED_BESIDE * H)), even)
        first = self.lone[answers.places[:B]]
        ids = np.column_stack([np.tile(first, (len(tokens), 1)), self.lone[answers.places[tokens]]])
        y = yield from self._counted(ids, counts, "mixtures")
        logits = answers.logits.copy()
        for t, fit, own in zip(tokens.tolist(), fits, y, strict=True):
            rows = np.zeros((len(counts), len(answers.places)))
            rows[:, :B], rows[:, t] = counts[:, :B], counts[:, B]
            answers = answers.joined(rows, counts[:, -1].astype(np.float64), own)
            copies, z = counts[0, [0, B, -1]].astype(np.float64), own[0] - self.single.y[0]
            logits[:, t] = fit.logits[matched(base.token(0), fit, copies, z), 0]
        return replace(answers, logits=logits)

    def _mixed(self, answers: CountAnswers, rows: int, even: float | None = None) -> Indices:
        """Draw counts of three tokens of the base, and of one more where there is one."""
        base = np.exp(-np.median(answers.logits[:, : answers.base], axis=0))
        known = np.append(base, [] if even is None else [even])
        counts = np.zeros((rows, len(known) + 1))
        for row, own in enumerate(counts):
            few = self.rng.choice(answers.base, min(3, answers.base), replace=False)
            if even is not None:
                few = np.append(few[: min(2, len(few))] if row else [0], answers.base)
            spread = _SPREAD * self.rng.uniform(-1, 1, len(few) + 1) * bool(row or even is None)
            own[few], own[-1] = known[few] * np.exp(spread[:-1]), np.exp(spread[-1])
        return np.array([self._whole(own) for own in counts])

    def _whole(self, shares: Array) -> Indices:
        """Return whole numbers in about these proportions that a context holds."""
        used = shares > 0
        shares = shares / shares[used].min()
        shares = shares * min(1.0, (self.context - len(shares)) / shares.sum())
        return np.where(used, np.maximum(1, np.floor(shares)), 0).astype(np.intp)


def _beside(answers: CountAnswers, fits: list[MixtureFit]) -> AnswerNoise:
    """Return what answers are off by beside each other, as the fits of single tokens miss them.

    Fits of other heads miss more: the median says it.
    """
    missed = [fit.misfit / np.sqrt(fit.missed.size / 2) for fit in fits]
    size = answers.off / answers.noise.relative
    return AnswerNoise(max(2 * KAPPA * UNIT, _BESIDE * float(np.median(missed)) / size))


def _worst(fit: MixtureFit, off: float) -> float:
    """Return what the worst logit is off by; infinite where other heads answer."""
    return np.inf if _misses(fit, off) else float(np.max(fit.errors(off)[0]))


def _misses(fit: MixtureFit, off: float) -> bool:
    """Tell whether answers miss a fit: other heads answer, or none."""
    return bool(fit.misfit > EXPLAINED * off * np.sqrt(fit.missed.size))


def _even(fit: MixtureFit) -> float:
    """Return about how many copies of a token weigh as much as the query token."""
    return float(np.exp(-np.median(fit.logits[:, 0])))

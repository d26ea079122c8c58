"""What would each defence be worth? `unsoftmax.defend`.

For the owner of a model, in three steps:

1. the target is recovered undefended, within its certificate; this alone asks it, once for every
   answer that is needed, and where the target is a model of ours nothing is asked;
2. every defence is put around the recovered model, which answers as the target does and costs
   nothing, and every attack that is known against it (`attacks`) is run: it sees the defended
   answers alone, and its queries are counted there;
3. what it found is compared with the model, and defended answers with undefended ones.

A defence is worth what the best attack leaves of it. These are the best attacks that we have: an
error they leave is no promise that nobody does better.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unsoftmax.campaign import Budget, Recovery, Retries, Watcher, learn
from unsoftmax.errors import NotIdentifiable, UnsoftmaxError
from unsoftmax.learners import LowRankHead
from unsoftmax.learners.settings import whole_number
from unsoftmax.models import SingleHead
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner, Oracle
from unsoftmax.questions.defence.attacked_classes import ATTACKED, AttackedClass, unattacked
from unsoftmax.questions.defence.attacks import Attack, Attacker
from unsoftmax.questions.defence.defence_comparison import (
    AttackOutcome,
    DefenceComparison,
    DefenceTrial,
    left_out,
    recommendation,
)
from unsoftmax.questions.defence.legitimate_use import LegitimateUse, Measures, standard_normal
from unsoftmax.validate.function_bound import Sampler, Sampling


@dataclass(frozen=True, slots=True)
class Defence:
    """One defence at one strength."""

    kind: str
    """What the ladder is called that it belongs to."""
    strength: float
    """In the unit of its kind; see `UNITS`."""
    measures: Measures
    beside: str = ""
    """The other measure of a combination, which its strengths share."""


UNITS = {
    "nothing": "",
    "rounding": "step, in spreads of the answers",
    "noise": "deviation, in spreads of the answers",
    "clipping": "range either side, in spreads of the answers",
    "norm cap": "cap, in longest legitimate tokens",
    "labels only": "",
    "query budget": "queries per parameter",
    "rounding with a norm cap": "step, in spreads of the answers",
    "noise with a norm cap": "deviation, in spreads of the answers",
}
"""What the strength of a kind is measured in; a kind of two measures names its first."""


@dataclass(frozen=True, slots=True)
class LadderTuning:
    """The strengths that are tried, weakest first."""

    decimals: tuple[int, ...] = (6, 4, 2, 1, 0)
    """Places beyond the power of ten below the spread."""
    noise: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 0.1, 0.3, 1.0)
    """In spreads."""
    clip: tuple[float, ...] = (4.0, 2.0, 1.0, 0.3)
    """Spreads either side of the mean answer."""
    cap: tuple[float, ...] = (4.0, 1.0, 0.8, 0.6)
    """In longest legitimate tokens."""
    budget: tuple[float, ...] = (0.25, 0.5, 0.9, 1.5)
    """Queries per parameter; learners ask a little more than one."""
    capped_decimals: tuple[int, ...] = (4, 2, 1, 0, -1)
    """Places of rounding with a norm cap, as ``decimals``."""
    capped_noise: tuple[float, ...] = (1e-2, 0.1, 0.2, 0.3, 0.5, 1.0)
    """Deviations of noise with a norm cap, in spreads."""
    both_caps: tuple[float, ...] = (4.0, 1.0)
    """The caps that rounding and noise are tried with."""


def ladder(use: LegitimateUse, parameters: int, tuning: LadderTuning) -> Iterator[Defence]:
    """Yield every defence at every strength, those of a kind together.

    Strengths are relative to what legitimate clients see: steps and noise to the spread of their
    answers, caps to their longest token, budgets to the number of parameters.
    ``parameters`` are the numbers that the model is made of; of vectors, answers that have as many.
    """
    caps = [Measures(radius=times * use.longest) for times in tuning.both_caps]
    yield Defence("nothing", 0.0, Measures())
    yield from _rounding("rounding", use, tuning.decimals, Measures())
    yield from _noise("noise", use, tuning.noise, Measures())
    for times in tuning.clip:
        half = times * use.spread
        clip = use.mean - half, use.mean + half
        yield Defence("clipping", times, Measures(clip=clip))
    for times in tuning.cap:
        yield Defence("norm cap", times, Measures(radius=times * use.longest))
    if use.answers.ndim == 1:  # labels are told of numbers
        yield Defence("labels only", 1.0, Measures(labels=True))
    for share in tuning.budget:
        queries = int(np.ceil(share * parameters))
        yield Defence("query budget", share, Measures(queries=queries))
    for cap in caps:
        yield from _rounding("rounding with a norm cap", use, tuning.capped_decimals, cap)
    for cap in caps:
        yield from _noise("noise with a norm cap", use, tuning.capped_noise, cap)


def _rounding(
    kind: str, use: LegitimateUse, places: tuple[int, ...], cap: Measures
) -> Iterator[Defence]:
    for beyond in places:
        measures = replace(cap, decimals=beyond - int(np.floor(np.log10(use.spread))))
        yield Defence(kind, measures.step / use.spread, measures, _beside(cap))


def _noise(
    kind: str, use: LegitimateUse, shares: tuple[float, ...], cap: Measures
) -> Iterator[Defence]:
    for share in shares:
        yield Defence(kind, share, replace(cap, noise=share * use.spread), _beside(cap))


def _beside(cap: Measures) -> str:
    return "" if cap.radius is None else f"tokens up to {cap.radius:.3g}"


@dataclass(frozen=True, slots=True)
class DefendTuning:
    """Knobs of the comparison."""

    ladder: LadderTuning = field(default=LadderTuning())
    """Which defences, how strong."""
    sequences: int = 512
    """Sequences that losses are measured on, and as many others for the function's error: a loss
    is known to about 3 % of itself."""
    certified: float = 0.01
    """A recovery whose parameters may be off by more than this share is not defended: errors
    of attacks could not be told from its own."""


@dataclass(frozen=True, slots=True)
class Undefended:
    """The model that is defended, and how it is known."""

    model: Any
    recovery: Recovery[Any] | None = None
    """What it was recovered by; None where the target is a model."""

    @property
    def paid(self) -> int:
        """Queries paid to the target."""
        return 0 if self.recovery is None else self.recovery.queries

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how the model is known."""
        if self.recovery is None:
            return ()
        return (
            f"Defended and attacked was the model as recovered from {self.paid:,} queries, with "
            "float64 answers; the target itself was asked nothing else.",
        )


def undefended(
    oracle: Oracle,
    learner: Learner[Any],
    tuning: DefendTuning = DefendTuning(),
    **campaign: Any,
) -> Undefended:
    """Recover a target that is asked undefended; biases within their bounds count as none.

    Raises
    ------
    NotIdentifiable
        The target's own answers are too coarse to know the model by; and as `learn` raises it.
    """
    recovery = learn(oracle, learner, **campaign)
    errors, model = recovery.certificate.errors, recovery.model
    for name, bound in errors.items():
        if name not in ("W", "v", "M"):
            continue
        if not bound <= tuning.certified * (model.parameter_norm(name) or np.inf):
            raise NotIdentifiable(
                f"The target's own answers are too coarse to judge defences by: {name} is known to "
                f"{bound:.1e} at a norm of {model.parameter_norm(name):.1e}.",
                determined={name: getattr(model, name) for name in errors if hasattr(model, name)},
            )
    if type(model) is SingleHead and all(
        model.parameter_norm(name) <= errors.get(name, 0.0) for name in ("w", "c")
    ):
        arrays = {name: array for name, array in model.arrays().items() if name not in ("w", "c")}
        model = type(model).from_arrays(arrays)
    return Undefended(model, recovery)


@dataclass(eq=False)
class Metered:
    """A defended service that counts what it is asked."""

    oracle: Oracle
    asked: int = 0

    def __call__(self, X: Array, /) -> Any:
        """Count a batch, and answer it."""
        self.asked += len(X)
        return self.oracle(X)


@dataclass(frozen=True, slots=True)
class DefenceRange:
    """A model, its legitimate use, and attackers: defences are tried one after the other."""

    model: Any
    known: AttackedClass
    attacker: Attacker
    use: LegitimateUse
    """What losses are measured on."""
    fresh: LegitimateUse
    """What the function's error is measured on."""

    def trial(self, defence: Defence) -> DefenceTrial:
        """Try a defence: measure its loss, and run every attack on it."""
        measures, seed = defence.measures, self.attacker.seed
        loss = self.use.loss(measures, measures.around(self.model, seed))
        attacks = self.known.attacks(self.attacker, measures)
        return DefenceTrial(
            kind=defence.kind,
            strength=defence.strength,
            unit=UNITS[defence.kind],
            beside=defence.beside,
            words=str(measures),
            brief=measures.brief,
            loss=loss.loss,
            refused=loss.refused,
            attacks=tuple(self._outcome(defence, attack) for attack in attacks),
        )

    def _outcome(self, defence: Defence, attack: Attack) -> AttackOutcome:
        """Run one attack against a service of its own, and see how far it came."""
        measures, seed = defence.measures, self.attacker.seed
        service = Metered(measures.around(self.model, seed + 1))
        budget = Budget(queries=self.attacker.may_ask(measures))
        try:
            found = learn(service, attack.learner, budget, holdout=attack.holdout, retries=1).model
        except UnsoftmaxError as refusal:
            return self._refused(attack, service.asked, refusal)
        found = self.known.finished(found, self.attacker.structure)
        return AttackOutcome(
            attack.name,
            service.asked,
            self.known.error(self.model, found),
            self.fresh.error_of(found, attack.up_to_scale),
        )

    def _refused(self, attack: Attack, asked: int, refusal: UnsoftmaxError) -> AttackOutcome:
        determined = getattr(refusal, "determined", {})
        rest = self.known.remainder(int(self.model.dim), determined)
        missed = np.inf if rest is None else self.fresh.error_of(rest, attack.up_to_scale)
        said = f"{type(refusal).__name__}: {refusal}"
        return AttackOutcome(attack.name, asked, np.inf, missed, said, tuple(determined))


@dataclass(frozen=True, slots=True)
class DefenceQuestion:
    """What is wanted of defences; see `defend`. What is out of range is refused here.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range.
    """

    dim: int
    sampler: Sampler | None = None
    threshold: float = 0.1
    most_loss: float = 0.5
    attack_queries: int | None = None
    needs: int | None = None
    seed: int = 0
    tuning: DefendTuning = field(default=DefendTuning())

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)
        for name in ("attack_queries", "needs"):
            if (count := getattr(self, name)) is not None:
                whole_number(name, count, 1)
        for name in ("threshold", "most_loss"):
            if not 0 < (share := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be between 0 and 1; it is {share}.")
        if self.sampler is not None:
            Sampling(self.sampler, eps=0.5, delta=0.5).try_out(self.dim)

    def compared(
        self, target: Undefended, watch: Callable[[int, int, DefenceTrial], object] | None = None
    ) -> DefenceComparison:
        """Try every defence on a model that is known."""
        model, seed, tuning = target.model, self.seed, self.tuning
        known = attacked_class(model)
        structure = known.structure(model)
        tokens = (1, 1) if known.singles else (2, 16)
        sampler = self.sampler or standard_normal(int(model.dim), *tokens)
        use, fresh = (
            LegitimateUse.drawn(model, sampler, self.needs, stream, tuning.sequences)
            for stream in (seed, seed + 1)
        )
        # bisecting every parameter to 40 bits takes 45 queries, and means of 64 answers take three
        # bits off noise; not every attack uses that a rank is low
        pairs = structure.dim * (structure.dim + 1)
        most = self.attack_queries or max(64 * structure.queries, 16 * pairs, 4096)
        attacker = Attacker(structure, use.spread, use.longest, most, seed)
        trials = DefenceRange(model, known, attacker, use, fresh)
        defences, done = list(ladder(use, structure.queries, tuning.ladder)), []
        for number, defence in enumerate(defences, 1):
            done.append(trials.trial(defence))
            if watch is not None:
                watch(number, len(defences), done[-1])
        return DefenceComparison(
            target=repr(model),
            dim=int(model.dim),
            parameters=structure.parameters,
            paid=target.paid,
            spread=use.spread,
            longest=use.longest,
            attack_queries=most,
            threshold=self.threshold,
            most_loss=self.most_loss,
            trials=tuple(done),
            recommendation=recommendation(done, self.threshold, self.most_loss),
            notes=(*target.notes, *left_out(done, self.threshold), *known.caveats),
        )


def attacked_class(model: Any) -> AttackedClass:
    """Return how a model's class is attacked.

    Raises
    ------
    ValueError
        No attacks are known for it.
    """
    if type(model) not in ATTACKED:
        names = ", ".join(kind.__name__ for kind in ATTACKED)
        raise ValueError(f"No attacks are known on a {type(model).__name__}: defend takes {names}.")
    return ATTACKED[type(model)]


def check_learner(learner: Learner[Any], dim: int) -> None:
    """Refuse a learner whose models cannot be attacked, before anything is paid.

    Raises
    ------
    ValueError
        It recovers another class, or what no attack is known on, or takes another dimension.
    """
    known = [name for each in ATTACKED.values() for name in each.learners]
    if type(learner).__name__ not in known:
        raise ValueError(
            f"What {type(learner).__name__} recovers is not attacked here: defend recovers the "
            f"target with one of {', '.join(known)}."
        )
    if learner.dim != dim:
        raise ValueError(f"The learner takes tokens of dimension {learner.dim}, not {dim}.")
    if why := unattacked(learner):
        raise ValueError(why)


def is_known(oracle: object) -> bool:
    """Whether a target is a model of ours, which need not be asked."""
    return hasattr(oracle, "arrays") and hasattr(oracle, "parameter_norm")


def defend(
    oracle: Oracle,
    dim: int,
    learner: Learner[Any] | None = None,
    *,
    sampler: Sampler | None = None,
    threshold: float = 0.1,
    most_loss: float = 0.5,
    attack_queries: int | None = None,
    needs: int | None = None,
    seed: int = 0,
    watch: Callable[[int, int, DefenceTrial], object] | None = None,
    budget: int | Budget | None = None,
    ledger: str | os.PathLike[str] | None = None,
    holdout: int = 32,
    batch: int | None = None,
    workers: int = 1,
    progress: Watcher | None = None,
    retries: int | Retries = 3,
    timeout: float | None = None,
    tuning: DefendTuning = DefendTuning(),
) -> DefenceComparison:
    """Compare defences of a target: what each costs, and what the best attack still gets.

    Rounding, noise, clipping, norm caps, labels alone, query budgets, and rounding and noise with
    a norm cap, each at several strengths. The target is asked undefended, once, to recover it;
    defences are put around the recovered model, and attacked there.

    Parameters
    ----------
    oracle : callable
        The target, as `unsoftmax.learn` takes it; or a model, which is asked nothing.
    dim : int
        Dimension d of a token.
    learner : Learner, optional
        What to recover the target with; ``LowRankHead(dim, biases=True)``, which recovers any
        single head, where it is not given, and `AttentionLayerLearner` or `FeedForwardLearner`
        for a target that answers with vectors. Its ``plan()`` says what the target will be asked.
    sampler : callable, optional
        Draws one legitimate sequence (N, d) with the `numpy.random.Generator` it is given; 2 to
        16 standard normal tokens where it is not given.
    threshold : float
        A defence is recommended if it leaves the best attack a relative error of at least this,
        of the parameters and of the function; between 0 and 1.
    most_loss : float
        And if it costs no more than this, in spreads of the answers (the root mean square of what
        answers change by, over their standard deviation); between 0 and 1.
    attack_queries : int, optional
        Most queries of an attack; where it is not given 64 per parameter, and at least
        16·d(d + 1) and 4,096.
    needs : int, optional
        Queries that a legitimate client needs; without it the loss by budgets is not known, and
        none is recommended.
    seed : int
        Seed of sequences, noise and attacks.
    watch : callable, optional
        Takes a number, how many there are, and the `DefenceTrial`, after each.
    budget, ledger, holdout, batch, workers, progress, retries, timeout
        As `unsoftmax.learn` takes them, for recovering the target.
    tuning : DefendTuning
        Knobs.

    Returns
    -------
    DefenceComparison
        Every defence with its loss and its attacks, and a recommendation.

    Raises
    ------
    ValueError, TypeError
        A setting is out of range, or no attacks are known for the model's class.
    NotIdentifiable
        Undefended answers are all the same, or too coarse to know the target by.
    BudgetExceeded, ModelMismatch, OracleError, LedgerError, LedgerMismatch, DimensionRefused
        As `unsoftmax.learn` raises them.

    Examples
    --------
    >>> import numpy as np, unsoftmax as us
    >>> rng = np.random.default_rng(0)
    >>> model = us.SingleHead(rng.standard_normal((4, 4)) / 2, rng.standard_normal(4))
    >>> result = us.defend(model, 4)
    >>> rounding = [trial for trial in result.trials if trial.kind == "rounding"]
    >>> all(trial.error < 1e-9 for trial in rounding)
    True
    """
    question = DefenceQuestion(
        dim, sampler, threshold, most_loss, attack_queries, needs, seed, tuning
    )
    if is_known(oracle):
        return question.compared(_as_given(oracle, dim, learner), watch)
    asking = LowRankHead(dim, biases=True, seed=seed) if learner is None else learner
    check_learner(asking, dim)
    known = undefended(
        oracle,
        asking,
        tuning,
        budget=budget,
        ledger=ledger,
        holdout=holdout,
        batch=batch,
        workers=workers,
        progress=progress,
        retries=retries,
        timeout=timeout,
    )
    return question.compared(known, watch)


def _as_given(model: Any, dim: int, learner: object) -> Undefended:
    """Take a target that is a model."""
    if model.dim != dim:
        raise ValueError(f"The model takes tokens of dimension {model.dim}: use dim={model.dim}.")
    if learner is not None:
        raise ValueError("A target that is a model is not learned: leave the learner out.")
    attacked_class(model)
    return Undefended(model)

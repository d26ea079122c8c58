"""What would each defence be worth? `unsoftmax.defend`.

For the owner of a model, in three steps:

1. the target is recovered undefended, within its certificate; this alone asks it, once for every
   answer that is needed, and where the target is a model of ours nothing is asked;
2. every defence is put around the recovered model, which answers as the target does and costs
   nothing, and every attack that is known against it (`attacks`) is run: it sees the defended
   answers alone, and its queries are counted there;
3. what it found is compared with the model, and defended answers with undefended ones.

A defence is worth what the best attack leaves of it. What is got against a stronger defence counts
against a weaker one, too: a client can add the noise itself. Every attack runs once, with one seed;
the best one on what is recommended runs with three, of which the best counts. These are the best
attacks that we have: an error they leave is no promise that nobody does better.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unsoftmax.campaign import Budget, Recovery, Retries, Watcher, learn
from unsoftmax.errors import UnsoftmaxError
from unsoftmax.learners import LowRankHead
from unsoftmax.learners.settings import whole_number
from unsoftmax.learners.single_head.sensing.rank_one import truncated
from unsoftmax.models import SingleHead
from unsoftmax.models.model import FrozenModel
from unsoftmax.probes import Array
from unsoftmax.protocol import Learner, Oracle
from unsoftmax.questions.defence import attacks, defence_comparison
from unsoftmax.questions.defence.attacks import Attack, Attacker
from unsoftmax.questions.defence.defence_comparison import (
    AttackOutcome,
    DefenceComparison,
    DefenceTrial,
)
from unsoftmax.questions.defence.legitimate_use import LegitimateUse, Measures, standard_normal
from unsoftmax.refusals import Reason
from unsoftmax.validate.function_bound import Sampler, Sampling


@dataclass(frozen=True, slots=True)
class DefendTuning:
    """The strengths that are tried, weakest first, and on how many sequences."""

    decimals: tuple[int, ...] = (6, 4, 2, 1, 0)
    """Places of rounding beyond the power of ten below the spread."""
    noise: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 0.1, 0.3, 1.0)
    """Deviations, in spreads."""
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
    sequences: int = 512
    """Sequences that losses are measured on, and as many others for the function's error: a loss
    is known to about 3 % of itself."""
    certified: float = 0.01
    """A recovery whose parameters may be off by more than this share is not defended: errors
    of attacks could not be told from its own."""


def ladder(
    use: LegitimateUse, parameters: int, tuning: DefendTuning
) -> Iterator[tuple[Measures, DefenceTrial]]:
    """Yield every defence at every strength, those of a kind together, with a trial to be made.

    Strengths are relative to what legitimate clients see: steps and noise to the spread of their
    answers, caps to their longest token, budgets to the number of parameters.
    ``parameters`` are the numbers that the model is made of; of vectors, answers that have as many.
    """
    mean, spread, longest, none = use.mean, use.spread, use.longest, Measures()
    power = int(np.floor(np.log10(spread)))

    def rounded(places: Iterable[int], cap: Measures) -> Iterator[tuple[float, Measures]]:
        steps = (replace(cap, decimals=beyond - power) for beyond in places)
        return ((measures.step / spread, measures) for measures in steps)

    def noisy(shares: Iterable[float], cap: Measures) -> Iterator[tuple[float, Measures]]:
        return ((share, replace(cap, noise=share * spread)) for share in shares)

    clips = ((x, Measures(clip=(mean - x * spread, mean + x * spread))) for x in tuning.clip)
    caps = ((x, Measures(radius=x * longest)) for x in tuning.cap)
    labels = [(1.0, Measures(labels=True))] * (use.answers.ndim == 1)  # of numbers alone
    budgets = ((x, Measures(queries=int(np.ceil(x * parameters)))) for x in tuning.budget)
    both = [Measures(radius=x * longest) for x in tuning.both_caps]
    step, deviation = "step, in spreads of the answers", "deviation, in spreads of the answers"
    for kind, unit, strengths in (
        ("nothing", "", [(0.0, none)]),
        ("rounding", step, rounded(tuning.decimals, none)),
        ("noise", deviation, noisy(tuning.noise, none)),
        ("clipping", "range either side, in spreads of the answers", clips),
        ("norm cap", "cap, in longest legitimate tokens", caps),
        ("labels only", "", labels),
        ("query budget", "queries per parameter", budgets),
        *(("rounding with a norm cap", step, rounded(tuning.capped_decimals, cap)) for cap in both),
        *(("noise with a norm cap", deviation, noisy(tuning.capped_noise, cap)) for cap in both),
    ):
        for strength, measures in strengths:
            with_cap = kind.endswith("with a norm cap")
            beside = f"tokens up to {measures.radius:.3g}" if with_cap else ""
            said = str(measures), measures.brief
            yield measures, DefenceTrial(kind, strength, unit, beside, *said, None, None, ())


def undefended(recovery: Recovery[Any], certified: float) -> Any:
    """Return the model that was recovered; biases within their bounds count as none.

    Raises
    ------
    NotIdentifiable
        The target's own answers are too coarse to know the model by.
    """
    errors, model = recovery.certificate.errors, recovery.model
    for name in (name for name in errors if name in ("W", "v", "M")):
        norm = model.parameter_norm(name)
        if not errors[name] <= certified * (norm or np.inf):
            known = {name: getattr(model, name) for name in errors if hasattr(model, name)}
            said = {"name": name, "error": errors[name], "norm": norm}
            raise Reason.TOO_COARSE_TO_DEFEND.error(known, **said)
    unseen = all(model.parameter_norm(bias) <= errors.get(bias, 0.0) for bias in "wc")
    if type(model) is SingleHead and unseen:
        arrays = {name: array for name, array in model.arrays().items() if name not in "wc"}
        return SingleHead.from_arrays(arrays)
    return model


def outcome(attack: Attack, by: Attacker, model: Any, fresh: LegitimateUse) -> AttackOutcome:
    """Run one attack against a defended model of its own, and see on fresh use how far it came."""
    asked, defended = 0, by.measures.around(model, by.seed + 1)

    def service(X: Array) -> Any:
        nonlocal asked
        asked += len(X)
        return defended(X)

    refusal, determined, error = None, dict[str, Any](), np.inf
    budget, d, rank = Budget(queries=by.queries), by.structure.dim, by.structure.rank
    try:
        recovery = learn(service, attack.learner, budget, holdout=attack.holdout, retries=1)
    except UnsoftmaxError as refused:
        refusal = f"{type(refused).__name__}: {refused}"
        determined, found = getattr(refused, "determined", {}), None
        if "v" in determined:  # an attacker who knows v alone goes on with W = 0
            W, c = determined.get("W", np.zeros((d, d))), float(determined.get("c", 0.0))
            found = SingleHead(W, determined["v"], None, c)
    else:
        found = recovery.model
        if type(found) is SingleHead and rank < d:  # errors of full rank leave
            found = SingleHead(truncated(found.W, rank), found.v, found.w, found.c)
        error = by.structure.error(model, found)
    missed = np.inf if found is None else fresh.error_of(found, by.measures.labels)
    return AttackOutcome(attack.name, asked, error, missed, refusal, tuple(determined))


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
    tuning: DefendTuning = DefendTuning()

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
        self, target: Any, watch: Callable[[int, int, DefenceTrial], object] | None = None
    ) -> DefenceComparison:
        """Try every defence on a model, or on what a `Recovery` found undefended."""
        seed, tuning, paid, model = self.seed, self.tuning, 0, target
        notes: tuple[str, ...] = ()
        if isinstance(target, Recovery):
            model, paid = undefended(target, tuning.certified), target.queries
            notes = (
                f"The defences were tried on the model recovered from {paid:,} queries, which "
                "answers in float64. The target itself was asked nothing else.",
            )
        structure = attacks.structure_of(model)
        tokens = (1, 1) if structure.neurons else (2, 16)
        sampler = self.sampler or standard_normal(model.dim, *tokens)
        of, count = (model, sampler, self.needs), tuning.sequences
        use, fresh = (LegitimateUse.drawn(*of, stream, count) for stream in (seed, seed + 1))
        # bisecting every parameter to 40 bits takes 45 queries, and means of 64 answers take three
        # bits off noise; not every attack uses that a rank is low
        enough = -(-structure.parameters // structure.per_answer)
        most = self.attack_queries or max(64 * enough, 16 * model.dim * (model.dim + 1), 4096)

        def run(measures: Measures, seed: int, only: str = "") -> tuple[AttackOutcome, ...]:
            queries = most if measures.queries is None else min(most, measures.queries)
            by = Attacker(structure, measures, use.spread, use.longest, queries, seed)
            tried = (attack for attack in attacks.attacks_on(by) if only in ("", attack.name))
            return tuple(outcome(attack, by, model, fresh) for attack in tried)

        defences, done = list(ladder(use, enough, tuning)), list[DefenceTrial]()
        for number, (measures, trial) in enumerate(defences, 1):
            loss, refused = use.loss(measures, measures.around(model, seed))
            came = run(measures, seed)
            done.append(replace(trial, loss=loss, refused=refused, attacks=came))
            if watch is not None:
                watch(number, len(defences), done[-1])
        done, spread = self._repeated([measures for measures, _ in defences], done, run)
        limits, size = (self.threshold, self.most_loss), (model.dim, structure.parameters)
        legitimate = use.spread, use.longest
        advice = defence_comparison.recommendation(done, *limits)
        left_out = defence_comparison.left_out(done, self.threshold)
        notes = (*notes, *left_out, *spread, *structure.caveats)
        return DefenceComparison(
            repr(model), *size, paid, *legitimate, most, *limits, tuple(done), advice, notes
        )

    def _repeated(
        self,
        defences: Sequence[Measures],
        own: Sequence[DefenceTrial],
        run: Callable[[Measures, int, str], tuple[AttackOutcome, ...]],
    ) -> tuple[list[DefenceTrial], tuple[str, ...]]:
        """Repeat the best attack on what is recommended with other seeds, until that stays so.

        Returns the trials, in which no attack is stronger where the defence is, and what is said of
        the spread.
        """
        own, repeated, seeds = [*own], dict[int, str](), range(self.seed + 1, self.seed + 3)
        while True:
            done = [
                defence_comparison.at_least_as_strong(
                    trial,
                    [
                        other
                        for stronger, other in zip(defences, own, strict=True)
                        if other is not trial and measures.no_stronger_than(stronger)
                    ],
                )
                for measures, trial in zip(defences, own, strict=True)
            ]
            best = defence_comparison.recommended(done, self.threshold, self.most_loss)
            if best is None or (place := done.index(best)) in repeated or not own[place].best:
                return done, tuple(repeated.values())
            trial, attack = own[place], own[place].best
            assert attack is not None
            more = [
                replace(again, name=f"{again.name}, seed {seed}")
                for seed in seeds
                for again in run(defences[place], seed, attack.name)
            ]
            own[place] = replace(trial, attacks=(*trial.attacks, *more))
            repeated[place] = defence_comparison.spread_of(trial.words, [attack, *more], self.seed)


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
    if isinstance(oracle, FrozenModel):
        if oracle.dim != dim:
            raise ValueError(
                f"The model takes tokens of dimension {oracle.dim}: use dim={oracle.dim}."
            )
        if learner is not None:
            raise ValueError("The target is a model: leave the learner out.")
        return question.compared(oracle, watch)
    asking = LowRankHead(dim, biases=True, seed=seed) if learner is None else learner
    attacks.check_learner(asking, dim)
    campaign = budget, ledger, holdout, batch, workers, progress, retries, timeout
    return question.compared(learn(oracle, asking, *campaign), watch)

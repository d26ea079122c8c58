"""Which class a target is of: a first look, then learners on a few dimensions, then the whole.

f(E z) is of the class of f(X) for every matrix E, of k dimensions instead of d. So `Identifier`
runs learners as they are on two to six random dimensions, cheapest first, and takes the first that
succeeds (`target_classes.sketches`). What the learners promise then holds there: fresh sequences
of up to 512 tokens are predicted within the certificate. What a first look excludes
(`answer_traits`) is not tried.

A class is *certain* where the whole target was recovered so, or an answer contradicts all others;
it is *likely* where that was seen on a few dimensions alone.

Queries: about 110 for the first look; 80 for a single head, 250 for several, 600 for networks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from unsoftmax.campaign import Budget
from unsoftmax.errors import DimensionRefused, ModelMismatch, NotIdentifiable, OracleError
from unsoftmax.learners import MultiHeadLearner
from unsoftmax.learners.compose import Asking, T, limited, mapped, named, restricted
from unsoftmax.learners.positions_named import in_words
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.measure.token_order import OrderQuestions
from unsoftmax.models import ReluNetwork
from unsoftmax.probes import FARTHEST, Array, Flags, Probes, Round, Sequences
from unsoftmax.protocol import Answers, Found, Learner, Outputs, Plan
from unsoftmax.questions.answer_traits import Traits, traits_of
from unsoftmax.questions.target_classes import (
    CLASSES,
    ClassName,
    Facts,
    Sketch,
    is_sharp,
    read,
    several_turning,
    sketches,
    typical_cost,
)

Certainty: TypeAlias = Literal["certain", "likely", "undecided"]

NOT_RECOVERED = "The whole target was not recovered: "
"""How the reason begins why recovering the whole was tried, and refused,"""
NOT_ONE_HEAD = "Not one head with rotary positions and without biases: "
"""and where one head was, and more are tried after it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A learner that did not recover the target on a few dimensions."""

    name: str
    reason: str
    contradicts: bool
    """Whether answers contradict its class; else it may be for want of precision or queries."""
    final: bool = False
    """Whether other dimensions would not do better: it contradicts, or was stopped."""

    def __str__(self) -> str:
        return f"Not {self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a target is, as far as answers say.

    Attributes
    ----------
    target_class, certainty : str
        The class and how sure it is.
    traits : Traits
        What answers show by themselves.
    facts : dict of str to int
        What else is known: heads, rank, neurons, biases.
    reasons : tuple of str
        Why, in sentences.
    learner : Learner or None
        What recovers the whole target.
    found : Found or None
        The whole target, where it was recovered.
    beyond : tuple of str
        What recovering it typically takes, if that was asked for, where a budget does not allow it.
    """

    target_class: ClassName
    certainty: Certainty
    traits: Traits
    facts: Facts = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    learner: Learner[Any] | None = None
    found: Found[Any] | None = None
    beyond: tuple[str, ...] = ()
    turning: str | None = None
    """Where scores may turn with distance: what answers show of it, as the kind of `Positions`."""

    @property
    def of_vectors(self) -> bool:
        """Whether scores may turn, and a learner of vectors takes all numbers at once."""
        return self.turning is not None and self.traits.width > 1

    @property
    def known(self) -> bool:
        """Whether a class was named."""
        return self.target_class not in ("none of these", "undecided")

    @property
    def refused(self) -> bool:
        """Whether recovering the whole was tried, and refused."""
        return bool(self.reasons) and self.reasons[0].startswith(NOT_RECOVERED)


@dataclass(frozen=True, slots=True)
class RecoveryWish:
    """Whether the whole target is to be recovered, and within what. No question depends on it."""

    wanted: bool = False
    budget: Budget = field(default=Budget())
    holdout: int = 32


@dataclass(frozen=True, slots=True)
class Identifier(Configured):
    """The questions of `unsoftmax.audit`, in the form of a learner that learns what to learn.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    seed : int
        Seed of the questions.
    wish : RecoveryWish
        Whether to recover the target as well: the same questions first, and more after them.
    """

    dim: int
    seed: int = 0
    wish: RecoveryWish = field(default=RecoveryWish(), kw_only=True)

    revision: ClassVar[int] = 1
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)

    def settings(self) -> dict[str, Any]:
        """Return what determines the questions of identification; those of recovery follow."""
        return Configured.settings(replace(self, wish=RecoveryWish()))

    def plan(self) -> Plan:
        """Say what identification costs at most; what recovery does is known after it."""
        at_most = 30_000  # it is a few hundred
        return Plan(
            queries=None,
            at_most=at_most,
            tokens=2 * at_most,
            rounds=at_most,
            formula="about 110, and 80 for a single head, 250 for several, 600 for networks",
            longest_token=FARTHEST,
        )

    def steps(self, checks: int) -> Generator[Round, Answers, Identity]:
        """Ask, and say what the answers mean."""
        asked = {"queries": 0, "tokens": 0}

        def count(probes: Round) -> Round:
            asked["queries"] += sum(map(len, probes))
            asked["tokens"] += sum(len(some) * some.tokens for some in probes)
            return probes

        return (yield from mapped(self._steps(asked), ask=count))

    def _steps(self, asked: Mapping[str, int]) -> Asking[Identity]:
        rng, first = np.random.default_rng(self.seed), list[tuple[Probes, Array]]()

        def keep(probes: Round, answers: Answers) -> Answers:
            first.extend(zip(probes, answers, strict=True))
            return answers

        traits = yield from _read_as(traits_of(self.dim, rng), keep)
        identity = yield from self._identified(asked, traits, rng)
        if identity.certainty != "certain" or identity.found is None:
            return identity
        missed, total = contradicted(identity.found, first, identity.traits)
        if not missed:
            return identity
        reason = (
            f"{missed} of the first {total} answers are missed by more than the certificate of "
            "what was recovered allows: where they were asked the target is something else."
        )
        reasons = (reason, *identity.reasons)
        undecided = replace(identity, target_class="undecided", certainty="undecided")
        return replace(undecided, reasons=reasons, learner=None)

    def _identified(
        self, asked: Mapping[str, int], traits: Traits, rng: np.random.Generator
    ) -> Asking[Identity]:
        identity = at_first_sight(traits)
        if identity is None:
            identity = yield from self._by_sketches(traits, rng)
            if not identity.known and traits.width == self.dim:
                beside = replace(traits, residual=True)
                second = yield from self._by_sketches(beside, rng)
                identity = second if second.known else identity
        elif traits.ordered:
            identity = yield from self._of_positions(identity)
        if traits.ordered and not _may_be_learned(identity, int(self.dim)):
            return identity
        whole = CLASSES[identity.target_class].learner
        learner = whole(int(self.dim), identity.facts, traits, self.seed)
        if learner is None:
            return identity
        identity = replace(identity, learner=learner)
        if identity.found is not None or not self.wish.wanted:
            return identity
        recovered = yield from self._afforded(identity, asked)
        again = recovered.refused and traits.ordered and traits.kind == "float64"
        if not again or isinstance(identity.learner, MultiHeadLearner):
            return recovered
        # several heads, and biases of keys alone, are not told from one head beforehand
        refusal, *others = recovered.reasons
        reasons = (f"{NOT_ONE_HEAD}{refusal.removeprefix(NOT_RECOVERED)}", *others)
        several = several_turning(int(self.dim), self.seed)
        identity = replace(recovered, facts=identity.facts, reasons=reasons, learner=several)
        return (yield from self._afforded(identity, asked))

    def _afforded(self, identity: Identity, asked: Mapping[str, int]) -> Asking[Identity]:
        """Recover the whole target, where what that typically takes is left of the budget."""
        assert identity.learner is not None
        known = identity.learner, identity.facts, identity.traits
        needed = dict(zip(asked, typical_cost(*known, self.wish.holdout), strict=True))
        beyond = tuple(
            f"{needed[unit]:,} {unit} more, and {max(0, limit - paid):,} are left of the budget of "
            f"{limit:,} {unit}"
            for unit, paid in asked.items()
            if (limit := getattr(self.wish.budget, unit)) is not None
            and paid + needed[unit] > limit
        )
        return (
            replace(identity, beyond=beyond) if beyond else (yield from self._recovered(identity))
        )

    def _of_positions(self, identity: Identity) -> Asking[Identity]:
        """Ask whether positions are rotary, where a head that has such is looked for."""
        traits = identity.traits
        if traits.singles in ("bent", "smooth") or traits.coarse or traits.radius is not None:
            return identity
        look = OrderQuestions(int(self.dim)).position_kind()
        try:
            found = yield from of_coordinate(look, traits)
        except OracleError:
            return identity
        vectors = traits.width > 1
        facts = {"rotary": 1} if found.kind == "products" and not vectors else {}
        if facts and found.constant:  # a learner without biases takes no constant either
            facts["biases"] = 1
        said = in_words(found, vectors=vectors)
        turning = found.kind in ("products", "unclear")
        identity = replace(identity, facts=facts, reasons=(*identity.reasons, said))
        return replace(identity, turning=found.kind) if turning else identity

    def _by_sketches(self, traits: Traits, rng: np.random.Generator) -> Asking[Identity]:
        refused: list[Refused] = []
        for sketch in sketches(traits):
            if sketch.unfit:
                refused.append(Refused(sketch.name, f"{sketch.unfit}.", contradicts=True))
                continue
            if sketch.whole is not None and not refused[-2].contradicts:
                continue  # that of one head knows the network as well, and came to no end
            # where answers do not contradict it, on other dimensions again: in one of fifty
            # float32 targets the first leave two heads hardly apart
            for _ in range(2):
                found = yield from self._sketched(sketch, sketch.dim, traits, rng)
                if not isinstance(found, Refused) or found.final:
                    break
            if isinstance(found, Refused):
                refused.append(found)
                continue
            return (yield from self._identity(sketch, found, traits, refused, rng))
        return _nothing_fits(traits, refused)

    def _sketched(
        self, sketch: Sketch, dim: int, traits: Traits, rng: np.random.Generator
    ) -> Asking[Found[Any] | Refused]:
        """Try a learner on a few dimensions."""
        d = int(self.dim)
        k = min(dim, d)
        learner = sketch.learner(k, int(rng.integers(2**31)))
        most = max(sketch.queries, 4 * k * k)  # not too many where a rank is looked for
        stopped = NotIdentifiable(f"it was not found within {most:,} queries.", determined={})
        # from 32 checks on a hold-out looks at large logits of 512 tokens as well
        steps: Asking[Found[Any]] = limited(learner.steps(32), stopped, queries=most)
        steps = _tried_out(steps, traits, rng)
        if k < d:
            steps = restricted(steps, signed_groups(d, k, rng))
        steps = named(of_coordinate(steps, traits), sketch.name)
        found = yield from _or_refusal(steps)
        if isinstance(found, Exception):
            contradicts = isinstance(found, ModelMismatch) and not traits.coarse
            return Refused(sketch.name, str(found), contradicts, contradicts or found is stopped)
        if not is_sharp(found):
            reason = "its learner finds one, but answers are too coarse to exclude all else."
            return Refused(sketch.name, reason, contradicts=False)
        return found

    def _identity(
        self,
        sketch: Sketch,
        found: Found[Any],
        traits: Traits,
        refused: list[Refused],
        rng: np.random.Generator,
    ) -> Asking[Identity]:
        """Say what a sketch that has succeeded means; look for the rank of a single head."""
        d = int(self.dim)
        name, facts = read(found, traits, d)
        k, most = min(sketch.dim, d), d // 8
        while name == "single head" and "rank_at_least" in facts and k < most:
            k = min(4 * k, most)
            more = yield from self._sketched(sketch, k, traits, rng)
            if isinstance(more, Refused):
                if more.contradicts:
                    return _nothing_fits(traits, [*refused, more])
                break
            name, facts = read(more, traits, d)
        reasons = [
            f"On {'all' if k == d else f'{k} random ones of the'} {d} dimensions the learner of "
            f"{sketch.name} recovers it and predicts fresh sequences within its certificate.",
            *map(str, refused),
        ]
        if sketch.whole is not None:
            reasons.append(
                "Other tokens count as attention has it, and no single head explains it."
            )
            return Identity(sketch.whole, "likely", traits, facts, tuple(reasons))
        if k < d:
            return Identity(name, "likely", traits, facts, tuple(reasons))
        sure = _certainty(traits, recovered=True)
        return Identity(name, sure, traits, facts, tuple(reasons), found=found)

    def _recovered(self, identity: Identity) -> Asking[Identity]:
        """Recover the whole target, and say what that means for its class."""
        assert identity.learner is not None
        traits, rng = identity.traits, np.random.default_rng([self.seed, 1])
        steps: Asking[Found[Any]] = identity.learner.steps(self.wish.holdout)
        steps = _tried_out(steps, traits, rng)
        found = yield from _or_refusal(named(of_coordinate(steps, traits), "recovery"))
        if isinstance(found, Exception):
            reasons = (f"{NOT_RECOVERED}{found}", *identity.reasons)
            identity = replace(identity, reasons=reasons)
            if traits.ordered:
                return replace(identity, facts={}, learner=None)  # of that kind it is all the same
            if not isinstance(found, ModelMismatch):
                return identity  # it is as likely as before
            undecided = Identity("undecided", "undecided", traits, reasons=reasons)
            return replace(undecided, facts=identity.facts)
        identity = replace(identity, found=found)
        if not is_sharp(found):
            return identity
        name, facts = read(found, traits, int(self.dim))
        reason = "The whole target was recovered, and predicts fresh sequences in its certificate."
        return replace(
            identity,
            target_class=name,
            certainty=_certainty(traits, recovered=True),
            facts=facts,
            reasons=(reason, *identity.reasons),
        )


def _or_refusal(steps: Asking[T]) -> Asking[T | Exception]:
    """Return what a learner finds, or why it finds nothing."""
    try:
        return (yield from steps)
    except DimensionRefused:
        raise
    except (ModelMismatch, NotIdentifiable, OracleError) as refusal:
        return refusal


def _tried_out(
    steps: Asking[Found[Any]], traits: Traits, rng: np.random.Generator
) -> Asking[Found[Any]]:
    """Compare what was found with answers to ordinary sequences.

    A learner's own hold-out looks where the learner reads: at the lengths of tokens that it
    has chosen, at which a second head may hide from coarse answers.
    """
    found = yield from steps
    if traits.kind == "labels":
        return found
    alone = traits.tokens == "one alone" or isinstance(found.model, ReluNetwork)
    lengths = np.resize([0.5, 1.0, 2.0, 4.0], 8)[:, None, None]
    if traits.radius is not None:
        lengths = np.minimum(lengths, traits.radius / np.max(lengths))
    dim = int(found.model.dim)
    X = lengths * rng.standard_normal((8, 1 if alone else 5, dim)) / np.sqrt(dim)
    [y] = yield [Sequences(X, phase="ordinary sequences", purpose="check")]
    missed, size = np.abs(found.model(X) - y), float(np.max(np.abs(y)))
    # right ones miss 1e-5 to 1e-3 behind coarse answers; a head that stood for two missed 0.06
    allowed = 0.005 * size + float(traits.precision.error(size, size))
    second = float(np.sort(missed)[-2])  # one may be where the softmax has to choose
    if second <= allowed:
        return found
    said = (
        f"what was recovered misses ordinary sequences by {second:.1e}, beside answers of up "
        f"to {size:.1e}"
    )
    if is_sharp(found):
        raise ModelMismatch(f"{said}.")
    raise NotIdentifiable(f"{said}, as its certificate allows.", determined={})


def _may_be_learned(identity: Identity, dim: int) -> bool:
    """Whether a learner of one number takes such positions from such answers."""
    if identity.turning is None or identity.of_vectors or dim < 2:
        return False
    plain = identity.facts.get("rotary") and not identity.facts.get("biases")
    return bool(plain) or identity.traits.kind == "float64"


def _certainty(traits: Traits, *, recovered: bool = False) -> Certainty:
    """Return how sure a class is: labels and coarse answers may hide another one.

    Of a model that was recovered float32 answers may as well: a second head of a thousandth of the
    first moves no answer that a learner of one looks at by more than its certificate has to allow.
    """
    hiding = ("rounded", "noisy", "labels", *(("float32",) if recovered else ()))
    return "likely" if traits.kind in hiding else "certain"


def at_first_sight(traits: Traits) -> Identity | None:
    """Return what needs no learner; None where learners have to be tried."""
    certain = _certainty(traits)
    if traits.kind == "constant":
        reason = "All answers are the same number."
        return Identity("constant", "likely", traits, reasons=(reason,))
    if traits.beyond is not None:
        reason = (
            f"Answers of about {traits.beyond:.0e} leave float64 no room to compute with: scale "
            "the target's output to between 1e-100 and 1e+100."
        )
        return Identity("undecided", "undecided", traits, reasons=(reason,))
    if traits.drowned:
        reason = "Answers differ by no more than when the same question is asked twice."
        return Identity("undecided", "undecided", traits, reasons=(reason,))
    if traits.drifts:
        reason = "The same questions are answered by more every time, or by less: it remembers."
        return Identity("none of these", "likely", traits, reasons=(reason,))
    if traits.normalised:
        reason = (
            "Long tokens and half as long ones are answered alike, and answers lie on an "
            "ellipsoid: vectors are normalised before they are given out."
        )
        return Identity("normalised vectors", "likely", traits, reasons=(reason,))
    if traits.ordered:
        reason = (
            "Sequences are answered differently when tokens before the last one change places: no "
            "attention without positions does that."
        )
        return Identity("position-dependent", certain, traits, reasons=(reason,))
    if traits.counted:
        reason = (
            "A sequence that is given twice over is answered differently: weights that are "
            "normalised over the tokens do not notice."
        )
        return Identity("none of these", certain, traits, reasons=(reason,))
    if traits.after_norm:
        reason = (
            "Answers to long single tokens u, v and u + v add up with the tokens' lengths as "
            "weights: tokens are normalised before anything else is done with them."
        )
        return Identity("normalised tokens", "likely", traits, reasons=(reason,))
    return None


def _nothing_fits(traits: Traits, refused: list[Refused]) -> Identity:
    reasons = tuple(map(str, refused))
    if all(one.contradicts for one in refused):
        return Identity("none of these", "likely", traits, reasons=reasons)
    return Identity("undecided", "undecided", traits, reasons=reasons)


def of_coordinate(steps: Asking[T], traits: Traits) -> Asking[T]:
    """Learn one number out of vector answers, or what it is beside the last token's own."""

    def parts(asked: Round, answers: Answers) -> Answers:
        return [_looked_at(traits, probes[:], y) for probes, y in zip(asked, answers, strict=True)]

    return _read_as(steps, parts)


def _read_as(steps: Asking[T], read: Callable[[Round, Answers], Answers]) -> Asking[T]:
    """Send a generator what ``read`` makes of a round and its answers."""
    asked: list[Round] = [[]]

    def remember(probes: Round) -> Round:
        asked[0] = probes
        return probes

    return mapped(steps, ask=remember, answer=lambda answers: read(asked[0], answers))


def _looked_at(traits: Traits, X: Array, y: Array) -> Array:
    """Return the number that is looked at, of vector answers (B, m)."""
    k = traits.coordinate
    return np.asarray(y[:, k] - X[:, -1, k] if traits.residual else y[:, k])


def contradicted(
    found: Found[Any], first: list[tuple[Probes, Array]], traits: Traits
) -> tuple[int, int]:
    """Return how many of the first answers a recovered model cannot explain, and of how many.

    A target that is one thing where a learner reads and another elsewhere is recovered, within a
    certificate and with a hold-out that passed. The first questions were asked before anything was
    known of it, at other lengths of tokens and sizes of scores.
    """
    beyond = [
        beyond_bounds(found, probes[:], _looked_at(traits, probes[:], y)) for probes, y in first
    ]
    return sum(int(np.sum(some)) for some in beyond), sum(map(len, beyond))


def beyond_bounds(found: Found[Any], X: Array, y: Array) -> Flags:
    """Say which answers (B,) a recovered model misses by more than its certificate explains.

    Beside the certificate a millionth of an answer's size is allowed, and ten times what random
    changes within the bounds on parameters, three of all together, move it by.

    Examples
    --------
    >>> import unsoftmax as us
    >>> head = us.SingleHead(np.eye(2), [1.0, 2.0])
    >>> found = us.learn(head, us.learners.ExactHead(2))
    >>> X = np.random.default_rng(0).standard_normal((3, 4, 2))
    >>> beyond_bounds(found, X, head(X) + [0.0, 0.0, 0.1])
    array([False, False,  True])
    """
    model, errors = found.model, found.certificate.errors
    if isinstance(model, ReluNetwork):  # no token but the last one counts
        X = X[:, -1:]
    longest = np.linalg.norm(X, axis=2).max(axis=1)
    share, slope = 1e-6, float(np.linalg.norm(getattr(model, "v", 0.0)))
    allowed = share * (longest * slope + np.abs(y))
    allowed += errors.get("constant", 0.0) + errors.get("slope", 0.0) * longest
    at, rng = model.linearise(X), np.random.default_rng(0)
    for _ in range(3):
        changes = {}
        for name, tensor in model.tensors.items():
            if bound := _bound(name, model, errors):
                x = rng.standard_normal(tensor.shape)
                changes[name] = bound * x / (np.linalg.norm(x) or 1.0)
        allowed = allowed + 10 * np.abs(at.jvp(changes, None))
    return np.asarray(np.abs(y - model(X)) > allowed)


def _bound(tensor: str, model: Any, errors: Mapping[str, float]) -> float:
    """Return how far a tensor may be off; of queries so that KᵀQ is by the bound on W."""
    part, *place = tensor.split(" of ", 1)
    of_scores = {"Q": "W", "q_bias": "w"}
    if part not in of_scores:
        return errors.get(part, 0.0)
    keys = model.tensors[" of ".join(["K", *place])]
    return errors.get(of_scores[part], 0.0) / (keys.norm or 1.0)


def signed_groups(d: int, k: int, rng: np.random.Generator) -> Array:
    """Draw E (d, k): every dimension goes to one of k groups of like sizes, with a random sign.

    Tokens E z are float32 numbers where z is, and about as long.

    Examples
    --------
    >>> E = signed_groups(6, 2, np.random.default_rng(0))
    >>> E.shape, np.count_nonzero(E, axis=0).tolist(), float(np.abs(E).max())
    ((6, 2), [3, 3], 0.5)
    """
    E = np.zeros((d, k))
    E[rng.permutation(d), np.arange(d) % k] = rng.choice([-1.0, 1.0], d)
    return np.asarray(E * 2.0 ** -np.round(np.log2(d / k) / 2))

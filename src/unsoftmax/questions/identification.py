"""Which class a target is of: a first look, then learners on a few dimensions, then the whole.

f(E z) is of the class of f(X) for every matrix E, of k dimensions instead of d. So `Identifier`
runs learners as they are on two to six random dimensions, cheapest first, and takes the first that
succeeds (`target_classes.sketches`). What the learners promise then holds there: fresh sequences
of up to 512 tokens are predicted within the certificate. What a first look excludes
(`answer_traits`) is not tried.

A class is *certain* where the whole target was recovered so, or an answer contradicts all others;
it is *likely* where that was seen on a few dimensions alone.

A smooth function of one token alone has a name without a learner on fewer dimensions, in which it
has as many neurons: *likely* until it is recovered.

Queries: about 110 for the first look; 80 for a single head, 250 for several, 600 for networks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from unsoftmax.campaign import Budget
from unsoftmax.errors import DimensionRefused, ModelMismatch, NotIdentifiable, OracleError
from unsoftmax.learners import MultiHeadLearner
from unsoftmax.learners.compose import Asking, T, limited, mapped, named, read_as, restricted, short
from unsoftmax.learners.positions_named import OrderQuestions, in_words
from unsoftmax.learners.settings import Configured, whole_number
from unsoftmax.models import AttentionLayer, FeedForward, ReluNetwork
from unsoftmax.probes import FARTHEST, Array, Flags, Indices, Probes, Round, Sequences
from unsoftmax.protocol import Answers, Found, Learner, Outputs, Plan, outputs_of
from unsoftmax.questions import target_classes
from unsoftmax.questions.answer_traits import Traits, traits_of, unless_refused
from unsoftmax.questions.claim import Claim
from unsoftmax.refusals import Reason

Certainty: TypeAlias = Literal["certain", "likely", "undecided"]

# The longest tokens are found to this factor. Larger: heads that hardly switch are lost; smaller:
# questions for nothing.
CLOSE = 1.05

NOT_RECOVERED = "The whole target was not recovered: "
"""How the reason begins why recovering the whole was tried, and refused."""
RECOVERED = "The whole target was recovered, and predicts fresh sequences within its certificate."


@dataclass(frozen=True, slots=True)
class Refused:
    """A learner that did not recover the target on a few dimensions."""

    why: str
    """Why, in a sentence that names what it looks for."""
    contradicts: bool
    """Whether answers contradict its class; else it may be for want of precision or queries."""
    final: bool = True
    """Whether other dimensions would not do better: it contradicts, or was stopped."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a target is, as far as answers say.

    Attributes
    ----------
    target_class, certainty : str
        The class and how sure it is.
    traits : Traits
        What answers show by themselves.
    reasons : tuple of str
        Why, in sentences.
    facts : dict of str to int
        What else is known: heads, rank, neurons, biases.
    learner : Learner or None
        What recovers the whole target.
    found : Found or None
        The whole target, where it was recovered.
    beyond : tuple of str
        What recovering it typically takes, if that was asked for, where a budget does not allow it.
    """

    target_class: target_classes.ClassName
    certainty: Certainty
    traits: Traits
    reasons: tuple[str, ...]
    facts: target_classes.Facts = field(default_factory=dict)
    learner: Learner[Any] | None = None
    found: Found[Any] | None = None
    beyond: tuple[str, ...] = ()
    turning: str | None = None
    """Where scores may turn with distance: what answers show of it, as the kind of `Positions`."""

    @classmethod
    def of(cls, found: Found[Any], traits: Traits, *reasons: str) -> Identity:
        """Say what a target is that was recovered as a whole."""
        name, facts = target_classes.read(found, traits, int(found.model.dim))
        sure = certainty_of(traits, "float32")
        return cls(name, sure, traits, reasons, facts, found=found)

    @property
    def of_vectors(self) -> bool:
        """Whether scores may turn, and a learner of vectors takes all numbers at once."""
        return self.turning is not None and self.traits.width > 1


@dataclass(slots=True)
class Paid:
    """What was asked so far."""

    queries: int = 0
    tokens: int = 0

    def count(self, asked: Round) -> Round:
        """Add a round."""
        self.queries += sum(map(len, asked))
        self.tokens += sum(len(some) * some.tokens for some in asked)
        return asked

    def beyond(self, within: Budget, needed: tuple[int, int]) -> tuple[str, ...]:
        """Say what so many more queries and tokens take that a budget does not allow."""
        return tuple(
            f"{more:,} more {unit}, and {max(0, limit - paid):,} are left of the budget of "
            f"{limit:,} {unit}"
            for unit, more in zip(("queries", "tokens"), needed, strict=True)
            if (limit := getattr(within, unit)) is not None
            and (paid := getattr(self, unit)) + more > limit
        )


@dataclass(frozen=True, slots=True)
class First:
    """The first questions and their answers."""

    asked: list[Probes] = field(default_factory=list)
    answers: list[Array] = field(default_factory=list)

    def keep(self, asked: Round, answers: Answers) -> Answers:
        """Add a round."""
        self.asked.extend(asked)
        self.answers.extend(answers)
        return answers


@dataclass(frozen=True, slots=True)
class Identifier(Configured):
    """The questions of `unsoftmax.audit`, in the form of a learner that learns what to learn.

    Parameters
    ----------
    dim : int
        Dimension d of a token.
    seed : int
        Seed of the questions.
    within : Budget, optional
        Recover the target as well, within that: the same questions first, and more after them.
    """

    dim: int
    seed: int = 0
    within: Budget | None = field(default=None, kw_only=True)

    revision: ClassVar[int] = 5
    outputs: ClassVar[Outputs] = "vector"

    def __post_init__(self) -> None:
        whole_number("dim", self.dim, 1)
        whole_number("seed", self.seed, 0)

    def settings(self) -> dict[str, Any]:
        """Return what determines the questions of identification; those of recovery follow."""
        return Configured.settings(replace(self, within=None))

    def plan(self) -> Plan:
        """Say what identification costs at most; what recovery does is known after it."""
        formula = "about 110, and 80 for a single head, 250 for several, 600 for networks"
        at_most = 30_000  # it is a few hundred
        return Plan(None, at_most, 2 * at_most, at_most, formula, longest_token=FARTHEST)

    def steps(self, checks: int) -> Generator[Round, Answers, Identity]:
        """Ask, and say what the answers mean."""
        rng, asked, first = np.random.default_rng(self.seed), Paid(), First()
        look = read_as(traits_of(int(self.dim), rng), first.keep)
        identity = yield from mapped(self._identified(look, rng, asked, checks), ask=asked.count)
        return identity if identity.certainty != "certain" else uncontradicted(identity, first)

    def _identified(
        self, look: Asking[Traits], rng: np.random.Generator, asked: Paid, checks: int
    ) -> Asking[Identity]:
        """Name the class, and recover the whole where that is wanted; ``asked`` is paid already."""
        d, traits = int(self.dim), (yield from look)
        identity = at_first_sight(traits)
        if identity is None:
            identity = yield from Sketching(d, traits, rng).identity()
            if identity.target_class in target_classes.UNNAMED and traits.width == d:
                beside = yield from Sketching(d, replace(traits, residual=True), rng).identity()
                identity = identity if beside.target_class in target_classes.UNNAMED else beside
        elif identity.target_class == "position-dependent":
            identity = yield from of_positions(identity, d)
            plain = "rotary" in identity.facts and not identity.facts.get("biases")
            taken = traits.width == 1 and (plain or traits.kind == "float64")
            if identity.turning is None or not taken or d < 2:  # no learner of one number
                return identity
        build = target_classes.LEARNERS.get(identity.target_class)
        learner = build(d, self.seed, traits, identity.facts) if build else None
        identity = replace(identity, learner=learner)
        if learner is None or identity.found is not None or self.within is None:
            return identity
        return (yield from self._recovered(identity, asked, checks))

    def _recovered(self, identity: Identity, asked: Paid, checks: int) -> Asking[Identity]:
        """Recover the whole target, where what that typically takes is left of the budget."""
        learner, facts, traits = identity.learner, identity.facts, identity.traits
        assert learner is not None
        assert self.within is not None
        needed = target_classes.typical_cost(learner, facts, traits, checks)
        if beyond := asked.beyond(self.within, needed):
            return replace(identity, beyond=beyond)
        steps = _within_answered(learner, checks, traits)
        steps = _tried_out(steps, traits, np.random.default_rng([self.seed, 1]))
        whole = outputs_of(learner) == "vector"
        found = yield from learned(steps, traits, "recovery", whole=whole)
        if isinstance(found, Exception):
            one = traits.kind == "float64" and not isinstance(learner, MultiHeadLearner)
            if traits.ordered and one:
                # several heads, and biases of keys alone, are not told from one head beforehand
                why = f"Not one head with rotary positions and without biases: {found}"
                reasons = (why, *identity.reasons)
                several = target_classes.several_turning(int(self.dim), self.seed)
                identity = replace(identity, reasons=reasons, learner=several)
                return (yield from self._recovered(identity, asked, checks))
            identity = replace(identity, reasons=(f"{NOT_RECOVERED}{found}", *identity.reasons))
            if traits.ordered:
                return replace(identity, facts={}, learner=None)  # of that kind it is all the same
            if not isinstance(found, ModelMismatch):
                return identity  # it is as likely as before
            return Identity("undecided", "undecided", traits, identity.reasons, facts)
        if not target_classes.is_sharp(found):
            return replace(identity, found=found)
        return replace(Identity.of(found, traits, RECOVERED, *identity.reasons), learner=learner)


def of_positions(identity: Identity, dim: int) -> Asking[Identity]:
    """Ask whether positions are rotary, where a head that has such is looked for."""
    traits = identity.traits
    if traits.singles in ("bent", "smooth") or traits.coarse or traits.radius is not None:
        return identity
    look = OrderQuestions(dim, most=traits.most_tokens or np.inf).position_kind()
    found = yield from unless_refused(read_as(look, partial(looked_at, traits)), None)
    if found is None:
        return identity
    vectors, facts = traits.width > 1, {}
    if found.kind == "products" and not vectors:
        # a learner without biases takes no constant either
        facts = {"rotary": 1, "biases": 1} if found.constant else {"rotary": 1}
    reasons = (*identity.reasons, in_words(found, vectors=vectors))
    turning = found.kind if found.kind in ("products", "unclear") else None
    return replace(identity, facts=facts, reasons=reasons, turning=turning)


@dataclass(frozen=True, slots=True)
class Sketching:
    """Learners on a few random dimensions of a target, one after another."""

    dim: int
    traits: Traits
    rng: np.random.Generator
    refused: list[Refused] = field(default_factory=list)

    def identity(self) -> Asking[Identity]:
        """Return what the first learner that succeeds says of the target."""
        refused = self.refused
        for sketch in target_classes.sketches(self.traits):
            if sketch.unfit:
                refused.append(not_tried(sketch))
                continue
            if sketch.whole is not None and not refused[-2].contradicts:
                continue  # that of one head knows the network as well, and came to no end
            k = min(sketch.dim, self.dim)
            found = yield from self._tried(sketch, k)
            if isinstance(found, Refused) and not found.final:
                # where answers do not contradict it, on other dimensions again: in one of fifty
                # float32 targets the first leave two heads hardly apart
                found = yield from self._tried(sketch, k)
            if not isinstance(found, Refused):
                return (yield from self._named(sketch, found, k))
            refused.append(found)
        return self._nothing_fits()

    def _tried(self, sketch: target_classes.Sketch, k: int) -> Asking[Found[Any] | Refused]:
        """Try a learner on k dimensions."""
        name, traits = sketch.name, self.traits
        learner = sketch.learner(k, int(self.rng.integers(2**31)), traits, {})
        assert learner is not None
        most = max(sketch.queries, 4 * k * k)  # not too many where a rank is looked for
        stopped = Reason.TOO_MANY_TO_FIND.error(most=most)
        # from 32 checks on a hold-out looks at large logits of 512 tokens as well
        steps: Asking[Found[Any]] = _within_answered(learner, 32, traits)
        steps = limited(steps, stopped, queries=most)
        steps = _tried_out(steps, traits, self.rng)
        if k < self.dim:
            steps = restricted(steps, signed_groups(self.dim, k, self.rng))
        found = yield from learned(steps, traits, name)
        if isinstance(found, Exception):
            contradicts = isinstance(found, ModelMismatch) and not traits.coarse
            said = "Not decided," if isinstance(found, OracleError) else "Not"
            why, final = f"{said} {name}: {found}", contradicts or found is stopped
            return Refused(why, contradicts, final)
        if not target_classes.is_sharp(found):
            reason = "its learner finds one, but answers are too coarse to exclude anything else"
            if "W" in (errors := found.certificate.errors):
                size = found.model.parameter_norm("W")
                reason += f": W is known to {errors['W']:.1e}, its norm is {size:.1e}"
            return Refused(f"Not {name}: {reason}.", contradicts=False, final=False)
        return found

    def _named(self, sketch: target_classes.Sketch, found: Found[Any], k: int) -> Asking[Identity]:
        """Say what a sketch that has succeeded means; look for the rank of a single head."""
        d, traits = self.dim, self.traits
        name, facts = target_classes.read(found, traits, d)
        while name == "single head" and "rank_at_least" in facts and k < d // 8:
            k = min(4 * k, d // 8)
            more = yield from self._tried(sketch, k)
            if isinstance(more, Refused) and more.contradicts:
                self.refused.append(more)
                return self._nothing_fits()
            if isinstance(more, Refused):
                break
            name, facts = target_classes.read(more, traits, d)
        reasons = (
            f"On {'all' if k == d else f'{k} random ones of the'} {d} dimensions the learner of "
            f"{sketch.name} recovers it and predicts fresh sequences within its certificate.",
            *(one.why for one in self.refused),
        )
        if sketch.whole is not None:
            other = "Other tokens count as in attention, and no single head explains the answers."
            return Identity(sketch.whole, "likely", traits, (*reasons, other), facts)
        if k < d:
            return Identity(name, "likely", traits, reasons, facts)
        return Identity.of(found, traits, *reasons)

    def _nothing_fits(self) -> Identity:
        reasons = tuple(one.why for one in self.refused)
        if all(one.contradicts for one in self.refused):
            return Identity("none of these", "likely", self.traits, reasons)
        return Identity("undecided", "undecided", self.traits, reasons)


def not_tried(sketch: target_classes.Sketch) -> Refused:
    """Say why a learner is not tried; that the target refuses its questions shows nothing."""
    if sketch.unfit.startswith(target_classes.REFUSES):
        return Refused(f"Not tried, {sketch.name}: {sketch.unfit}.", contradicts=False)
    return Refused(f"Not {sketch.name}: {sketch.unfit}.", contradicts=True)


def learned(
    steps: Asking[T], traits: Traits, name: str, *, whole: bool = False
) -> Asking[T | Exception]:
    """Return what a learner finds of the number that is looked at, or why it finds nothing.

    One of vectors looks at the ``whole``.
    """
    if not whole:
        steps = read_as(steps, partial(looked_at, traits))
    if traits.most_tokens is not None:
        steps = short(steps, traits.most_tokens)
    try:
        return (yield from named(steps, name))
    except DimensionRefused:
        raise
    except (ModelMismatch, NotIdentifiable, OracleError) as refusal:
        return refusal


def _within_answered(learner: Learner[Any], checks: int, traits: Traits) -> Asking[Found[Any]]:
    """Run a learner; coarse heads' with tokens as long as are answered in every direction.

    A sigmoid of which float32 leaves few digits saturates soon, along v first. Single tokens tell
    v, and the longest along ±v that are answered are the limit: of shorter ones heads hardly
    switch, and their errors grow. Polishing halves these, for few questions more.
    """
    if traits.coarse and traits.radius is not None and isinstance(learner, MultiHeadLearner):
        radius = yield from _longest_answered(learner.dim, float(learner.radius or traits.radius))
        learner = replace(learner, radius=radius, polish=True)
    return (yield from learner.steps(checks))


def _longest_answered(dim: int, radius: float) -> Asking[float]:
    """Return the norm of tokens that are answered along ±v, near ``radius`` or far from it."""
    axes, y = np.vstack([np.eye(dim), -np.eye(dim)[:1]])[:, None], None
    for shorter in (1.0, 0.25, 0.0625):
        length = shorter * radius
        if (y := (yield from _if_answered("single tokens", length * axes))) is not None:
            break
    if y is None or not np.any(v := y[:-1] - (y[0] + y[-1]) / 2):
        return radius
    ends = np.stack([v, -v])[:, None] / np.linalg.norm(v)
    answered, refused, tried = 0.0, np.inf, length
    while refused > answered * CLOSE and length / FARTHEST < tried < FARTHEST:
        if (yield from _if_answered("how long tokens may be", tried * ends)) is not None:
            answered = tried
        else:
            refused = tried
        middle = float(np.sqrt(answered) * np.sqrt(refused))
        tried = tried / 2 if not answered else 2 * answered if refused == np.inf else middle
    return answered or radius


def _if_answered(phase: str, X: Array) -> Asking[Array | None]:
    asked = Sequences(X, phase=phase, purpose="pilot")

    def steps() -> Asking[Array]:
        return (yield [asked])[0]

    return (yield from unless_refused(steps(), None))


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
    alone = traits.tokens == "one alone" or isinstance(found.model, ReluNetwork | FeedForward)
    lengths = np.resize([0.5, 1.0, 2.0, 4.0], 8)[:, None, None]
    lengths = np.minimum(lengths, np.inf if traits.radius is None else traits.radius / 4.0)
    dim = int(found.model.dim)
    tokens = 1 if alone else min(5, traits.most_tokens or 5)
    X = lengths * rng.standard_normal((8, tokens, dim)) / np.sqrt(dim)
    [y] = yield [Sequences(X, phase="ordinary sequences", purpose="check")]
    missed, size = _largest(found.model(X) - y), float(np.max(np.abs(y)))
    # right ones miss 1e-5 to 1e-3 behind coarse answers; a head that stood for two missed 0.06
    allowed = 0.005 * size + float(traits.precision.error(size, size))
    second = float(np.sort(missed)[-2])  # one may be where the softmax has to choose
    if second <= allowed:
        return found
    sharp = target_classes.is_sharp(found)
    reason = Reason.ORDINARY_MISSED if sharp else Reason.ORDINARY_MISSED_AS_CERTIFIED
    raise reason.error(missed=second, size=size)


def certainty_of(traits: Traits, *more: str) -> Certainty:
    """Return how sure a class is: labels and coarse answers may hide another one.

    Of a model that was recovered float32 answers may as well: a second head of a thousandth of the
    first moves no answer that a learner of one looks at by more than its certificate has to allow.
    Single tokens alone, where the target refuses several, do not show attention.
    """
    if traits.tokens == "one alone":
        return "likely"
    return "likely" if traits.kind in ("rounded", "noisy", "labels", *more) else "certain"


# What answers show, the first of these that they do, and the class of such targets: why it is.
SIGHTS: Mapping[tuple[str, target_classes.ClassName], str] = {
    ("constant", "constant"): "All answers are the same number.",
    ("beyond", "undecided"): "Answers of about {beyond:.0e} overflow or underflow in float64 "
    "computations: scale the target's output to between 1e-100 and 1e+100.",
    ("drowned", "undecided"): "Answers differ by no more than when the same question is asked "
    "twice.",
    ("drifts", "none of these"): "Answers to the same question grow, or shrink, each time it is "
    "asked: the target keeps state.",
    ("probable", "probabilities"): "Answers to short and to long tokens are numbers from 0 to 1, "
    "which single tokens move by no straight line: a {outcome} of logits.",
    ("classified", "classes"): "Answers are a few whole numbers from 0 on: the number of the class "
    "with the largest logit.",
    ("normalised", "normalised vectors"): "Tokens of full and of half length get the same answers, "
    "and answers lie on an ellipsoid: the output is normalised (LayerNorm or RMSNorm).",
    ("added", "whole block"): "Answers to long tokens are these tokens, and what is added to them "
    "depends on their direction alone, and on other tokens: a whole block of a Transformer, or "
    "several, with a norm before each part{order}.",
    ("ordered", "position-dependent"): "The answer changes when tokens before the last one change "
    "places, which attention without positions never does.",
    ("beside", "tokens of its own"): "Copies of an id are answered as if something stood beside "
    "them that is weighed, too, and their order does not count: the target puts tokens of its own "
    "beside the ids (BOS, EOS, CLS, a prompt).",
    ("counted", "none of these"): "The answer changes when a sequence is repeated, which softmax "
    "attention never does.",
    ("after_norm", "normalised tokens"): "Answers to long single tokens u, v and u + v add up with "
    "the tokens' norms as weights: tokens are normalised first (LayerNorm or RMSNorm).",
    ("layered", "smooth feed-forward layer"): "One token alone counts, and moves answers smoothly: "
    "as in a feed-forward layer with a smooth activation (GELU, SiLU, tanh, softplus){tail}. "
    "Several hidden layers may answer like this, too: recovering it shows that there is one.",
}
TAILS: Mapping[int | None, str] = {
    None: "",
    0: "; those to long tokens do not grow beside the token itself, as behind tanh or sigmoid, or "
    "after a LayerNorm or RMSNorm",
    1: "; those to long tokens grow as their length does, as without gates",
    2: "; those to long tokens grow as the square of their length does, as with gates",
}
"""What answers to long tokens say, by the power that they grow with."""


ORDER = ", in which the order of tokens counts (positions, or several causal blocks)"


def at_first_sight(traits: Traits) -> Identity | None:
    """Return what needs no learner; None where learners have to be tried."""
    for (trait, name), why in SIGHTS.items():
        if getattr(traits, trait):
            sure: Certainty = "undecided" if name == "undecided" else "likely"
            if trait in ("ordered", "counted"):  # no noise of such answers looks like that
                sure = certainty_of(traits)
            tail = TAILS.get(traits.growth, "")
            order = ORDER if traits.ordered else ""
            said = why.format(beyond=traits.beyond, outcome=traits.outcome, tail=tail, order=order)
            facts = {"gated": 1} if traits.growth == 2 else {}
            return Identity(name, sure, traits, (said,), facts)
    return None


def _largest(y: Array) -> Array:
    """Return the sizes of answers (B,), of vectors (B, m) those of their largest numbers."""
    return np.asarray(np.max(np.abs(y).reshape(len(y), -1), axis=1))


def looked_at(traits: Traits, asked: Round, answers: Answers) -> Answers:
    """Return the number that is looked at, of vector answers (B, m)."""
    k, numbers = traits.coordinate, [y[:, traits.coordinate] for y in answers]
    if not traits.residual:
        return numbers
    return [y - probes[:][:, -1, k] for probes, y in zip(asked, numbers, strict=True)]


def uncontradicted(
    identity: Identity, first: First, vectors: Callable[[Indices], Array] | None = None
) -> Identity:
    """Return what a target is, undecided where what was recovered cannot explain first answers.

    A target that is one thing where a learner reads and another elsewhere is recovered, within a
    certificate and with a hold-out that passed. The first questions were asked before anything was
    known of it, at other lengths of tokens and sizes of scores. ``vectors`` are those of ids.
    """
    if (found := identity.found) is None:
        return identity
    model, numbers = found.model, first.answers
    if not isinstance(model, FeedForward | AttentionLayer):
        numbers = looked_at(identity.traits, first.asked, first.answers)
    claim, slope = Claim(model, found.certificate.errors), np.linalg.norm(getattr(model, "v", 0.0))
    beyond = []
    for probes, y in zip(first.asked, numbers, strict=True):
        # of a network no token but the last one counts
        X = probes[:][:, -1:] if isinstance(model, ReluNetwork | FeedForward) else probes[:]
        X = X if vectors is None else vectors(X[:, :, 0].astype(np.intp))
        at, longest = claim.at(X), np.linalg.norm(X, axis=2).max(axis=1)
        # twice what the claim leaves open, as where `verify` says "different", and a millionth of
        # an answer's size; right models miss at most a fiftieth of it
        allowed = 1e-6 * (longest * slope + _largest(y)) + 2 * _largest(at.open)
        beyond.append(_largest(y - at.predicted) > allowed)
    return unless_missed(identity, np.concatenate(beyond))


def unless_missed(identity: Identity, missed: Flags) -> Identity:
    """Return what a target is, undecided where its model misses first answers."""
    if not missed.any():
        return identity
    reason = (
        f"The recovered model misses {np.sum(missed)} of the first {len(missed)} answers by more "
        "than its certificate allows: there the target is something else."
    )
    reasons = (reason, *identity.reasons)
    return Identity("undecided", "undecided", identity.traits, reasons, identity.facts)


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

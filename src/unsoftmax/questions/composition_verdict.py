"""The verdict of a composition and the name of what was changed, from its answers alone.

Whole blocks and stacks of blocks have no identities that every model of the class obeys, so their
arithmetic is not measured as that of single layers is (`answer_errors`): nudged copies of every
sequence tell rough misses from smooth ones (`nudged_copies`). Where misses are smooth, the evidence
for every tensor names what was changed (`tensor_evidence`). 20 questions, and 24 or 40 more.

Where it decides, the claim is computed as servers compute that round every kernel's result to 16
bits. Weights held in 16 bits are not all that such a server rounds. Its errors, 2⁻⁹ of every number
in between, are the same for the same weights, so a claim that is computed likewise misses hardly
any answer: of six blocks of BERT in torch 98 of 100 numbers are equal to the last bit. What is left
decides about changes that its rounding would hide.

Products sum in float32 and round once; here they sum in float64, which rounds otherwise in a few of
10,000. What a kernel is differs (`Kernels`): libraries add biases and compute norms and softmaxes
before they round, and may do all of attention so; plain code rounds after every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from unsoftmax.models import LayerNorm, QkNormLayer, Stack
from unsoftmax.models.attention import softmax
from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Composition, Map
from unsoftmax.models.neurons import ACTIVATIONS, Neurons
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers
from unsoftmax.questions.answer_errors import not_as_wide
from unsoftmax.questions.claimed_function import ClaimedFunction
from unsoftmax.questions.held_weights import HELD, Rounding, bfloat16, float16
from unsoftmax.questions.nudged_copies import (
    CLUSTERS,
    COPIES,
    DIFFERENT,
    SAME,
    TOKENS,
    Misses,
    NudgedCopies,
    step_of,
)
from unsoftmax.questions.stored_tensors import StoredClaim
from unsoftmax.questions.tensor_evidence import (
    EVERY_EPS,
    LARGEST,
    NATS,
    Naming,
    held_alone,
    sequences,
    templates,
)
from unsoftmax.questions.tensor_search import NEAR, Located

# "Same" is said where a change of any matrix or scale by this share would have been seen.
_CAUGHT = 0.5
# Of a function, where a smooth change of the answers by this share of their size would have been.
_CAUGHT_OF_ANSWERS = 0.1
# Directions differ: of changes so many times as large as the mean shows 95 of 100 are seen.
_SURELY = 1.75
# A claim is computed as the target computes where misses scatter by so much less, in squares: of
# other arithmetic they scatter by more.
_LIKEWISE = 2.0
# Numbers of 16 bits scatter by more than this share of the answers' size, float32's by far less.
_SHORT = 2.0**-15
# With fewer different answers nothing is told apart.
_LEAST_ANSWERS = 4
# Covectors by which a sequence's sensitivity is estimated.
_COVECTORS = 16
# So many candidates are named; more explain nothing.
_MOST_NAMES = 3
# A change that leaves misses of so many times what may be rough is none of the tensor's; true ones
# leave up to 1.4.
_UNEXPLAINED = 4.0
# So many tensors of most evidence are tried as they may be held.
_TRIED = 3

BY_THE_CHANGE = (
    "What is changed makes the misses of nudged copies differ, too: answers are more precise than "
    "stated here, and smaller changes than these would show."
)
NO_TENSORS = (
    "The claim is a function: what is changed in it has no name. A smooth change of the answers by "
    "{size:.1g} of their size would show, at sequences of {tokens} tokens; others were not asked."
)
TOO_LARGE = (
    "the change is too large for a name by evidence (it would be {size:.1g} of {name}), and no "
    "exchange of blocks, activation, eps or positions that is tried explains it."
)
LAST_ALONE = (
    "At the last position alone the answers are those of these weights: what is different is at "
    "others, such as which tokens they attend to."
)
UNEXPLAINED = "no tensor of these weights explains the answers by a change of its own."
MANY = "several explain the answers equally well: {names}."


@dataclass(frozen=True)
class Judged:
    """What the answers to nudged copies mean."""

    verdict: Literal["same", "different", "undecided"]
    held: str | None
    """How the target holds the weights, where it is the same as that and not as given."""
    power: Mapping[str, float]
    precision: float
    largest_miss: float
    """√(F/4): up to 1 is the same, above 2 different."""
    notes: tuple[str, ...]


def is_composition(model: object) -> bool:
    """Tell whether copies decide: of whole blocks, stacks and functions, with no verdict else.

    And of heads with QK-norm, which keep none of the identities that single layers do.
    """
    return isinstance(model, (Stack, QkNormLayer, ClaimedFunction))


def most_questions(model: Any) -> tuple[int, int, int]:
    """Return how many are asked for the verdict, for a name, and the tokens of each."""
    more = 0 if isinstance(model, ClaimedFunction) else sequences(StoredClaim.of(model))
    return CLUSTERS * COPIES, more, TOKENS if model.maps.attends else 1


class CopiesAsked:
    """A composition's questions, and what their answers mean."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.seed = model, seed
        self.maps: Composition | ClaimedFunction = model.maps
        self.claim = None if isinstance(model, ClaimedFunction) else StoredClaim.of(model)
        rng = np.random.default_rng([seed, 0])
        self.copies = NudgedCopies.of(self.maps, model.dim, model.maps.attends, rng)
        self.answers = np.zeros((0, 0))
        self.step = 0.0
        self.judged: Judged | None = None
        self.seen = Misses(self.answers)

    def verdict(self) -> Generator[Round, Answers, Judged]:
        """Ask the copies and judge what they are answered."""
        X = self.copies.X
        self.answers = yield from self._asked(X, "nudged copies")
        self.step = step_of(self.answers)
        given = self.seen = self._missed(self.maps)
        ratio, held = self.seen.ratio, None
        for name, way in HELD.items() if ratio > SAME else ():
            if self.claim is None:
                break
            other = self._missed(self.claim.changed(way.of))
            if other.ratio < ratio:
                ratio, held, self.seen = other.ratio, name, other
        power = self._power(self.claim) if self.claim else {}
        size = float(np.sqrt(np.mean(self.answers**2))) or 1.0
        least = min(float(np.median(one.scatter)) for one in (given, self.seen))
        likewise = None
        if ratio > SAME or np.sqrt(least) > _SHORT * size:
            likewise = self._computed_likewise(least)
        if self.claim and likewise is not None:
            held, self.seen = likewise
            ratio, power = self.seen.ratio, self._power(self.claim)
        shown = np.sqrt(DIFFERENT * np.median(self.seen.scatter) / COPIES) / size
        notes = [] if self.claim else [NO_TENSORS.format(size=shown, tokens=X.shape[1])]
        unseen = self._unseen(power)
        if self.claim is None and shown > _CAUGHT_OF_ANSWERS:
            unseen = [f"the answers by {_CAUGHT_OF_ANSWERS:g} of their size"]
        few = len(np.unique(self.answers)) < _LEAST_ANSWERS
        verdict: Literal["same", "different", "undecided"] = "undecided"
        if ratio > DIFFERENT and not few:
            verdict, held = "different", None
            self.seen = self._missed(self.maps)
            ratio = self.seen.ratio
            alike = self._every and self.seen.at_last(self.model.outputs).ratio <= SAME
            notes.append(LAST_ALONE if alike else BY_THE_CHANGE)
        elif ratio <= SAME and not unseen and not few:
            verdict = "same"
        elif few:
            notes.append("The answers take only a few values: too few to decide.")
        elif ratio > SAME:
            fits = f"held as {held}" if held else "as it is given"
            notes.append(
                f"The mean miss of nudged copies, squared, is {ratio:.2g} times what rough errors "
                f"leave of it (the claim {fits}): up to {SAME:.2g} counts as the same, above "
                f"{DIFFERENT:.2g} as different."
            )
        else:
            notes.append(f"Answers are too coarse to show a change of {', '.join(unseen)}.")
        if held and verdict == "same":
            notes.append(f"The target holds these weights as {held}: then its answers are these.")
        precision = float(np.sqrt(np.median(self.seen.scatter))) / size
        miss = float(np.sqrt(ratio / SAME))
        self.judged = Judged(verdict, held, power, precision, miss, tuple(notes))
        return self.judged

    def verdict_and_name(self, locate: bool = True) -> Generator[Round, Answers, Located]:
        """Judge what copies are answered; where that is different, name what was changed."""
        judged = yield from self.verdict()
        if judged.verdict != "different" or not locate:
            return Located(None, NEAR if locate else "")
        return (yield from self.name())

    def name(self) -> Generator[Round, Answers, Located]:
        """Ask for the name of what was changed."""
        if self.claim is None:
            return Located(None)
        claim = self.claim
        if found := self._fitting(templates(claim)):
            return Located(found)
        m = self.model.outputs
        naming = Naming.of(claim, self.copies, self.answers.shape[1] // m, m, self.seed)
        answers = yield from self._asked(naming.X, "for the name of what was changed")
        predicted = claim.maps.answers(naming.X, self._every)
        missed = answers.reshape(predicted.shape) - predicted
        every = naming.explanations(missed, float(np.median(self.seen.scatter)))
        best = every[0]
        tried = [one.name for one in every[:_TRIED]]
        if exact := self._fitting(held_alone(claim, tried)):
            return Located(exact)
        # eps is added to what is far larger, mostly: then answers move in proportion to it
        of_eps = best.name in {*claim.eps, EVERY_EPS}
        size = np.sqrt(np.mean(missed**2) / np.mean(predicted**2)) if of_eps else best.size
        if size > LARGEST:
            return Located(None, TOO_LARGE.format(size=size, name=best.name))
        if best.left > _UNEXPLAINED:
            return Located(None, UNEXPLAINED)
        near = [one.name for one in every if one.evidence >= best.evidence - NATS]
        if len(near) > _MOST_NAMES:
            return Located(None, MANY.format(names=", ".join(near[: 2 * _MOST_NAMES])))
        return Located(" or ".join(near))

    def serving(self, others: Mapping[str, Any]) -> str | None:
        """Name the models that these answers may be of, if any."""
        alike = {name: one.maps for name, one in others.items() if self._answers_alike(one)}
        for name, one in others.items():
            # a part of a block does not say which tokens it attends to
            if name in alike and isinstance(self.model, Stack) and not isinstance(one, Stack):
                alike[name] = one.maps.attending(self.model.causal)
        fit = [name for name, maps in alike.items() if self._missed(maps).ratio <= SAME]
        return " or ".join(fit) or None

    # -- what answers are compared with

    def _answers_alike(self, model: Any) -> bool:
        return bool(model.dim == self.model.dim and model.outputs == self.model.outputs)

    @property
    def _every(self) -> bool:
        return bool(self.answers.shape[1] > self.model.outputs)

    def _asked(self, X: Array, phase: str) -> Generator[Round, Answers, Array]:
        [answers] = yield [Sequences(X, phase=phase, purpose="check")]
        width, m, tokens = answers.shape[1], self.model.outputs, X.shape[1]
        if width not in (m, tokens * m):
            raise not_as_wide(width, m, tokens)
        last_alone = self.claim is None and not self.model.everywhere
        return answers[:, -m:] if last_alone else answers

    def _missed(self, maps: Composition | ClaimedFunction | ComputedClaim) -> Misses:
        predicted = maps.answers(self.copies.X, self._every)
        missed = self.answers - predicted.reshape(len(predicted), -1)
        return Misses(missed, self.step, float(np.sqrt(np.mean(self.answers**2))))

    def _fitting(self, ways: Iterable[tuple[str, Composition | ClaimedFunction]]) -> str | None:
        """Return the name of the maps that fit the answers to copies best, if any do."""
        best, found = SAME, None
        for name, maps in ways:
            if (ratio := self._missed(maps).ratio) <= best:
                best, found = ratio, name
        return found

    def _computed_likewise(self, scatter: float) -> tuple[str, Misses] | None:
        """Return what a claim misses that is computed as the target computes, if one is.

        Where that is another arithmetic, misses scatter as those of the claim as it is given or
        held, ``scatter``, or more: answers in float32 are no 16 bits. A change that moves
        numbers by less than the format's step may leave them all as they are: its rounding counts
        as scatter.
        """
        least, found = scatter / _LIKEWISE, None
        powers = np.exp2(np.frexp(self.answers)[1] - 1.0)
        squares = float(np.mean(powers**2))
        for name, maps in computed_claims(self.claim) if self.claim else ():
            missed = replace(self._missed(maps), step=maps.step**2 * squares / 12)
            if missed.ratio <= SAME and (rough := float(np.median(missed.scatter))) < least:
                least, found = rough, (name, missed)
        return found

    def _unseen(self, power: Mapping[str, float]) -> list[str]:
        return [name for name, size in power.items() if size > _CAUGHT and self._weighty(name)]

    def _weighty(self, name: str) -> bool:
        """Whether a tensor must be seen for "same": matrices and scales; biases may be small."""
        claim = self.claim
        return claim is not None and any(
            claim.array(place).ndim == 2 or place.role.endswith("scale")
            for place in claim.places[name]
        )

    def _power(self, claim: StoredClaim) -> dict[str, float]:
        """Return the relative change of each tensor, in a random direction, that would show.

        A change by ε moves answers by ε²‖T‖²/n_T · tr(K_T)/n in the mean of squares, of which F
        has four times its share of s².
        """
        X = self.copies.X[::COPIES]
        at = claim.maps.linearise(X, every=self._every)
        rng = np.random.default_rng([self.seed, 1])
        back = at.vjp(rng.standard_normal((_COVECTORS, *at.value.shape)))
        numbers = at.value.shape[1] * at.value.shape[2]
        found = {}
        for name in claim.places:
            squares = np.zeros(len(X))
            for place, gradient in claim.gradients(back, name):
                share = np.mean(gradient.norms**2, axis=0) / numbers
                squares += np.mean(claim.array(place) ** 2) * share
            with np.errstate(divide="ignore"):
                shown = _SURELY * np.sqrt(DIFFERENT * self.seen.scatter / (COPIES * squares))
            found[name] = float(np.median(shown))
        return found


class Kernels(NamedTuple):
    """What is rounded in between."""

    results: bool = True
    """Every result; or the operands of products alone."""
    biases: bool = False
    """Products before biases are added."""
    norms: bool = False
    """What a LayerNorm has normalised before it is scaled and shifted; of an RMSNorm it is."""
    attention: bool = True
    """Scores before their softmax, and what that makes of them."""
    scaled: Literal["scores", "queries", "softmax"] = "scores"
    """What 1/√r multiplies; inside a softmax nothing is rounded after it."""
    planes: bool = True
    """Cosines, sines and their products, before planes are turned."""


_PLAIN = Kernels(biases=True, norms=True)
KERNELS = (
    Kernels(),
    Kernels(attention=False),
    Kernels(scaled="queries"),
    Kernels(attention=False, scaled="queries"),
    _PLAIN,
    _PLAIN._replace(scaled="softmax"),
    _PLAIN._replace(scaled="softmax", planes=False),
    Kernels(results=False),
    Kernels(results=False, scaled="queries"),
)
"""torch's, attention in steps or in one kernel; one operation after another; operands alone."""
COMPUTED: Mapping[str, tuple[Rounding, float]] = {
    "bfloat16": (bfloat16, 2.0**-7),
    "float16": (float16, 2.0**-10),
}
"""Formats with the largest step of numbers between 1 and 2."""


def computed_claims(claim: StoredClaim) -> Iterator[tuple[str, ComputedClaim]]:
    """Yield the claim in every such arithmetic, with what is said of it; none of unknown heads."""
    if not all(_by_projections(part.map) for part in claim.parts.values()):
        return
    for name, (rounding, step) in COMPUTED.items():
        for kernels in KERNELS:
            held = name if kernels.results else f"{name}, matrices alone"
            said = f"{held}, computed in {name}"
            yield said, ComputedClaim(claim, rounding, step, kernels)


def _by_projections(one: Map) -> bool:
    """Whether a map computes with projections as files have them, and nothing else."""
    if not isinstance(one, Attention):
        return not isinstance(one, Neurons) or one.A is not None
    there = one.K is not None and one.V is not None and one.O is not None
    return there and one.w is None and one.R is None


@dataclass(frozen=True)
class ComputedClaim:
    """The claim in such arithmetic, which answers as its maps do."""

    claim: StoredClaim
    operands: Rounding
    step: float
    """Of numbers between 1 and 2, to which they are rounded."""
    kernels: Kernels

    def rounding(self, x: Array) -> Array:
        """Round a result."""
        return self.operands(x) if self.kernels.results else x

    def answers(self, X: Array, every: bool = False) -> Array:
        """Map sequences (B, N, d) to answers at all positions, or at the last, (B, P, m)."""
        y = self._of_composition(self.claim.maps, "", self.rounding(X))
        return y if every else y[:, -1:]

    def _of_composition(self, maps: Composition, prefix: str, X: Array) -> Array:
        value = X
        for name, part in maps.parts:
            own = f"{prefix}{name}." if name else prefix
            if isinstance(part, Composition):
                value = self._of_composition(part, own, value)
            else:
                value = self._of_map(part, self._tensors(own), value)
        return self.rounding(value + X) if maps.residual else value

    def _tensors(self, prefix: str) -> Callable[[str], Array | None]:
        part = self.claim.parts[prefix]
        stored = ({} if part.key_bias is None else {"k_bias": part.key_bias}) | part.tensors
        return {name: self.rounding(x) for name, x in stored.items()}.get

    def _of_map(self, one: Map, held: Callable[[str], Array | None], X: Array) -> Array:
        if isinstance(one, LayerNorm):
            return self._normalised(one, held, X)
        if isinstance(one, Neurons):
            h = self._product(X, held("A"), held("b"))
            act = ACTIVATIONS[one.activation].of
            if one.G is None:
                h = self.rounding(act(h))
            else:
                gate = self.rounding(act(self._product(X, held("G"), held("g"))))
                h = self.rounding(gate * h)
            return self._product(h, held("B"), held("c"))
        assert isinstance(one, Attention)
        return self._attended(one, held, X)

    def _product(self, x: Array, T: Array | None, bias: Array | None) -> Array:
        y = x if T is None else self.operands(x) @ self.operands(T).T
        if bias is None:
            return self.rounding(y)
        return self.rounding((self.rounding(y) if self.kernels.biases else y) + bias)

    def _normalised(self, one: LayerNorm, held: Callable[[str], Array | None], X: Array) -> Array:
        scale, shift = held("scale"), held("shift")
        inside = one.centred and not self.kernels.norms
        y = one.normalised(X)
        y = (y if inside else self.rounding(y)) * (0.0 if scale is None else scale)
        if shift is None:
            return self.rounding(y)
        return self.rounding((y if inside else self.rounding(y)) + shift)

    def _scaled(self, x: Array, scale: Array | None) -> Array:
        return self.rounding(x * (0.0 if scale is None else scale))

    def _attended(self, one: Attention, held: Callable[[str], Array | None], X: Array) -> Array:
        H, r = one.Q.shape[:2]
        places = np.arange(H) if one.groups is None else one.groups
        rows = {name: self._product(X, held(name), held(bias)) for name, bias in _BIASES.items()}
        q, k, v = (
            y.reshape(*y.shape[:2], -1, y.shape[2] // count).swapaxes(1, 2)
            for y, count in zip(rows.values(), (H, *2 * [1 + int(places.max())]), strict=True)
        )
        if one.qk_eps is not None:
            norm = LayerNorm(np.ones(r), None, one.qk_eps, centred=False)
            q, k = (
                self._scaled(self.rounding(norm.normalised(u)), held(scale))
                for u, scale in ((q, "q_scale"), (k, "k_scale"))
            )
        if one.frequencies is not None:
            angles = np.arange(X.shape[1])[:, None] * one.frequencies[:, None]
            q, k = self._turned(q, angles[places]), self._turned(k, angles)
        k, v = k[:, places], v[:, places]
        between = self.rounding if self.kernels.attention else np.asarray
        if self.kernels.scaled == "queries":
            q = self.rounding(q / np.sqrt(r))
        s = between(self.operands(q) @ self.operands(k).swapaxes(2, 3))
        if self.kernels.scaled != "queries":
            s = s / np.sqrt(r)
            s = between(s) if self.kernels.scaled == "scores" else s
        if one.causal:
            s = np.where(np.tri(X.shape[1], dtype=bool), s, -np.inf)
        weights, whole = softmax(s), 1.0
        if not self.kernels.attention:  # the sum is divided by at the end
            whole = weights.max(axis=-1, keepdims=True)
        pooled = whole * (self.operands(weights / whole) @ self.operands(v))
        pooled = self.rounding(pooled).swapaxes(1, 2).reshape(*X.shape[:2], -1)
        return self._product(pooled, held("O"), held("c"))

    def _turned(self, x: Array, angles: Array) -> Array:
        """Turn planes (…, H, T, r)."""
        r = self.rounding if self.kernels.planes else np.asarray
        cosine, sine, found = r(np.cos(angles)), r(np.sin(angles)), np.empty_like(x)
        a, b = x[..., 0::2], x[..., 1::2]
        found[..., 0::2] = r(cosine * a) - r(sine * b)
        found[..., 1::2] = r(sine * a) + r(cosine * b)
        return self.rounding(found)


_BIASES = {"Q": "q_bias", "K": "k_bias", "V": "v_bias"}

"""A whole block: attention, then what follows it, read as a layer after a norm by itself.

1. Attention, up to its constant c (`block_attention`).
2. Behind copies of one key any input of the second norm is asked (`behind_keys`). Nine answers tell
   whether what follows, F, is smooth.
3. ReLUs: c and the norm's eps are found from cells of F (`norm_centre`), F by the learner of layers
   after a norm (`feed_forward.after_norm`), run on G(x − c). All its answers are fitted once more
   (`read_network`): what was known one after the other is known together, to 1e-11 instead of 1e-8,
   and neurons that attention's errors alone showed are left out.
4. Smooth neurons, plain or gated: `read_network`.
5. Fresh sequences of 1 to 512 tokens, of lengths from 0.05 to 20, for the block as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.attention_layer.attention_search import tried
from unsoftmax.learners.block.behind_keys import BehindKeys
from unsoftmax.learners.block.block_attention import (
    IN_PARALLEL,
    SEARCHES,
    ReadBlock,
    attention_searched,
)
from unsoftmax.learners.block.norm_centre import CentreSearch, NormCentre
from unsoftmax.learners.block.read_network import PHASE, ReadNetwork, beside_eps, steepness
from unsoftmax.learners.compose import Asking, named
from unsoftmax.learners.feed_forward.after_norm import AfterNorm
from unsoftmax.learners.feed_forward.layer_claim import LayerClaim
from unsoftmax.learners.normed_tokens import NormedKind, NormedTokens
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.models import FeedForward, Stack
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Certificate, Found
from unsoftmax.refusals import Reason
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.judge import Answered, Residuals, fresh_answers, judge, more_than_usual
from unsoftmax.validate.long_sequences import in_rounds, shapes_of
from unsoftmax.validate.sequences import by_length

# Points of chords before what follows is refused.
ATTEMPTS = 2
# Tokens of fresh sequences in turn, and range of log10 of the size of an entry.
_TOKENS, _SIZES = (1, 2, 4, 8, 16, 32), (np.log10(0.05), np.log10(20.0))
# Fresh answers may be missed by this share of their size, which widens the bounds, or by what
# these allow, up to the second share.
_ACCEPTED, _MOST = 3e-9, 1e-6
# Where fresh answers need wider bounds, these are so many times what explains them.
_WIDENED = 2.0
# Roundoffs that answers are off by at most, and their sizes where the second norm makes much of
# the first sum's.
_ROUNDOFFS = 64.0


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """A block, others of the same answers with drawn errors, and what is said of it."""

    block: Stack
    others: tuple[Stack, ...]
    attention: ReadBlock
    claim: LayerClaim
    eps_error: float
    """Of the second norm's, relative: one standard deviation."""

    def residuals(self, X: Array, y: Array) -> Residuals:
        """Compare fresh answers (B, d) by their norms."""
        predicted = self.block(X)
        moved = [np.linalg.norm(one(X) - predicted, axis=1) for one in self.others]
        size, allowed = np.linalg.norm(y, axis=1), SAFETY * np.max(moved, axis=0)
        return Residuals.of(
            np.linalg.norm(y - predicted, axis=1),
            own=self._own(X, size),
            allowed=allowed,
            size=size,
            most=np.clip(allowed / np.maximum(size, TINY), _ACCEPTED, _MOST),
        )

    def _own(self, X: Array, size: Array) -> Array:
        """Return what answers are off by, rounded: the second norm divides rounded sums."""
        attention, network = self.block.parts
        assert isinstance(network, FeedForward)
        assert network.norm is not None
        y = attention(X)
        v = network.norm.without_mean(y, 1)
        shrunk = np.sqrt(np.mean(v * v, axis=1) + network.norm.eps)
        rounded = np.linalg.norm(X[:, -1], axis=1) + np.linalg.norm(y, axis=1)
        steep = steepness(network, v / shrunk[:, None])
        return np.asarray(_ROUNDOFFS * UNIT * (size + rounded * (1 + steep / shrunk)))

    def concluded(self, checks: int, rng: np.random.Generator) -> Asking[Found[Stack]]:
        """Ask fresh sequences; return the block and how sure it is, or refuse it."""
        short, further = self._fresh(checks, rng)
        answered = yield from fresh_answers(short, (), further)
        asked = [(X, y) for X, y in answered if len(X)]
        compared = Residuals.joined(self.residuals(X, y) for X, y in asked)
        widened = _WIDENED * compared.strain if compared.strain > 1 else 1.0
        judgement = judge(replace(compared, allowed=widened * compared.allowed), checks)
        if judgement.refuses:
            missed, allowed = judgement.worst
            raise Reason.FRESH_ANSWERS_MISSED.error(
                model="block",
                missed=missed,
                allowed=allowed,
                contrary="no block of attention and a feed-forward layer, each after a norm",
            )
        errors = {name: widened * error for name, error in self.errors().items()}
        assumed = (*_ASSUMED, *self.claim.within()[1:], *_predicted_within(asked, compared))
        assumed += more_than_usual(widened) if checks else ("Nothing was checked.",)
        return Found(self.block, Certificate(errors, assumed), judgement.evidence, self.claim.notes)

    def _fresh(self, checks: int, rng: np.random.Generator) -> tuple[Round, list[Round]]:
        """Draw sequences of all lengths and sizes."""
        d = self.block.dim
        long = [shape.tokens for shape in shapes_of(checks, d)][: checks // 8]
        tokens = [_TOKENS[i % len(_TOKENS)] for i in range(checks - len(long))]

        def drawn(count: int) -> Array:
            size = 10.0 ** rng.uniform(*_SIZES)
            X = size * rng.standard_normal((count, d)) + size * rng.standard_normal()
            return np.asarray(X.astype(np.float32), dtype=np.float64)

        families = by_length(map(drawn, long), "hold-out, long")
        return [*by_length(map(drawn, tokens), "hold-out")], in_rounds(families)

    def errors(self) -> dict[str, float]:
        """Bound the errors of all parameters, and of the feed-forward part's function."""
        drawn, network = self.attention.conclusion.drawn, self.block.parts[1]
        first, _ = drawn.bounds(drawn.errors())
        c = self.block.parts[0].arrays()["c"]
        far = [np.linalg.norm(one.parts[0].arrays()["c"] - c) for one in self.others]
        first |= {
            "c": SAFETY * float(np.max(far)) + _ROUNDOFFS * UNIT * float(np.linalg.norm(c)),
            "eps": self.attention.eps_bound,
        }
        assert isinstance(network, FeedForward)
        second = self.claim.bounds()
        second["c"] += first["c"]
        assert network.norm is not None
        second["eps"] = network.norm.eps * (SAFETY * self.eps_error + _ROUNDOFFS * UNIT)
        heads = [name for name in ("M", "W", "w", "c", "eps") if name in first]
        named = {f"{name} of part 0": first[name] for name in heads}
        its = [name for name in ("A", "b", "B", "c", "G", "g", "eps") if name in second]
        named |= {f"{name} of part 1": second[name] for name in its}
        return named | {name: second[name] for name in ("constant", "slope")}


def whole_block(
    dim: int, most_heads: int, most_neurons: int, rng: np.random.Generator, checks: int
) -> Asking[Found[Stack]]:
    """Recover a block of attention and a feed-forward layer, of ReLUs or of smooth neurons.

    Raises
    ------
    ModelMismatch
        The target is no such block, or answers are too coarse. Where attention was recovered it is
        in the error's ``determined``.
    NotIdentifiable
        The answers cannot determine it.
    """
    attention = yield from attention_searched(dim, most_heads, rng)
    known = {"attention": attention.layer()}
    if (yield from attention.seen(rng)) == IN_PARALLEL:
        raise Reason.BLOCK_IN_PARALLEL.error(known)

    def searched(last: bool) -> Asking[WholeBlock]:
        read = attention
        if last:  # what is wrong with it may be why the first search failed
            read = yield from attention_searched(dim, most_heads, rng)
        return (yield from _following(read, most_neurons, rng))

    try:
        found = yield from tried(SEARCHES, searched)
        return (yield from found.concluded(checks, rng))
    except (ModelMismatch, NotIdentifiable, np.linalg.LinAlgError) as error:
        known |= getattr(error, "determined", {})
        raise Reason.BLOCK_FOLLOWED_BY_OTHER.error(known, why=error) from error


def _following(attention: ReadBlock, most: int, rng: np.random.Generator) -> Asking[WholeBlock]:
    """Read ReLUs or smooth neurons: which is likelier a few answers tell."""
    keys = BehindKeys.drawn(attention.tokens, attention.inner, attention.eps[0], rng)
    search = CentreSearch(keys, attention.conclusion.drawn.others, rng)
    centred, frame = yield from search.opened()
    kind = NormedKind(residual=False, centred=centred)
    normed = NormedTokens(kind, attention.eps[0], 0.0, 0.0, frame, 0 * frame, Precision())
    smooth, failed = _smooth(attention, keys, normed, most, rng), None
    if (yield from search.bends_everywhere(frame)):
        try:
            return (yield from smooth)
        except ModelMismatch as error:
            failed = error
    try:
        centre = yield from search.run(frame)
        return (yield from _bent(attention, centre, normed, most, rng))
    except ModelMismatch as error:
        if failed is not None:  # a smooth one is why there are no ReLUs
            raise failed from error
        if error.reason != Reason.BLOCK_NO_CELL.name:
            raise
        return (yield from smooth)


def _smooth(
    attention: ReadBlock,
    keys: BehindKeys,
    normed: NormedTokens,
    most: int,
    rng: np.random.Generator,
) -> Asking[WholeBlock]:
    """Read smooth neurons."""
    return _whole(attention, (yield from ReadNetwork.smooth(keys, normed, most, rng)), rng)


def _bent(
    attention: ReadBlock,
    centre: NormCentre,
    normed: NormedTokens,
    most: int,
    rng: np.random.Generator,
) -> Asking[WholeBlock]:
    """Read ReLUs."""
    normed = replace(normed, eps=centre.fit.eps, eps_spread=centre.fit.eps_error)
    kept: list[tuple[Array, Array]] = []
    steps = named(normed.asked_of(AfterNorm(normed, most, rng, ATTEMPTS).claimed()), PHASE)
    asked, eps = centre.keys.run(steps, centre.c, kept), centre.fit.eps
    claim = yield from beside_eps(asked, eps, c=centre.c, eps_behind=eps)
    read = ReadNetwork(centre.keys, normed, centre.c, claim, kept)
    read = read.shown(attention.conclusion.drawn.others, rng)
    sure = yield from read.asked(read.claim.beside_hyperplanes(rng))
    notes = (
        f"{len(sure.model.b)} neurons were found; those on one hyperplane are one, and their "
        "order and a positive factor for each are free.",
        *(() if sure.determined else sure.notes[2:]),
    )
    return _whole(attention, replace(read, claim=replace(sure, notes=notes)), rng)


def _whole(attention: ReadBlock, read: ReadNetwork, rng: np.random.Generator) -> WholeBlock:
    """Fit all answers at once, with attention as it is and as errors would make it."""
    layers = attention.conclusion.drawn.others
    read, found, moved = read.fitted(layers, rng)
    others = []
    for layer, by in zip(layers, moved, strict=True):
        c = read.c + read.normed.frame @ (by.norm - found.norm)[:-1]
        others.append(Stack([attention.layer(layer, c), read.network(by, c)]))
    eps_error = max(abs(by.norm[-1] - found.norm[-1]) for by in moved)
    whole = Stack([attention.layer(attention.inner, read.c), read.network(found, read.c)])
    return WholeBlock(whole, tuple(others), attention, read.claim, float(eps_error))


def _predicted_within(asked: list[Answered], compared: Residuals) -> tuple[str, ...]:
    if not asked:
        return ()
    longest = max(X.shape[1] for X, _ in asked)
    shares = compared.allowed / np.maximum(compared.size, TINY)
    usual, most = np.median(shares), np.max(shares)
    return (
        f"Predictions of the fresh sequences, of up to {longest} tokens, are off by {usual:.1e} of "
        f"an answer's norm in the median and {most:.1e} at most, as far as drawn errors say.",
    )


_ASSUMED = (
    "The target is a block of attention and a feed-forward layer, each after a LayerNorm or "
    "RMSNorm and with a residual connection, and all heads and neurons were found: the hold-out "
    "tests this but cannot prove it.",
    "Bounds named after part 0 are those of attention, of M, W and w the largest over heads; after "
    "part 1 those of the feed-forward layer, in the order of the model and with rows of A as long "
    "as columns of B.",
    "constant, slope: the feed-forward layer adds what it should but for constant + slope·‖n‖, n "
    "being what the second norm makes of its input, for every input that switches no missing "
    "neuron.",
    "Scales and shifts of both norms are contained in M, W and w, and in A and b. Of c of part 0 a "
    "mean that the second norm takes off is in c of part 1.",
)

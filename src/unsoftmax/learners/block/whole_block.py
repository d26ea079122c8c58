"""A whole block: attention, then what follows it, read as a layer after a norm by itself.

1. Attention, up to its constant c (`block_attention`).
2. Behind copies of one key any input of the second norm is asked (`behind_keys`): what follows is
   a feed-forward layer after a norm, which has learners of its own (`read_network`).
3. Fresh sequences of 1 to 512 tokens, of lengths from 0.05 to 20, for the block as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.learners.block.behind_keys import BehindKeys
from unsoftmax.learners.block.block_attention import IN_PARALLEL, ReadBlock, attention_searched
from unsoftmax.learners.block.norm_centre import CentreSearch
from unsoftmax.learners.block.read_network import ReadNetwork, steepness
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.feed_forward.layer_claim import LayerClaim
from unsoftmax.learners.feed_forward.neuron_fit import NeuronParameters
from unsoftmax.learners.normed_tokens import NormedKind, NormedTokens
from unsoftmax.measure.precision import UNIT, Precision
from unsoftmax.models import AttentionLayer, FeedForward, Stack
from unsoftmax.models.arrays import TINY
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Certificate, Found
from unsoftmax.refusals import Reason
from unsoftmax.validate.conclude import LONG
from unsoftmax.validate.drawn_models import SAFETY
from unsoftmax.validate.judge import Answered, Residuals, fresh_answers, judge
from unsoftmax.validate.sequences import by_length

# Tokens of fresh sequences in turn, and range of log10 of the size of an entry.
_TOKENS, _SIZES = (1, 2, 4, 8, 16, 32), (np.log10(0.05), np.log10(20.0))
# Fresh answers are missed by no more than this share of their size, whatever bounds allow.
_MOST = 1e-6
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
        size = np.linalg.norm(y, axis=1)
        return Residuals.of(
            np.linalg.norm(y - predicted, axis=1),
            own=self._own(X, size),
            allowed=SAFETY * np.max(moved, axis=0),
            size=size,
            most=_MOST,
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
        judgement = judge(compared, checks)
        if judgement.refuses:
            missed, allowed = judgement.worst
            raise Reason.FRESH_ANSWERS_MISSED.error(
                model="block",
                missed=missed,
                allowed=allowed,
                contrary="no block of attention and a feed-forward layer, each after a norm",
            )
        widened = max(1.0, compared.strain)
        errors = {name: widened * error for name, error in self.errors().items()}
        assumed = (*_ASSUMED, *self.claim.within()[1:], *_predicted_within(asked, compared))
        assumed += () if checks else ("Nothing was checked.",)
        return Found(self.block, Certificate(errors, assumed), judgement.evidence, self.claim.notes)

    def _fresh(self, checks: int, rng: np.random.Generator) -> tuple[Round, list[Round]]:
        """Draw sequences of all lengths and sizes."""
        d = self.block.dim
        long = [shape.tokens for shape in LONG.of(checks, d)][: checks // 8]
        tokens = [_TOKENS[i % len(_TOKENS)] for i in range(checks - len(long))]

        def drawn(count: int) -> Array:
            size = 10.0 ** rng.uniform(*_SIZES)
            X = size * rng.standard_normal((count, d)) + size * rng.standard_normal()
            return np.asarray(X.astype(np.float32), dtype=np.float64)

        families = by_length(map(drawn, long), "hold-out, long")
        return [*by_length(map(drawn, tokens), "hold-out")], LONG.rounds(families)

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
        second = self.claim.bounds()
        second["c"] += first["c"]
        assert isinstance(network, FeedForward)
        assert network.norm is not None
        eps = network.norm.eps
        second["eps"] = eps * (SAFETY * self.eps_error + _ROUNDOFFS * UNIT)
        named = {f"{name} of part 0": first[name] for name in ("M", "W", "w", "c", "eps")}
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
    try:
        found = yield from _following(attention, most_neurons, rng)
        return (yield from found.concluded(checks, rng))
    except (ModelMismatch, NotIdentifiable, np.linalg.LinAlgError) as error:
        raise Reason.BLOCK_FOLLOWED_BY_OTHER.error(known, why=error) from error


def _following(attention: ReadBlock, most: int, rng: np.random.Generator) -> Asking[WholeBlock]:
    """Read what follows attention."""
    drawn = attention.conclusion.drawn
    keys = BehindKeys.drawn(attention.tokens, attention.inner, attention.eps[0], rng)
    search = CentreSearch(keys, drawn.others, rng)
    centred, frame = yield from search.opened()
    kind = NormedKind(residual=False, centred=centred)
    normed = NormedTokens(kind, attention.eps[0], 0.0, 0.0, frame, 0 * frame, Precision())
    read = yield from _read(search, normed, most, rng)
    read, found, moved = read.fitted(drawn.others, rng)
    if read.claim.model.activation == "relu":
        claim = yield from read.asked(read.claim.beside_hyperplanes(rng))
        read = replace(read, claim=claim)

    def block(layer: AttentionLayer, c: Array, by: NeuronParameters) -> Stack:
        return Stack([attention.layer(layer, c), read.network(by, c)])

    others = [
        block(layer, read.c + frame @ (by.norm - found.norm)[:-1], by)
        for layer, by in zip(drawn.others, moved, strict=True)
    ]
    eps_error = max(abs(by.norm[-1] - found.norm[-1]) for by in moved)
    whole = block(attention.inner, read.c, found)
    return WholeBlock(whole, tuple(others), attention, read.claim, float(eps_error))


def _read(
    search: CentreSearch, normed: NormedTokens, most: int, rng: np.random.Generator
) -> Asking[ReadNetwork]:
    """Read ReLUs or smooth neurons: which is likelier a few answers tell."""
    failed, smooth = None, ReadNetwork.smooth(search.keys, normed, most, rng)
    if (yield from search.bends_everywhere(normed.frame)):
        try:
            return (yield from smooth)
        except ModelMismatch as error:
            failed = error
    try:
        centre = yield from search.run(normed.frame)
        return (yield from ReadNetwork.of_relus(centre, normed, most, rng))
    except ModelMismatch as error:
        if error.reason != Reason.BLOCK_NO_CELL.name:
            raise
        if failed is not None:
            raise failed from error
    return (yield from smooth)


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

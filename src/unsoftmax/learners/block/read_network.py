"""What follows attention in a block, as it is read: ReLUs, or smooth neurons, plain or gated.

Behind copies of one key (`behind_keys`) it is a layer after a norm, but for what attention's
constant c adds to its input. ReLUs: `whole_block`. Smooth ones: c from F's expansion far out
(`far_expansion`), then F by Jacobians (`feed_forward.after_norm`), which find eps as well, and
further tokens all over the ball.

Either way all answers, which by then have one key and one c, are fitted once more, by c, eps and
all parameters together (`neuron_fit`): rows to 1e-12, c to 1e-14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.errors import ModelMismatch
from unsoftmax.learners.block.behind_keys import BehindKeys
from unsoftmax.learners.block.far_expansion import FarExpansion
from unsoftmax.learners.compose import Asking, T, named
from unsoftmax.learners.feed_forward.after_norm import COARSE, AfterNorm
from unsoftmax.learners.feed_forward.fitted_layer import shown_neurons
from unsoftmax.learners.feed_forward.jacobian_readings import derivatives
from unsoftmax.learners.feed_forward.layer_claim import LayerClaim
from unsoftmax.learners.feed_forward.neuron_fit import NeuronFit, NeuronParameters, layer_errors
from unsoftmax.learners.feed_forward.opening_look import drawn_directions
from unsoftmax.learners.feed_forward.search_steps import asks
from unsoftmax.learners.normed_tokens import INSIDE, NormedTokens
from unsoftmax.measure.precision import UNIT
from unsoftmax.models import FeedForward, LayerNorm
from unsoftmax.probes import Array
from unsoftmax.refusals import Reason
from unsoftmax.theory.costs import Cost
from unsoftmax.validate.drawn_models import Layer

# Numbers that are asked for afresh where neurons are smooth, per unknown one: base points are on
# one sphere of half the dimensions. With 0.5 errors are ten times as large.
_PER_UNKNOWN = 1.0
# Roundoffs of a sum of attention's and of the token.
_ROUNDOFFS = 4.0


def cost(dim: int, most: int) -> Cost:
    """Bound what is asked beside a search of at most so many neurons: tokens all over the ball."""
    return Cost.of(int(np.ceil(_PER_UNKNOWN * most * (3 * dim + 4) / dim)) + 2, rounds=1)


@dataclass(frozen=True, slots=True)
class ReadNetwork:
    """A feed-forward layer after a norm, and the answers that it was read from.

    Attributes
    ----------
    keys : BehindKeys
    normed : NormedTokens
        The norm before it.
    c : ndarray (d,)
        What attention adds to an input before the norm.
    claim : LayerClaim
        The layer of normalised tokens.
    kept : list of pairs of ndarray
        Inputs and answers.
    """

    keys: BehindKeys
    normed: NormedTokens
    c: Array
    claim: LayerClaim
    kept: list[tuple[Array, Array]]

    @classmethod
    def smooth(
        cls, keys: BehindKeys, normed: NormedTokens, most: int, rng: np.random.Generator
    ) -> Asking[ReadNetwork]:
        """Read at most so many smooth neurons."""
        inside, eps = yield from FarExpansion(keys, normed.frame, rng).run()
        c = normed.frame @ inside
        keys, kept = keys.with_key(c, rng), list[tuple[Array, Array]]()
        steps = AfterNorm(replace(normed, eps=eps), most, rng, 1).smoothly_claimed(None, None)
        asked = keys.run(named(steps, PHASE), c, kept)
        claim, normed = yield from beside_eps(asked, eps, c=c)
        read = cls(keys, normed, c, claim, kept)
        unknown = sum(array.size for array in claim.model.arrays().values()) + len(c)
        count = int(np.ceil(_PER_UNKNOWN * unknown / len(c)))
        t = drawn_directions(count, len(inside), rng)
        t *= INSIDE * normed.radius * np.sqrt(rng.uniform(size=(count, 1)))
        yield from read.asked(asks("all over the ball")(t))
        return read

    def asked(self, steps: Asking[T]) -> Asking[T]:
        """Run steps that ask normalised tokens."""
        return self.keys.run(named(self.normed.asked_of(steps), PHASE), self.c, self.kept)

    def shown(self, others: Sequence[Layer], rng: np.random.Generator) -> ReadNetwork:
        """Fit, and leave out ReLUs that answers do not show beside what attention may be off by.

        A search takes answers for those of ReLUs alone. What is wrong with attention bends them
        slightly, which looks like a neuron 1e-8 as large as others.
        """
        read, _, moved = self.fitted(others, rng)
        layer = read.claim.model
        seen = shown_neurons(layer, [by.layer(layer.activation) for by in moved])
        if np.all(seen) or not np.any(seen):
            return read
        return replace(read, claim=read.claim.taken(seen)).shown(others, rng)

    def fitted(
        self, others: Sequence[Layer], rng: np.random.Generator
    ) -> tuple[ReadNetwork, NeuronParameters, list[NeuronParameters]]:
        """Fit all answers at once; return also the parameters, and others.

        Those are what would have been found with other attention before, and of answers that are
        off by drawn errors.
        """
        E, model, normed = self.normed.frame, self.claim.model, self.normed
        v, y = (np.vstack(each) for each in zip(*self.kept, strict=True))
        x = self.keys.tokens_of(v - self.c)
        rounded = np.linalg.norm(x, axis=1) + np.linalg.norm(v - self.c, axis=1)
        off = UNIT * (np.linalg.norm(y, axis=1) + rounded * (1 + self._steepness(v @ E)))
        fit = NeuronFit(v @ E, y, 1 / off, model.activation, len(E))
        start = np.append(np.zeros(E.shape[1]), np.log(normed.eps))
        found, size = fit.run(NeuronParameters.of(model, start))
        drawn = max(size, 1.0) * off[:, None]
        moved = fit.disturbed(
            found,
            (
                (apart @ E, drawn * rng.standard_normal(y.shape) - apart)
                for apart in self.keys.apart(v - self.c, others)
            ),
        )
        layer, *each = (by.layer(model.activation) for by in (found, *moved))
        errors = layer_errors(layer, each, normed.radius)
        by = E @ found.norm[:-1]
        read = replace(
            self,
            claim=replace(self.claim, model=layer, errors=errors),
            normed=replace(normed, eps=float(np.exp(found.norm[-1]))),
            c=self.c + by,
            kept=[(v + by, y) for v, y in self.kept],
        )
        return read, found, moved

    def _steepness(self, v: Array) -> Array:
        """Return by how much a step of inputs in the frame (n, k) moves answers, at most."""
        size = np.sqrt(
            np.sum(v * v, axis=1, keepdims=True) / self.normed.radius**2 + self.normed.eps
        )
        return np.asarray(steepness(self.claim.model, v / size) / size[:, 0])

    def network(self, by: NeuronParameters, c: Array) -> FeedForward:
        """Return the layer of inputs of the norm, which have c in them."""
        E, kind, model = self.normed.frame, self.normed.kind, by.layer(self.claim.model.activation)
        norm = LayerNorm(np.ones(len(E)), None, float(np.exp(by.norm[-1])), True, kind.centred)
        gate = None if model.gate is None else (model.gate[0] @ E.T, model.gate[1])
        inside = model.A @ E.T, model.b, model.B, model.c - c
        return FeedForward(*inside, True, norm, model.activation, gate)


def beside_eps(steps: Asking[T], eps: float, **known: Array | float) -> Asking[T]:
    """Run steps that ask inputs of the norm; name its eps where that is why these fail.

    Attention's answers are precise. A small eps makes much of their roundoffs.
    """
    try:
        return (yield from steps)
    except ModelMismatch as error:
        times = 1 / np.sqrt(eps)
        if not _ROUNDOFFS * UNIT * times > COARSE:
            raise
        raise Reason.BLOCK_EPS_SMALL.error(known, eps=eps, times=times) from error


def steepness(layer: FeedForward, n: Array) -> Array:
    """Return the sizes of a layer's derivatives at normalised tokens, (n,)."""
    return np.asarray(np.linalg.norm(derivatives(layer, n, np.eye(n.shape[1])), axis=(1, 2)))


PHASE = "feed-forward part"

"""What comes before the attention: the hold-out's first sequences, and the network with its error.

The first sequences of the hold-out are asked before anything is learned: they tell the precision
of the answers, and whether the same question is answered alike. Any network learner may learn g
from single tokens, T([x]) = g(x); here is what its result means for the attention.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from unsoftmax.errors import ModelMismatch, NotIdentifiable
from unsoftmax.measure.precision import Precision, PrecisionTuning
from unsoftmax.measure.through_network.learned_network import LearnedNetwork
from unsoftmax.models import ReluNetwork, canonical
from unsoftmax.probes import Array, Round, Sequences
from unsoftmax.protocol import Answers, Found
from unsoftmax.validate import sequences as holdout
from unsoftmax.validate.sequences import DriftTuning


@dataclass(frozen=True, slots=True)
class TransformerHoldOut:
    """The hold-out after its first rounds.

    Attributes
    ----------
    opening : Sequences
        The first sequences.
    answers, repeated : ndarray
        Their answers, and the answers when some were asked again.
    left, queries : int
        Queries that are left of the hold-out, and all of them.
    """

    opening: Sequences
    answers: Array
    repeated: Array
    left: int
    queries: int

    def precision(self, tuning: PrecisionTuning) -> Precision:
        """Return the precision of the first answers.

        Where g is flat few different answers come; each counts once.
        """
        y = self.answers
        precision = Precision.of_format([np.unique(y)], tuning)
        noise = holdout.noise_of(y[: len(self.repeated)], self.repeated)
        return precision.with_noise(noise, len(self.repeated), tuning)


def open_hold_out(
    dim: int, queries: int, part: int, rng: np.random.Generator, drift: DriftTuning
) -> Generator[Round, Answers, TransformerHoldOut]:
    """Ask the first ``part`` sequences, and half of them again; keep as many for the network.

    Raises
    ------
    ModelMismatch
        Answers drift.
    """
    opening = holdout.opening(dim, part, rng)
    answers = repeated = np.zeros(0)
    if part:
        [answers] = yield [opening]
    if repeats := part // 2:
        [repeated] = yield [holdout.repeated(opening, repeats)]
        holdout.refuse_drift(answers[:repeats], repeated, drift)
    left = queries - 2 * part - len(repeated)
    return TransformerHoldOut(opening, answers, repeated, left, queries)


def learned_network(
    found: Found[ReluNetwork], precision: Precision, answers: Array
) -> LearnedNetwork:
    """Return the network that was found, with bounds on what it and the answers are off by.

    ``answers`` are the hold-out's first, to sequences of several tokens.

    Raises
    ------
    TypeError
        What was found is no ReluNetwork.
    NotIdentifiable, ModelMismatch
        The network is constant: W is free, or the target is no Transformer.
    """
    network, errors = found.model, found.certificate.errors
    if not isinstance(network, ReluNetwork):
        raise TypeError(f"network must learn a ReluNetwork; it found {network!r}.")
    constant, slope = (float(errors.get(name, np.inf)) for name in ("constant", "slope"))
    learned = LearnedNetwork(network, constant, slope, precision)
    if not canonical(network).A.shape[1]:
        raise _constant_network(learned, answers)
    return learned


def _constant_network(learned: LearnedNetwork, answers: Array) -> Exception:
    """Say what a constant network means: nothing depends on the attention."""
    c = learned.network.c
    off = learned.constant + learned.answer_error(np.zeros((1, learned.dim)), np.array([c]))[0]
    if np.any(np.abs(answers - c) > 2 * off):
        return ModelMismatch(
            f"Single tokens are all answered by {c:g}, longer sequences are not: the target is "
            "not one softmax head followed by a ReLU network."
        )
    return NotIdentifiable(
        f"The network is constant, {c:g}: no answer depends on the attention, and W is free.",
        determined={"network": learned.network},
    )

"""How several heads before a network are concluded: fresh answers, and what is certified.

The closing is that of one head (`transformer.hold_out`), each head in turn. A layer is believed
after a first look: a few such sequences, and some beside its hyperplanes.

*Sequences beside hyperplanes*, by Newton's steps. Two neurons with the same Σ_h B_h[j] and b[j] are
one at single tokens, and wherever tokens are far closer to each other than to their hyperplane.
Values in cells are those of one neuron then, and so is the layer that comes of them. Their
hyperplanes z_j = Σ_h B_h[j]·p_h + b[j] = 0 differ all the same: where what heads pool differs a
sequence lies between them. So sequences are made at which neurons of the layer are given nearly 0,

    z_k = δ_k s_k,   s_k² = Σ_h (B_h[k]·(p_h − p̄))²,   p̄ the mean of the p_h,

for as many neurons at once as the tokens of a sequence have numbers to spare. Of weights of one
sign the two neurons are on unlike sides there; of opposite signs they are on one of both sides of
z_k = 0, so both are asked, and both very close to it for first layers that are nearly alike. The
same tokens, moved far away together, lie on one side of every hyperplane: a layer that predicts
these and not the others has neurons that switch apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax.arrangement.base_points import NetworkHinges
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head_transformer.layer_search import RecoveredTransformer
from unsoftmax.learners.transformer import hold_out
from unsoftmax.learners.transformer.learned_network import LearnedNetwork
from unsoftmax.measure.precision import Precision
from unsoftmax.models import MultiHeadTransformer, canonical
from unsoftmax.probes import Array, Indices
from unsoftmax.protocol import Certificate, Found, Steps
from unsoftmax.refusals import Reason, RefusalError
from unsoftmax.validate.judge import Answered, Judgement, fresh_answers, judge
from unsoftmax.validate.sequences import by_length

# δ, in turn. Of opposite weights a layer of one neuron for two misses this share of one's; of
# alike ones their whole difference, where first layers differ by a larger share.
SIDES = (0.02, -0.02, 2e-3, -2e-3, 2e-4, -2e-4, 2e-5, -2e-5, 1e-6, -1e-6)
# Tokens, and neurons per sequence, over d: half of the numbers are to spare.
TOKENS, PER_DIM = 4, 2
# δ is met to this share.
MET_TO = 0.5
# Steps at most, and what each may be at most, as a share of the sequence's norm.
STEPS, LONGEST = 30, 0.5
# Sequences that steps begin with, until one ends where it should; groups that none serves are
# halved.
TRIES = 4
# Range of log₁₀ of the first query tokens' lengths, in typical distances of hyperplanes.
SIZES = (-0.5, 0.7)
# Root mean squares of one head's first logits: what heads pool differs.
LOGITS = (1.0, 2.0, 3.0)
# Of so many random directions the widest few, both ways; moved along them, tokens are so many
# times as far from the nearest hyperplane as they differ.
DIRECTIONS, KEPT, AWAY = 64, 3, 20.0
# A sequence that is missed by so many times what half of the others are is looked at, even if
# bounds allow it: 5 at most in 72 layers, 5,000 and more where neurons are nearly alike.
OUTLYING = 1e3
# There answers are missed by at most this share of what they are beside the hyperplanes.
ALIKE = 0.01


# How far answers may be off, as shares of what scores are left open by and of their size.
MOST_OF_OPEN, MOST_OF_SIZE = 0.0, 3e-8
# Fresh sequences that a layer must predict before it is believed, the hold-out apart, and those
# beside its hyperplanes.
CONFIRM = 3
# Estimated errors of W are the largest of a few simulated ones, and 60 times too large in the
# median: so many times are promised. Of 1,000 targets of 1 to 4 heads one had 5 times that, four
# weak heads in two dimensions.
SAFETY = 10.0
# Estimated errors of w are a standard deviation, roughly: that target had 68 times it, others up
# to 31.
SAFETY_OF_W = 140.0


@dataclass(frozen=True, slots=True)
class LayerLook:
    """What a few fresh answers say of a layer."""

    judgement: Judgement
    beside: StraddlingSequences
    """How sequences beside its hyperplanes are made, …"""
    missed: tuple[tuple[Array, float], ...]
    """… and those that were asked, with what their answers are missed by."""
    answered: list[Answered]
    """All that was asked, now and of earlier layers."""

    @property
    def outlying(self) -> bool:
        """Whether one sequence is missed by far more than others are that were made alike."""
        missed = [each for _, each in self.missed]
        return bool(missed and max(missed) > OUTLYING * np.median(missed))

    def switches_apart(self, hinges: NetworkHinges) -> Asking[bool]:
        """Tell whether what is missed beside hyperplanes is predicted far away from all of them."""
        if not self.missed:
            return False
        X, missed = max(self.missed, key=lambda each: each[1])
        far = self.beside.moved_away(X, hinges)
        answered = yield from fresh_answers(by_length(far, "check", "pilot"))
        model, most = self.beside.found.model, ALIKE * missed
        return all(bool(np.all(np.abs(y - model(X)) <= most)) for X, y in answered)


def first_look(
    found: RecoveredTransformer,
    learned: LearnedNetwork,
    earlier: list[Answered],
    rng: np.random.Generator,
) -> Asking[LayerLook]:
    """Ask a few fresh sequences of a layer, some beside its hyperplanes; judge it by them.

    What was asked of ``earlier`` layers it has to predict as well.
    """
    beside = StraddlingSequences(found, learned.length, rng)
    close, layer = beside.drawn(), _certified(found, learned)
    drawn = [X for part in layer.short(CONFIRM, rng) for X in part.X]
    answered = yield from fresh_answers(by_length([*close, *drawn], "check", "pilot"))
    known = [*answered, *earlier]
    judgement = judge(layer.residuals(known), len(drawn))
    return LayerLook(judgement, beside, tuple(_missed(found.model, close, answered)), known)


def _missed(
    model: MultiHeadTransformer, sequences: list[Array], answered: list[Answered]
) -> Iterator[tuple[Array, float]]:
    """Give what the answers to some sequences of one length, asked first, are missed by."""
    if sequences:
        [(X, y)] = [(X, y) for X, y in answered if X.shape[1] == len(sequences[0])]
        missed = np.abs(y - model(X))[: len(sequences)]
        yield from zip(sequences, missed.tolist(), strict=True)


def _certified(found: RecoveredTransformer, learned: LearnedNetwork) -> hold_out.HeadsBeforeNetwork:
    """Put what is certified to a layer: the little noise of its answers is in the constant."""
    errors = {
        "constant": found.errors["constant"] + learned.precision.absolute,
        "slope": found.errors["slope"],
        "W": SAFETY * found.errors["W"],
        "w": SAFETY_OF_W * found.errors["w"],
    }
    exact = replace(learned, precision=Precision())
    return hold_out.HeadsBeforeNetwork.of(
        found.model, exact, errors, most_of_open=MOST_OF_OPEN, most_of_size=MOST_OF_SIZE
    )


def conclude_layer(
    found: RecoveredTransformer,
    learned: LearnedNetwork,
    held: hold_out.TransformerHoldOut,
    rng: np.random.Generator,
) -> Steps[MultiHeadTransformer]:
    """Ask the hold-out, and say how sure the layer is.

    Raises
    ------
    ModelMismatch
        A fresh answer is farther off than the certificate allows.
    """
    layer = _certified(found, learned)
    judgement, looked = yield from layer.judged(held, rng)
    if judgement.refuses:
        raise _contradicted(judgement)
    certificate = Certificate(layer.errors, _assumes(learned, looked))
    return Found(canonical(found.model), certificate, judgement.evidence, found.notes)


def _contradicted(judgement: Judgement) -> RefusalError:
    """Say that fresh answers do not support the layer."""
    residual, tolerance = judgement.worst
    return Reason.FRESH_ANSWERS_MISSED.error(
        model="layer",
        missed=residual,
        allowed=tolerance,
        contrary="not several softmax heads followed by a ReLU network of one hidden layer, or has "
        "neurons that no single token shows, or that share a hyperplane there",
    )


def _assumes(learned: LearnedNetwork, looked: str) -> tuple[str, ...]:
    return (
        "The target is several softmax heads followed by a ReLU network of one hidden layer, and "
        "single tokens show all of its neurons: the hold-out tests this but cannot prove it.",
        "The network's error is bounded by constant + slope·‖p‖, where p is what all heads pool: "
        "that is no bound on the answer to a sequence, whose p errors of W and w change. "
        "Two neurons that switch together at single tokens, and whose first layers differ by less "
        "than 5e-3 of their size, may count as one; no bound allows for that.",
        *learned.precision.why,
        looked,
    )


@dataclass(frozen=True, slots=True)
class StraddlingSequences:
    """Makes sequences beside the hyperplanes of a recovered layer."""

    found: RecoveredTransformer
    length: float
    """Typical distance of hyperplanes."""
    rng: np.random.Generator

    def drawn(self) -> list[Array]:
        """Return sequences (N, d), one for each side of each group of neurons."""
        model = self.found.model
        K = len(model.b) - 2 * self.found.linear
        if len(model.first_layers) < 2 or not K:
            return []  # of one head no neurons switch apart
        order: Indices = self.rng.permutation(K)
        size = PER_DIM * model.dim
        groups = [order[i : i + size] for i in range(0, K, size)]
        made = []
        while groups:
            group = groups.pop()
            sides = self._sides(group)
            if sides is None and len(group) > 1:
                groups += [group[: len(group) // 2], group[len(group) // 2 :]]
            made += sides or []
        return made

    def _sides(self, group: Indices) -> list[Array] | None:
        """Return sequences beside some neurons' hyperplanes, None where a side is met by none.

        Of one neuron alone those sides that are met.
        """
        most = list[Array]()
        signs = self.rng.choice([-1.0, 1.0], len(group))
        for attempt in range(TRIES):
            X: Array | None = self._first(attempt)
            sides = []
            for side in SIDES:
                X = None if X is None else self._beside(group, side * signs, X)
                sides.append(X)
            met = [X for X in sides if X is not None]
            if len(met) == len(sides):
                return met
            most = max(most, met, key=len)
        return most if len(group) == 1 else None

    def _first(self, attempt: int) -> Array:
        model, d = self.found.model, self.found.model.dim
        size = self.length * 10.0 ** self.rng.uniform(*SIZES)
        b = size * self.rng.standard_normal(d) / np.sqrt(d)
        offsets = self.rng.standard_normal((TOKENS - 1, d)) / np.sqrt(d)
        u = model.scores_of(b[None])[0, attempt % model.H]
        return hold_out.at_logits(u, self.length, offsets, b, LOGITS[attempt % len(LOGITS)])

    def _beside(self, group: Indices, wanted: Array, X: Array) -> Array | None:
        """Move tokens until z/s of a group of neurons is what is wanted; None in vain."""
        for _ in range(STEPS):
            z, slope, s = given_to(self.found.model, group, X)
            if not np.all(s > 0):
                return None
            off = z / s - wanted
            if np.all(np.abs(off) <= MET_TO * np.abs(wanted)):
                return X
            J = (slope / s[:, None, None]).reshape(len(group), -1)
            if not np.all(np.isfinite(J)):
                return None
            step = np.linalg.lstsq(J, -off, rcond=None)[0].reshape(X.shape)
            most = LONGEST * float(np.linalg.norm(X))
            X = X + min(1.0, most / (float(np.linalg.norm(step)) or 1.0)) * step
        return None

    def moved_away(self, X: Array, hinges: NetworkHinges) -> list[Array]:
        """Move all tokens of a sequence together, beyond all hyperplanes, several ways."""
        x = self.rng.standard_normal((DIRECTIONS, hinges.dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        x = x[np.argsort(-hinges.margin(x), kind="stable")[:KEPT]]
        steep = np.linalg.norm(self.found.model.first_layers, axis=2).sum(axis=0)[: len(hinges)]
        share = float(np.max(steep / np.linalg.norm(hinges.A, axis=1), initial=1.0))
        spread = share * float(np.linalg.norm(X, axis=1).max())
        far = AWAY * np.maximum(spread / hinges.margin(x), hinges.reach(x))
        steps = far[:, None] * x
        return [X + step for step in (*steps, *-steps)]


def given_to(model: MultiHeadTransformer, neurons: Indices, X: Array) -> tuple[Array, Array, Array]:
    """Return z of some neurons (k,), its derivatives by the tokens X (k, N, d), and s (k,)."""
    alpha, given = model.attention(X[None])[0], model.given(X[None])[0]
    u = model.scores_of(X[None, -1])[0]
    first = model.first_layers[:, neurons]
    B, p = first[: model.H], given[: model.H]
    z = np.einsum("hkd,hd->k", first, given) + model.b[neurons]
    away = X[None] - p[:, None]
    pull = np.einsum("hkd,hnd->hkn", B, away) * alpha[:, None]
    slope = np.einsum("hn,hkd->knd", alpha, B) + np.einsum("hkn,hd->knd", pull, u)
    slope[:, -1] += np.einsum("hde,hkn,nd->ke", model.W, pull, X, optimize=True)
    slope[:, -1] += first[model.H :].sum(axis=0)
    parts = np.einsum("hkd,hd->hk", first, given - given.mean(axis=0))
    return np.asarray(z), np.asarray(slope), np.sqrt(np.sum(parts**2, axis=0))

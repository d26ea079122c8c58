"""v up to its norm from labels of single tokens: signs, the largest entry, ratios to it.

    [e_i]                    label 1 ⇔ v_i > 0                  g_i = ±1; v_i = g_i|v_i|
    [g_i e_i − g_j e_j]      label 1 ⇔ |v_i| > |v_j|            p with |v_p| ≥ |v_i|
    [g_i e_i − ρ g_p e_p]    label 1 ⇔ ρ < |v_i|/|v_p|          zeros of v fall to 0

Queries: d signs, the comparisons of `label_counts.comparisons`, 4 tests of the signs, and a label
per bit of every ratio. Here are the first bits, enough for balanced offsets; the rest are asked
beside the bits of W (`pair_logits`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.learners.single_head.labels.label_probes import Contrasts
from unsoftmax.measure.bisection import Brackets, Labels, Question, halve, read_labels
from unsoftmax.probes import Array, Indices, Probes, Purpose, Singles
from unsoftmax.refusals import Reason
from unsoftmax.theory import label_counts


@dataclass(frozen=True, slots=True)
class ValueRatios:
    """The unknowns r_i = |v_i|/|v_p|."""

    signs: Array
    top: int
    """p."""
    brackets: Brackets
    others: Indices
    """All entries but p, as ordered in the brackets."""

    @classmethod
    def of(cls, signs: Array, top: int) -> ValueRatios:
        """Start with r_i in [0, 1]."""
        d = len(signs)
        return cls(signs, top, Brackets.of(d - 1, 0.0, 1.0), np.delete(np.arange(d), top))

    def probes(self, rho: Array, purpose: Purpose, phase: str = "v") -> Contrasts:
        """Ask whether every r_i is above ρ_i."""
        top = np.full(len(self.others), self.top)
        return Contrasts(self.signs, self.others, top, rho, phase=phase, purpose=purpose)

    def questions(self, bits: int) -> list[Question]:
        """Ask for the next bit of all ratios, if they have fewer than ``bits``."""
        due = np.flatnonzero(self.brackets.bits < bits)
        if not len(due):
            return []
        return [Question(self.probes(self.brackets.middle, "data"), self.brackets, due)]

    def value(self) -> Array:
        """Return v with v_p = ±1; entries that no bit has set are 0."""
        ratios = np.ones(len(self.signs))
        ratios[self.others] = np.where(self.brackets.low > 0, self.brackets.middle, 0.0)
        return self.signs * ratios


def first_ratios(signs: Array, opened: Labels, tiny: float, group: int) -> Asking[ValueRatios]:
    """Find the largest entry of v and the first bits of the others' ratios to it.

    Entries are compared in groups of ``group``. ``tiny`` scales a token down to where a constant
    added to the answers shows, or v = 0; ``opened`` are the labels of longer sequences, which tell
    the two apart.
    """
    d = len(signs)
    ratios = ValueRatios.of(signs, (yield from _largest(signs, group)))
    token = signs[ratios.top] * np.eye(1, d, ratios.top)
    both = np.concatenate([token, -token, tiny * token, -tiny * token])
    tests: list[Probes] = [Singles(both, phase="largest entry of v", purpose="data")]
    bits = label_counts.rough_bits(d)
    [labels] = yield from halve(ratios.questions(bits), beside=tests)
    _refuse_value(labels, signs, opened)
    while questions := ratios.questions(bits):
        yield from halve(questions)
    return ratios


def _largest(signs: Array, group: int) -> Asking[int]:
    """Compare entries in groups, everyone with everyone; winners go on until one is left."""
    standing = np.arange(len(signs))
    first, second = np.triu_indices(group, 1)
    while len(standing) > 1:
        groups = -(-len(standing) // group)
        start = group * np.arange(groups)[:, None]
        i, j = (start + first).ravel(), (start + second).ravel()
        i, j = i[j < len(standing)], j[j < len(standing)]
        pairs = signs, standing[i], standing[j], np.ones(len(i))
        [larger] = read_labels(
            (yield [Contrasts(*pairs, phase="largest entry of v", purpose="pilot")])
        )
        wins = np.bincount(np.where(larger, i, j), minlength=group * groups)
        wins[len(standing) :] = -1
        best = np.argmax(wins.reshape(groups, -1), axis=1)
        standing = standing[start[:, 0] + best]
    return int(standing[0])


def _refuse_value(labels: Labels, signs: Array, opened: Labels) -> None:
    """Refuse labels of x, −x, and of both scaled down, that no x·v has."""
    if np.array_equal(labels, [True, False, True, False]):
        return
    if not labels.any() and np.all(signs < 0):
        if not opened.any():
            raise Reason.LABELS_ALL_0.error({"v": np.zeros(len(signs))})
        raise Reason.TOKENS_ALL_0.error()
    if labels.all():
        raise Reason.LABELS_ALL_1.error()
    raise Reason.SIGNS_CONTRADICT.error(labels=", ".join(str(int(label)) for label in labels))

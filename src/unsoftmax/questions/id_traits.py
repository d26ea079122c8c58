"""What answers of a target of ids look like, before any class of models is assumed.

Some 120 questions. *Lone ids* show the kind of answers. *Six ids* are put in another order, asked
twice over, and beside others, as vectors are (`answer_traits`). *Copies* of an id are answered as
it is by every softmax, unless something stands beside them:

    order counts                             positions
    it does not, f(n copies) has a pole      tokens of the target's own (BOS, EOS, a prompt)

Beside tokens of its own n copies have the weight n a/(n a + 1), so one number of the answer to n
is a Möbius function of n, which keeps cross-ratios; vectors of H heads are sums of H such.
*Long sequences* are put in another order, too: where that counts, and in short ones it did not,
the target cuts them. How long they may be is bisected, as where they are refused.
"""

from dataclasses import replace

import numpy as np

from unsoftmax.learners.compose import Asking
from unsoftmax.probes import Array, Copies, Ids, Indices, Round
from unsoftmax.questions.answer_traits import Traits, differ, first_seen, outcome_of, unless_refused

# Ids that are asked alone, and how many of them again.
_LONE, _AGAIN = 24, 6
# Sequences of so many ids each that are asked in other words, as many of them.
_SHORT = 6
# Ids that are asked in copies, and how often each.
_COPIED, _COPIES = 4, (2, 4, 8, 16, 32, 64, 128)
# (1, 2; 4, 8) as a cross-ratio, and by which share those of answers may be another one.
_CROSS_RATIO, _CROSSED = 9 / 7, 1e-2
# Curves of vectors of more heads than this are not told from any others.
_MOST_POLES = 5


def id_traits_of(vocabulary: int, context: int, rng: np.random.Generator) -> Asking[Traits]:
    """Ask sequences of up to ``context`` ids, and say what the answers show."""
    ids = rng.permutation(vocabulary)[:_LONE]
    lone = yield from _answers("lone ids", ids[:, None], ids[-_AGAIN:, None])
    short = rng.choice(ids, (_SHORT, min(_SHORT, context)))
    several = yield from unless_refused(_in_other_words(short, ids, rng), [], first=True)
    found = first_seen(lone, [], several)
    if not several:
        return replace(found, most_tokens=1)
    outcome = outcome_of(lone[0], found)
    # values of ids may lie between 0 and 1 by themselves
    found = replace(found, outcome=None if outcome == "sigmoid" else outcome)
    if found.beyond is not None or found.constant or found.drowned or found.outcome:
        return found
    if found.counted or found.ordered:
        look = _of_copies(ids[:_COPIED], lone[0][:_COPIED], found)
        return (yield from unless_refused(look, found))
    return (yield from _with_context(found, ids, context, rng))


def _answers(phase: str, *families: Indices) -> Asking[list[Array]]:
    return (yield [Ids(one, phase=phase, purpose="data") for one in families])


def _in_other_words(short: Indices, ids: Indices, rng: np.random.Generator) -> Asking[list[Array]]:
    """Ask sequences, in another order, twice over, beside other ids, and again."""
    others = np.hstack([rng.choice(ids, short[:, :-1].shape), short[:, -1:]])
    families = (short, _reordered(short), np.hstack([short, short]), others, short)
    return (yield from _answers("several ids, and in other words", *families))


def _reordered(ids: Indices) -> Indices:
    """Reverse, and turn by two, all ids but the last one: others are first, too."""
    order = np.roll(np.arange(ids.shape[1] - 1)[::-1], 2)
    return np.hstack([ids[:, order], ids[:, -1:]])


def _of_copies(ids: Indices, alone: Array, found: Traits) -> Asking[Traits]:
    """Ask ids in copies: something may stand beside them, or positions be added to them."""
    asked: Round = [
        Copies.of(Ids(ids[:, None], phase="copies", purpose="data"), np.array([n])) for n in _COPIES
    ]
    answers = yield asked
    every = np.stack([alone, *answers])
    copied = differ(every[1:], every[:1], found.precision)
    return replace(found, copied=copied, beside=not found.ordered and _have_poles(every, found))


def _have_poles(every: Array, found: Traits) -> bool:
    """Tell whether answers (counts, ids, m) are those of copies beside something else."""
    y = every[:4, :, found.coordinate]
    size = float(np.max(np.abs(y)))
    off = 64 * float(found.precision.error(size, size))
    # in an average, or a sum, that counts tokens there is no pole
    curved = np.abs((y[2] - y[1]) - 2 * (y[1] - y[0])) > off
    below = (y[0] - y[3]) * (y[1] - y[2])
    ratios = (y[0] - y[2]) * (y[1] - y[3]) / np.where(below == 0, np.inf, below)
    # one of the ids may be what stands beside them
    if np.sum(curved) < _COPIED - 1:
        return False
    if np.all(np.abs(ratios[curved] - _CROSS_RATIO) < _CROSSED):
        return True
    curves = np.swapaxes(every[1:] - every[0], 0, 1)
    ranks = np.sum(np.linalg.svd(curves, compute_uv=False) > off, axis=1)
    return bool(1 < np.max(ranks) <= _MOST_POLES < min(curves.shape[1:]))


def _with_context(
    found: Traits, ids: Indices, context: int, rng: np.random.Generator
) -> Asking[Traits]:
    """Find how many ids are answered as few are, and whether more are refused."""
    # two halves of the ids in turn: of the first ones in one order none is first in the other
    halves = np.array_split(ids, 2)
    few = np.where(np.arange(context) % 2, *(rng.choice(half, context) for half in halves))
    good, bad, tried, refused = min(_SHORT, context), context + 1, context, False
    while tried > good:
        once = few[None, -tried:]
        other = np.hstack([once[:, 1:-1:2], once[:, :-1:2], once[:, -1:]])
        both = yield from unless_refused(_answers("many ids", once, other), [])
        if both and not differ(both[0], both[1], found.precision):
            good = tried
        else:
            bad, refused = tried, refused or not both
        tried = (good + bad) // 2
    if bad > context:
        return found
    return replace(found, context=good, most_tokens=good if refused else None)

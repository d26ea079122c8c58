"""Which tensor was changed? Sequences at which hypotheses differ, and the one that explains them.

A target that is known to be different from a claim is asked what tells apart the changes that it
may have; every hypothesis is then fitted to the answers (`hypotheses`), and those are named that
leave nothing to explain. By what a model is composed of these are asked:

- heads that answer with a number: single tokens, and for every head three offsets on its line,
  [b + a; b] with the logit 1.5, S or 1.5·S of that head and −S of all others: saturated answers
  show values alone, and those with the query token 0, where no W scores, w;
- heads that answer with vectors: sequences of two tokens, in few planes, where heads share between
  them; with positions the last token is there several times;
- heads with positions: tokens whose scores are alike whatever K, or Q, is (`rotary_tokens`), of the
  one head whose scores were changed;
- neurons: single tokens along a ray, some of them in few neighbouring cells. A change of B is
  continuous across a hyperplane, one of A or b is not; and in few cells there are few neurons;
- neurons of other activations, or gated: nudged copies and random tokens, as of compositions
  (`composition_verdict`);
- heads before neurons: sequences, and the tokens that the claim pools of them by themselves:
  f(X) = f([p(X)]) whatever the neurons are, unless the scores were changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from unsoftmax.models.attention_map import Attention
from unsoftmax.models.composition import Map
from unsoftmax.models.layer_norm import LayerNorm
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.questions.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import LOGIT, LONGEST, as_float32, lines, random_sequences
from unsoftmax.questions.hypotheses import RESIDUAL, Block, Fit, Hypotheses
from unsoftmax.questions.rotary_tokens import FEWER, alike_in_scores

DIVIDED = "how B is divided among heads"
BESIDE_RESIDUAL = "how B and the residual connection are divided"
NETWORK, NEURONS = "the network", "A, b or B"
NOT_LOOKED_FOR = "verify does not look for it in models of this class."
NO_QUESTIONS = "no questions are left."
SEVERAL = "no change of one tensor alone explains the answers."
VALUE_BIAS = "With value biases this happens when one M changed, because c = O·b_v changes with it."
LAYOUT = (
    "This happens when several heads changed (LoRA, quantisation), when q_proj/k_proj rows use "
    'another rotary layout (try layout="interleaved"), or when O changed beside value biases, '
    "because c changes with it."
)
NEAR = "the change is about as small as the errors of the answers."
NORM = "a LayerNorm or RMSNorm before the layer is not looked at by itself."
ALONE = "no question shows one head alone."

# Misses up to this share of their bounds are none: right answers miss by a quarter.
_NOTHING = 0.5
# A change explains the misses if it leaves no more than this share of what bounds let through.
_EXPLAINED = 0.5
# From a miss of so many times its bound on, what explains all by fewer numbers is the reason.
_CLEAR = 8.0
# So many tensors are named where several would explain the misses alike; more say nothing.
_MOST = 3
# Planes that tokens are taken from, without and with positions.
_PLANES = (3, 2)
# Sequences per plane with a query token of its own, with one that W does not score, and single
# tokens, which show values alone.
_SCORED, _UNSCORED, _SINGLES = 12, 6, 3
# Logits of the sequences in turn, in units of the claim's own: shares of every size.
_FACTORS = (1.0, -0.6, 0.5, -1.4, 1.7, -0.3)
# So many query tokens end a sequence of a claim with positions, in turn: slow planes turn further
# beside many.
_FILLERS = (1, 8, 3)
# Neighbouring cells that a ray is looked at in (neurons have this many dimensions and one), tokens
# in each, and tokens along the whole ray.
_CELLS, _PER_CELL, _ALONG = 5, 4, 30
# Numbers of the answers per neuron; with fewer a change of A explains whatever it is. And no more
# neurons are told apart: a step takes time as their cube.
_LEAST, _MOST_NEURONS = 1.5, 2048
# B alone is named from misses of so many times their bounds on: then A and b, had they been
# changed, would have been found to explain the answers.
_SURE = 1e6
# Neurons are off that do so much less than before: changes are fitted about so well.
_OFF = 1e-7
# Lengths of sequences that show the frequencies of all heads, and answers to them beside as many
# as there are frequencies. Frequencies of a recovery that all heads share differ by so much.
_TURNED, _SPARE, _ALIKE = (2, 3, 5, 2, 4, 8), 12, 1e-3
_SCORES = ("W", "w", "K", "Q", "k_bias", "q_bias", "frequencies")


@dataclass(frozen=True, slots=True)
class Located:
    """What was changed; None with the reason why that could not be told."""

    tensor: str | None
    why: str = ""

    @classmethod
    def of(cls, names: Sequence[str], why: str = NEAR) -> Located:
        """List what was changed, or say why nothing is listed."""
        return cls(", ".join(names)) if names else cls(None, why)


Search: TypeAlias = Generator[Round, Answers, Located]


def changed_tensor(
    claim: Claim, errors: AnswerErrors, room: int, rng: np.random.Generator
) -> Search:
    """Find what was changed with at most ``room`` queries, or why that cannot be told."""
    maps, inner = [*claim.leaves.values()], _inside(claim)
    # with other activations, more norms or more sub-layers, what is found might mislead
    normed, plain = len(inner) < len(maps), all(map(_plain, inner))
    if not plain or (claim.ordered and normed) or any(isinstance(x, LayerNorm) for x in inner):
        return Located(None, NOT_LOOKED_FOR)
    search = TensorSearch(claim, errors.alone(), room, rng)
    if [type(one) for one in inner] == [Neurons]:
        return (yield from search.among_neurons()) if claim.outputs else Located(NETWORK)
    if [type(one) for one in inner] == [Attention]:
        return (yield from search.among_heads())
    if len(inner) == 2 and claim.outputs is None and claim.bends is not None:
        return (yield from search.before_network())
    return Located(None, NOT_LOOKED_FOR)


def smooth_neurons_alone(claim: Claim) -> bool:
    """Tell whether a claim is one layer of neurons that do not switch, with norms or without."""
    inner = _inside(claim)
    return [type(one) for one in inner] == [Neurons] and not _plain(inner[0])


def _inside(claim: Claim) -> list[Map]:
    return [x for x in claim.leaves.values() if x not in (claim.before, claim.behind)]


def _neurons_of(leaves: Mapping[str, Map]) -> Neurons:
    return next(one for one in leaves.values() if isinstance(one, Neurons))


def _plain(one: Map) -> bool:
    return not isinstance(one, Neurons) or (one.activation == "relu" and one.G is None)


@dataclass(frozen=True)
class TensorSearch:
    """A search for the tensor of a claim that a target does not have."""

    claim: Claim
    errors: AnswerErrors
    room: int
    rng: np.random.Generator

    @cached_property
    def hypotheses(self) -> Hypotheses:
        """What may have changed."""
        return Hypotheses.of(self.claim)

    def _seen(self, sequences: Sequence[Array]) -> Generator[Round, Answers, Seen]:
        return (yield from seen_at(self.claim, sequences, "which tensor"))

    def _block(self, sequences: Sequence[Array]) -> Generator[Round, Answers, Block]:
        return Block.of(sequences, (yield from self._seen(sequences)), self.errors)

    # -- heads, and neurons behind them

    def before_network(self) -> Search:
        """Tell what single tokens show of the network, W, and w.

        Of several heads B is shown by single tokens but for how it is divided among them, which
        only sequences show where heads pool different tokens; with a residual any of two tokens do.
        """
        claim = self.claim
        assert claim.bends is not None
        random = random_sequences(claim, self.rng)
        unqueried = [np.vstack([X[:-1], 0.0 * X[-1:]]) for X in random[:2]]
        several = self._heads.O is not None
        singles = [X[-1:] for X in random]
        if not several:
            singles = [claim.bends.given(X[None]) for X in (*random, *unqueried)]
        seen = yield from self._seen([*singles, *unqueried, *random])
        n, first = len(singles), len(singles) + len(unqueried)
        network = any(self._moved(seen[[k]], (1.0,)) for k in range(n))
        if not several:
            pairs = [*zip(range(len(random), n), range(n, first), strict=True)]
            by_w = any(self._moved(seen[[*pair]], (1.0, -1.0)) for pair in pairs)
            pairs = [*zip(range(len(random)), range(first, first + len(random)), strict=True)]
            by_W = any(self._moved(seen[[*pair]], (1.0, -1.0)) for pair in pairs)
            names = [NETWORK] if network else []
            return Located.of(names + (["w"] if by_w else ["W"] if by_W else []))
        if network:
            return Located(NETWORK)
        biased, residual = bool(np.any(claim.model.w)), claim.model.residual is not None
        if any(self._moved(seen[[k]], (1.0,)) for k in range(n, first)):
            divided = BESIDE_RESIDUAL if residual else DIVIDED
            return Located(f"w, or {divided}" if biased or residual else "w")
        moved = any(self._moved(seen[[k]], (1.0,)) for k in range(first, len(seen.y)))
        return Located.of([("W" if biased else f"W, or {DIVIDED}")] if moved else [])

    def _moved(self, seen: Seen, weights: Sequence[float]) -> bool:
        """Whether Σ c_k (y_k − f̂(X_k)) is more than the answers' errors explain."""
        c = np.array(weights)
        return bool(abs(c @ seen.missed) > _NOTHING * (np.abs(c) @ self.errors.of(seen)))

    # -- heads

    @property
    def _heads(self) -> Attention:
        assert self.claim.heads is not None
        return self.claim.heads

    def among_heads(self) -> Search:
        """Tell heads' tensors, the constant and a norm behind from each other."""
        if self.claim.outputs is not None:
            return (yield from self._of_vectors())
        if self.claim.ordered and len(self._heads.Q) == 1:
            every = {name: [name] for name in self.claim.model.tensors}
            return (yield from self._of_one(0, every, [], self.room))
        return (yield from self._of_numbers())

    def _of_numbers(self) -> Search:
        """Tell the tensors of heads that answer with a number, on lines where there are any."""
        claim, tensors, ordered = self.claim, self.claim.model.tensors, self.claim.ordered
        drawn = self.rng.standard_normal((2, claim.dim)) / np.sqrt(claim.dim)
        asked = [x[None] for x in as_float32(np.vstack([np.zeros(claim.dim), drawn]))]
        query = random_sequences(claim, self.rng)[3][-1]
        on_lines, why = self._on_lines(query, self.room - len(asked))
        asked += on_lines
        seen = yield from self._seen(asked)
        block, left = Block.of(asked, seen, self.errors), self.room - len(asked)
        values = [name for name in tensors if name[0] == "v"]
        if not on_lines:
            may = {"c": ["c"], **({"v": values} if values else {})}
            return Located.of(_of_heads(self._together(may, block), may), why)
        heads = range(len(self._heads.Q))
        may = {"c": ["c"], **{name: [name] for name in values}}
        if ordered:
            may |= {f"scores of head {h}": [f"K of head {h}", f"q_bias of head {h}"] for h in heads}
        else:
            may |= {name: [name] for name in tensors}
        if not ordered and not np.any(claim.vectors(np.zeros((1, claim.dim)))):
            # with the query token 0 no W scores
            found = self._explaining(may, [block]) or self._together(may, block)
            some = sorted({tensors[name].place or 0 for name in found if name[0] in "Ww"})
            if some and len(some) <= left:
                more = [np.vstack([on_lines[1 + h][0] - query, 0.0 * query]) for h in some]
                seen = seen.beside((yield from self._seen(more)))
                block = Block.of([*asked, *more], seen, self.errors)
        names = self._explaining(may, [block])
        if ordered and len(names) == 1 and names[0].startswith("scores"):
            h = int(names[0].split()[-1])
            own = {n: [n] for n in tensors if n.endswith(f" of head {h}") and n not in values}
            told = yield from self._of_one(h, own, [block], left)
            return Located(names[0]) if told.tensor is None or " or " in told.tensor else told
        if names:
            return self._listed(names)
        if ordered and (yield from self._shared_frequencies(left)):
            return Located("frequencies")
        return Located.of(_of_heads(self._together(may, block), may), SEVERAL)

    def _on_lines(self, query: Array, room: int) -> tuple[list[Array], str]:
        """Return every head's line, or why there are none: at one query token, or at 0 and b."""
        claim, H = self.claim, len(self._heads.Q)
        biased = not claim.ordered and bool(np.any(claim.vectors(np.zeros((1, claim.dim)))))
        if biased and room > 4 * H + 1 and (found := lines(claim, query, True, self.rng)):
            return found, ""
        if found := lines(claim, query, False, self.rng):
            if room >= len(found) + (0 if claim.ordered else 3):
                return found, ""
            return [], f"too few questions are left to look at {H} heads one by one."
        if claim.dim < H:
            return [], f"with more heads than dimensions {ALONE}"
        return [], f"the scores of some heads are 0, or depend on each other: {ALONE}"

    def _of_one(
        self, h: int, may: Mapping[str, Sequence[str]], blocks: Sequence[Block], room: int
    ) -> Search:
        """Tell the tensors of one head with positions from each other."""
        asked = alike_in_scores(self._heads, h, self.rng)
        if asked is None or len(asked) > room:
            return Located(None, FEWER if asked is None else NO_QUESTIONS)
        block = yield from self._block(asked)
        if names := self._explaining(may, [*blocks, block]):
            return self._listed(names)
        return Located.of([] if blocks else self._together(may, block))

    def _shared_frequencies(self, room: int) -> Generator[Round, Answers, bool]:
        """Tell whether other frequencies, shared by all heads, explain some more answers."""
        theta = self._heads.frequencies
        assert theta is not None
        count = theta.shape[1] + _SPARE
        if count > room or np.ptp(theta, axis=0).max(initial=0.0) > _ALIKE:
            return False
        block = yield from self._block(random_sequences(self.claim, self.rng, count, _TURNED))
        of_one = next(x for n, x in self.claim.model.tensors.items() if n.startswith("frequencies"))
        shared = of_one._replace(place=None, norm=1.0, shape=theta.shape[1:])
        tied = replace(self.hypotheses, tensors={"frequencies": shared})
        several = np.median(np.abs(block.missed) / block.bounds) > 2
        return bool(several) and tied.fit(block, ["frequencies"]).left <= _EXPLAINED

    def _of_vectors(self) -> Search:
        """Tell the tensors of heads that answer with vectors, with a norm or without."""
        claim = self.claim
        planes = [self._plane() for _ in range(_PLANES[claim.ordered])]
        while sum(map(len, planes)) > self.room:
            planes.pop()
        if not planes:
            return Located(None, NO_QUESTIONS)
        every = [X for plane in planes for X in plane]
        seen, blocks = (yield from self._seen(every)), []
        for start in range(0, len(every), len(planes[0])):
            some = slice(start, start + len(planes[0]))
            blocks.append(Block.of(every[some], seen[some], self.errors))
        if max(block.share for block in blocks) <= _NOTHING:
            return Located(None, NEAR)
        may = {name: [name] for name in claim.model.tensors if not self._before(name)}
        may |= {RESIDUAL: [RESIDUAL]} if claim.outputs == claim.dim else {}
        names = self._explaining(may, blocks)
        if not names and not claim.ordered:
            pairs = [(f"W of head {h}", f"w of head {h}") for h in range(len(self._heads.Q))]
            names = self._explaining({", ".join(pair): pair for pair in pairs}, blocks)
        # in few planes K may explain what Q's change did as well
        doubted = len(names) > 1 or any(name.startswith("K of") for name in names)
        if claim.ordered and doubted and all(x.split(" of ")[0] in _SCORES for x in names):
            own, room = {name: [name] for name in names}, self.room - len(every)
            told = yield from self._of_one(self._head_of(names), own, blocks, room)
            if told.tensor is not None:
                return told
            names = names if told.why in (FEWER, NO_QUESTIONS) else []
        if names:
            return self._listed(names)
        here = f"{SEVERAL[:-1]}; {NORM}" if claim.before is not None else SEVERAL
        return Located(None, f"{here} {LAYOUT if claim.ordered else VALUE_BIAS}")

    def _head_of(self, names: Sequence[str]) -> int:
        """Return the first head that has one of these tensors."""
        tensors, groups = [self.claim.model.tensors[name] for name in names], self._heads.groups
        place, path = next(((x.place, x.path) for x in tensors if x.place is not None), (0, ""))
        by_group = groups is not None and path.endswith(("K", "k_bias"))
        return groups.tolist().index(place) if groups is not None and by_group else place

    def _before(self, name: str) -> bool:
        return self.claim.before is not None and name.endswith(" of the norm")

    def _plane(self) -> list[Array]:
        """Draw a plane, and sequences in it whose tokens the claim's heads share between."""
        claim = self.claim
        if claim.before is not None:
            return self._circle(claim.before.centred)
        a, t = self.rng.standard_normal((2, claim.dim)) / np.sqrt(claim.dim)
        u, w = claim.vectors(np.array([t, 0.0 * t]))
        by_query, by_bias = np.abs((u - w) @ a), np.abs(w @ a)
        root = by_bias + np.sqrt(by_bias**2 + 4 * LOGIT * by_query)
        both, alone = _levels(2 * LOGIT, root, _SCORED), _levels(LOGIT, by_bias, _UNSCORED)
        turns = np.resize(_FACTORS, _SCORED)
        alpha = np.concatenate([both * turns, alone * turns[:_UNSCORED], np.zeros(_SINGLES)])
        beta = [both, np.zeros(_UNSCORED), np.median(both) * np.linspace(0, 1, _SINGLES)]
        levels = as_float32(np.array([alpha, np.concatenate(beta)])).T
        sequences = []
        for k, (first, last) in enumerate(levels.tolist()):
            times = _FILLERS[k % len(_FILLERS)] if claim.ordered and first else 1
            before = [last * t + first * a] if first else []
            sequences.append(np.array([*before, *[last * t] * times]))
        return sequences

    def _circle(self, centred: bool) -> list[Array]:
        """Draw tokens that a norm before leaves where they are: two directions without a mean."""
        drawn = self.rng.standard_normal((2, self.claim.dim))
        drawn -= float(centred) * drawn.mean(axis=1, keepdims=True)
        basis = np.linalg.qr(drawn.T)[0].T * np.sqrt(self.claim.dim)
        angles = self.rng.uniform(0, 2 * np.pi, (_SCORED, 2))
        # near tokens too: heads share between them
        angles[1::2, 0] = angles[1::2, 1] + self.rng.uniform(-0.5, 0.5, len(angles[1::2]))
        tokens = np.stack([np.cos(angles), np.sin(angles)], axis=-1) @ basis
        sequences = [*tokens, *(np.array([x, 0.0 * x]) for x in tokens[:_UNSCORED, 0])]
        return [*sequences, *(x[None] for x in tokens[:_SINGLES, 1])]

    # -- neurons

    def among_neurons(self) -> Search:
        """Tell c and a norm behind from the neurons, and these from each other along a ray."""
        claim = self.claim
        asked = [X for _ in range(_PLANES[0]) for X in random_sequences(claim, self.rng)]
        block = yield from self._block(asked)
        clear = block.share > _CLEAR
        inside = [n for n in claim.model.tensors if n[0] != "c" and not n.endswith(" of the norm")]
        outside = [n for n in claim.model.tensors if n not in inside and not self._before(n)]
        if block.share <= _NOTHING:
            return Located(None, NEAR)
        outside += [RESIDUAL] if claim.outputs == claim.dim else []
        # of few neurons a change of B is one of a norm's scale
        beside = ["B"] if claim.behind is not None else []
        names = self._explaining({name: [name] for name in (*outside, *beside)}, [block])
        if {*names} & {*outside}:
            return self._listed(names) if clear else Located(None, NEAR)
        ray = self._ray(self.room - len(asked)) if clear else None
        if ray is None:
            return Located(NEURONS if claim.before is None else f"{NEURONS}, or the norm")
        seen = yield from self._seen(ray)
        whole = Block.of(ray, seen, self.errors)
        near = Block.of(ray[_ALONG:], seen[_ALONG:], self.errors)
        # across a hyperplane a change of A shows by one neuron's share
        if whole.share <= _CLEAR * np.sqrt(self._neurons.B.shape[1]):
            return Located(NEURONS)
        fits = self._fits({name: [name] for name in inside}, [near, whole])
        names = _simplest(fits, [near, whole])
        # what A cannot be fitted to may look like B, in coarse answers, and behind a norm
        doubted = names == ["B"] and (claim.behind is not None or whole.share < _SURE)
        # a neuron that a change of A or b turns off at all tokens is one without its column of B
        silent = "B" in fits and any(self._turned_off(fits[name], whole) for name in names)
        return Located(NEURONS) if doubted or silent or not names else self._listed(names)

    def _turned_off(self, fit: Fit, block: Block) -> bool:
        """Whether a change turns a neuron off, but for what bounds hide, at all tokens it met."""
        assert fit.maps is not None
        tokens, largest = np.concatenate(block.sequences), []
        for one in (self._neurons, _neurons_of(fit.maps.leaves)):
            assert one.A is not None
            largest.append(np.max(np.maximum(tokens @ one.A.T + one.a, 0.0), axis=0))
        hidden = max(_OFF, 1 / block.share)
        return bool(np.any((largest[0] > 0) & (largest[1] <= hidden * largest[0])))

    @property
    def _neurons(self) -> Neurons:
        return _neurons_of(self.claim.leaves)

    def _ray(self, room: int) -> list[Array] | None:
        """Draw single tokens τe, some along a whole ray, then some in neighbouring cells.

        None where they do not tell A, b and B apart.
        """
        A, a, (m, n) = self._neurons.A, self._neurons.a, self._neurons.B.shape
        tokens = _ALONG + _CELLS * _PER_CELL
        if A is None or self.claim.before is not None or tokens * m < _LEAST * n:
            return None
        if n > _MOST_NEURONS or tokens > room:
            return None
        e = as_float32(self.rng.standard_normal(self.claim.dim) / np.sqrt(self.claim.dim))
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = -a / (A @ e)
        kinks = np.sort(kinks[np.isfinite(kinks) & (kinks != 0)])
        if len(kinks) <= _CELLS:
            return None
        far = 2 * float(np.quantile(np.abs(kinks), 0.75))
        along = far * (np.arange(_ALONG) + self.rng.random(_ALONG)) / _ALONG
        along = along * self.rng.choice([-1.0, 1.0], _ALONG)
        first = int(np.argmin(np.abs(kinks - np.median(kinks)))) - _CELLS // 2
        first = min(max(0, first), len(kinks) - _CELLS - 1)
        ends = kinks[first : first + _CELLS + 1]
        inner = (np.arange(_PER_CELL) + 0.5) / _PER_CELL
        near = (ends[:-1, None] + np.diff(ends)[:, None] * inner).ravel()
        return [tau * e[None] for tau in as_float32(np.append(along, near))]

    # -- what explains the answers

    def _explaining(self, may: Mapping[str, Sequence[str]], blocks: Sequence[Block]) -> list[str]:
        """Name the hypotheses that explain all blocks, each by itself, most simply."""
        return _simplest(self._fits(may, blocks), blocks)

    def _fits(self, may: Mapping[str, Sequence[str]], blocks: Sequence[Block]) -> dict[str, Fit]:
        """Fit the hypotheses that explain all blocks, each by itself."""
        found: dict[str, Fit] = {}
        for name, tensors in may.items():
            fit = Fit(0.0)
            for block in blocks:
                fit = fit.beside(self.hypotheses.fit(block, tensors))
                if not fit.left <= _EXPLAINED:
                    break
            else:
                found[name] = fit
        return found

    def _together(self, may: Mapping[str, Sequence[str]], block: Block) -> list[str]:
        """Name the fewest hypotheses that explain a block together."""

        def explain(names: Iterable[str]) -> bool:
            every = [tensor for name in names for tensor in may[name]]
            return self.hypotheses.fit(block, every).left <= _EXPLAINED

        kept = [*may] if explain(may) else []
        # a kind of tensors goes at once, if it can: scores first, which are fitted with most steps
        kinds = dict.fromkeys(name.split(" of ")[0] for name in reversed(kept))
        groups = [[name for name in kept if name.split(" of ")[0] == kind] for kind in kinds]
        for group in (*groups, *([name] for name in [*kept])):
            others = [name for name in kept if name not in group]
            if len(others) < len(kept) and explain(others):
                kept = others
        return kept

    def _listed(self, names: Sequence[str]) -> Located:
        if len(names) > _MOST:
            return Located(None, NEAR)
        if len(names) == 3 and not any(" of " in name for name in names):
            return Located(f"{names[0]}, {names[1]} or {names[2]}")
        return Located(" or ".join(names))


def _simplest(found: Mapping[str, Fit], blocks: Sequence[Block]) -> list[str]:
    """Name the explanations that no other one makes say nothing, where misses are clear."""
    every = found.values() if max(block.share for block in blocks) > _CLEAR else ()
    return [name for name, x in found.items() if not any(one.simpler(x) for one in every)]


def _levels(wanted: float, sizes: Array, count: int) -> Array:
    """Return scales at which one head after the other has the logit wanted, (count,)."""
    scales = np.sort(wanted / sizes[sizes > 0]) if np.any(sizes > 0) else np.ones(1)
    picked = scales[np.arange(count) * len(scales) // count]
    return np.asarray(np.clip(picked, 1 / LONGEST, LONGEST))


def _of_heads(names: Iterable[str], every: Iterable[str]) -> list[str]:
    """Say which heads' tensors were changed.

    Examples
    --------
    >>> every = ["c", "v of head 0", "v of head 1", "v of head 2"]
    >>> _of_heads(["c", "v of head 0", "v of head 2"], every), _of_heads(every[1:], every)
    (['c', 'v of heads 0 and 2'], ['v of every head'])
    """
    found: dict[str, list[str]] = {}
    for name in names:
        own, _, head = name.partition(" of head ")
        found.setdefault(own, []).append(head)
    said = []
    for own, heads in found.items():
        if len(heads) == 1:
            said.append(f"{own} of head {heads[0]}" if heads[0] else own)
        elif len(heads) == sum(name.startswith(f"{own} of head ") for name in every):
            said.append(f"{own} of every head")
        else:
            said.append(f"{own} of heads {', '.join(heads[:-1])} and {heads[-1]}")
    return said

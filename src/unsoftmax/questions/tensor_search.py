"""Which tensor was changed? Sequences at which hypotheses differ, and the one that explains them.

A target that is known to be different from a claim is asked what tells apart the changes that it
may have; every hypothesis is then fitted to the answers (`hypotheses`), and those are named that
leave nothing to explain. By what a model is composed of these are asked:

- heads that answer with a number: single tokens, and for every head three offsets on its line
  (`claim_probes.Lines`), at the logits 1.5, S and 1.5·S: saturated answers show values alone, and
  those with the query token 0, where no W scores, w;
- heads that answer with vectors: sequences of two tokens, in few planes, where heads share between
  them; with positions the last token is there several times;
- heads with positions: tokens whose scores are alike whatever K, or Q, is (`rotary_tokens`), of the
  one head whose scores were changed;
- neurons: single tokens along a ray, some of them in few neighbouring cells. A change of B is
  continuous across a hyperplane, one of A or b is not; and in few cells there are few neurons;
- heads before neurons: sequences, and the tokens that the claim pools of them by themselves:
  f(X) = f([p(X)]) whatever the neurons are, unless the scores were changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from unsoftmax.models.model import Tensor
from unsoftmax.models.neurons import Neurons
from unsoftmax.probes import Array, Round
from unsoftmax.protocol import Answers
from unsoftmax.questions.answer_errors import AnswerErrors, Seen, seen_at
from unsoftmax.questions.claim import Claim
from unsoftmax.questions.claim_probes import ClaimProbeTuning, lines, random_sequences
from unsoftmax.questions.hypotheses import RESIDUAL, Block, Fit, Hypotheses
from unsoftmax.questions.located import NEAR, Located, Search
from unsoftmax.questions.rotary_tokens import FEWER, RotaryTokens, scored_alone

DIVIDED = "how B is divided among heads"
BESIDE_RESIDUAL = "how B and the residual are divided"
NEURONS = "A, b or B"
NO_QUESTIONS = "no questions are left."
SEVERAL = "no change of one tensor alone explains the answers."
VALUE_BIAS = "M of one head beside value biases, which are part of c, changes two at once."
LAYOUT = (
    "Rows of K and Q in another layout change two tensors at once; so does one O beside value "
    "biases, which are part of c."
)
NORM = "a norm before the layer is not looked at by itself."

# Frequencies of heads are shared where they differ by no more: those of a recovery.
_ALIKE = 1e-3
SCORES = ("W", "w", "K", "Q", "k_bias", "q_bias", "frequencies")


@dataclass(frozen=True, slots=True)
class TensorSearchTuning:
    """Knobs of the search."""

    further: float = 1.5
    """The second saturated logit, in units of the first: the two give two numbers of v."""
    nothing: float = 0.5
    """Misses up to this share of their bounds are none: right answers miss by a quarter."""
    explained: float = 0.5
    """A change explains the misses if it leaves no more than this share of what bounds allow."""
    clear: float = 8.0
    """Neurons are looked at from a miss of so many times its bound on."""
    most: int = 3
    """So many tensors are named where several would explain the misses alike; more say nothing."""
    planes: tuple[int, int] = (3, 2)
    """Planes that tokens are taken from, without and with positions."""
    scored: int = 12
    """Sequences per plane with a query token of its own,"""
    unscored: int = 6
    """and with one that W does not score;"""
    singles: int = 3
    """and single tokens, which show values alone."""
    factors: tuple[float, ...] = (1.0, -0.6, 0.5, -1.4, 1.7, -0.3)
    """Logits of the sequences in turn, in units of the claim's own: shares of every size."""
    fillers: tuple[int, ...] = (1, 8, 3)
    """So many query tokens end a sequence of a claim with positions, in turn: slow planes turn
    further beside many."""
    cells: int = 5
    """Neighbouring cells that a ray is looked at in; neurons have this many dimensions and one."""
    per_cell: int = 4
    """Tokens in each."""
    along: int = 30
    """Tokens along the whole ray."""
    least: float = 1.5
    """Numbers of the answers per neuron; with fewer a change of A explains whatever it is."""
    neurons: int = 2048
    """More neurons are not told apart: a step takes time as their cube."""
    sure: float = 1e6
    """B alone is named from misses of so many times their bounds on: then A and b, had they been
    changed, would have been found to explain the answers."""
    turned: tuple[int, ...] = (2, 3, 5, 2, 4, 8)
    """Lengths of sequences that show the frequencies of all heads. Longer: planes turn so far that
    a search for their frequencies ends elsewhere."""
    spare: int = 12
    """Answers to them, beside as many as there are frequencies."""


def changed_tensor(
    claim: Claim,
    errors: AnswerErrors,
    room: int,
    rng: np.random.Generator,
    probes: ClaimProbeTuning,
    tuning: TensorSearchTuning,
) -> Search:
    """Find what was changed with at most ``room`` queries, or why that cannot be told."""
    search = TensorSearch(claim, errors.alone(), room, rng, probes, tuning)
    kinds = [one for one in claim.leaves.values() if one not in (claim.before, claim.behind)]
    if not claim.attends and claim.outputs is None:
        return Located("the network")
    if len(kinds) == 1 and not claim.attends:
        return (yield from search.among_neurons())
    if len(kinds) == 1:
        return (yield from search.among_heads())
    if len(kinds) == 2 and claim.outputs is None and claim.bends is not None:
        return (yield from search.before_network())
    return Located(None, "of such a model it is not looked for.")


@dataclass(frozen=True)
class TensorSearch:
    """A search for the tensor of a claim that a target does not have."""

    claim: Claim
    errors: AnswerErrors
    room: int
    rng: np.random.Generator
    probes: ClaimProbeTuning
    tuning: TensorSearchTuning

    def _asked(self, sequences: Sequence[Array]) -> Generator[Round, Answers, Seen]:
        return (yield from seen_at(self.claim, sequences, "which tensor"))

    # -- heads, and neurons behind them

    def before_network(self) -> Search:
        """Tell what single tokens show of the network, W, and w.

        Of several heads B is shown by single tokens but for how it is divided among them, which
        only sequences show where heads pool different tokens; with a residual any of two tokens do.
        """
        claim, bends = self.claim, self.claim.bends
        assert bends is not None
        random = random_sequences(claim, self.rng, self.probes)
        unqueried = [np.vstack([X[:-1], 0.0 * X[-1:]]) for X in random[:2]]
        several = claim.heads is not None and claim.heads.O is not None
        pooled = [X[-1:] if several else bends.given(X[None]) for X in (*random, *unqueried)]
        pooled = pooled[: len(random)] if several else pooled
        seen = yield from self._asked([*pooled, *unqueried, *random])
        one, n = [self._moved(seen[[k]], (1.0,)) for k in range(len(seen.y))], len(pooled)
        if several:
            biased = bool(np.any(claim.model.w))
            residual = claim.model.residual is not None
            divided = BESIDE_RESIDUAL if residual else DIVIDED
            if any(one[:n]):
                return Located("the network")
            if any(one[n : n + 2]):
                return Located(f"w, or {divided}" if biased or residual else "w")
            return Located.of([("W" if biased else f"W, or {DIVIDED}")] if any(one) else [])
        both = [*range(len(random), n), *range(len(random))]
        apart = [self._moved(seen[[n + k, at]], (1.0, -1.0)) for k, at in enumerate(both)]
        names = ["the network"] if any(one[:n]) else []
        scored = ["w"] if any(apart[:2]) else ["W"] if any(apart) else []
        return Located.of(names + scored)

    def _moved(self, seen: Seen, weights: Sequence[float]) -> bool:
        """Whether Σ c_k (y_k − f̂(X_k)) is more than the answers' errors explain."""
        c = np.array(weights)
        allowed = np.abs(c) @ self.errors.of(seen)
        return bool(abs(c @ seen.missed) > self.tuning.nothing * allowed)

    # -- heads

    def among_heads(self) -> Search:
        """Tell heads' tensors, the constant and a norm behind from each other."""
        if self.claim.outputs is not None:
            return (yield from self.of_vectors())
        if self.claim.ordered and self._heads == 1:
            whole = {name: [name] for name in self.claim.model.tensors}
            return (yield from self.of_one(0, whole, [], self.room))
        return (yield from self.of_numbers())

    @property
    def _heads(self) -> int:
        return 0 if self.claim.heads is None else len(self.claim.heads.Q)

    def of_numbers(self) -> Search:
        """Tell the tensors of heads that answer with a number, on lines where there are any."""
        claim, H, zero = self.claim, self._heads, np.zeros(self.claim.dim)
        drawn = self.rng.standard_normal((2, claim.dim)) / np.sqrt(claim.dim)
        asked = [zero[None], *(x[None].astype(np.float32).astype(np.float64) for x in drawn)]
        random = random_sequences(claim, self.rng, self.probes)
        query = random[self.probes.random // 2][-1]
        on_lines, why = self._on_lines(query, self.room - len(asked))
        seen = yield from self._asked([*asked, *on_lines])
        block = Block.of([*asked, *on_lines], seen, self.errors)
        tensors, ordered = claim.model.tensors, claim.ordered
        if not on_lines:
            values = [name for name in tensors if name[0] == "v"]
            may = {"c": ["c"], **({"v": values} if values else {})}
            found = self._set(may, block)
            return Located.of(_of_heads(found, may), why)
        may = {n: [n] for n in tensors if not ordered or n[0] in "cv"}
        scores = {
            f"scores of head {h}": [f"K of head {h}", f"q_bias of head {h}"]
            for h in range(H if ordered else 0)
        }
        may |= scores
        left = self.room - len(seen.y)
        unbiased = not ordered and not np.any(claim.vectors(zero[None]))
        if unbiased and (heads := self._scored_heads(may, block)) and len(heads) <= left:
            # with the query token 0 no W scores
            more = [np.vstack([on_lines[1 + h][0] - query, zero]) for h in heads]
            again = yield from self._asked(more)
            asked, seen = [*asked, *on_lines, *more], seen.beside(again)
            block = Block.of(asked, seen, self.errors)
        names = self._explaining(may, [block])
        if len(names) == 1 and names[0] in scores:
            h = int(names[0].split()[-1])
            own = {n: [n] for n in tensors if n.endswith(f" of head {h}") and n[0] != "v"}
            found = yield from self.of_one(h, own, [block], left)
            told = found.tensor is not None and " or " not in found.tensor
            return found if told else Located(names[0])
        if names:
            return self._listed(names)
        if ordered and (yield from self.of_shared_frequencies(left)):
            return Located("frequencies")
        return Located.of(_of_heads(self._set(may, block), may), SEVERAL)

    def _scored_heads(self, may: Mapping[str, Sequence[str]], block: Block) -> list[int]:
        """Return the heads whose scores must have been changed."""
        names = self._explaining(may, [block]) or self._set(may, block)
        tensors = self.claim.model.tensors
        scored = [tensors[tensor] for name in names for tensor in may[name]]
        return sorted({one.place or 0 for one in scored if one.path.endswith((".W", ".w"))})

    def _explains(self, block: Block, tensors: Sequence[str]) -> bool:
        return self.hypotheses.fit(block, tensors).left <= self.tuning.explained

    def _on_lines(self, query: Array, room: int) -> tuple[list[Array], str]:
        """Return every head's line, or why there are none: at one query token, or at 0 and b."""
        claim, H, low = self.claim, self._heads, self.probes.logit
        zero = 0.0 * query
        biased = bool(np.any(claim.vectors(zero[None]))) and not claim.ordered
        tries = [(zero, query)] if biased and room > 4 * H + 1 else []
        further = 3 * H + (1 if claim.ordered else 4)
        for queries in (*tries, (query,)):
            turn = -2 * low if len(queries) == 2 else None
            found = lines(claim, query, turn, self.rng, self.probes)
            if found is None or (turn is None and room < further):
                continue
            asked = [found.sequence(None, 0.0, x) for x in queries]
            asked += [found.sequence(h, low, x) for x in queries for h in range(H)]
            levels = found.saturated * np.array([1.0, self.tuning.further])
            asked += [found.sequence(h, at, queries[0]) for at in levels for h in range(H)]
            return asked, ""
        if found is not None:
            return [], f"the questions left do not suffice to look at {H} heads one by one."
        if claim.dim < H:
            return [], "with more heads than dimensions no question shows one head alone."
        alone = "no question shows one head alone."
        return [], f"some heads' scores are 0, or depend on each other: {alone}"

    def of_one(
        self, h: int, may: Mapping[str, list[str]], blocks: Sequence[Block], room: int
    ) -> Search:
        """Tell the tensors of one head with positions from each other."""
        head = scored_alone(self.claim, h)
        found = RotaryTokens.drawn(head, self.rng)
        if found is None:
            return Located(None, FEWER)
        if len(found.asked) > room:
            return Located(None, NO_QUESTIONS)
        seen = yield from self._asked(found.asked)
        block = Block.of(found.asked, seen, self.errors)
        if names := self._explaining(may, [*blocks, block]):
            return self._listed(names)
        return Located.of(self._set(may, block) if self.claim.outputs is None else [])

    def of_shared_frequencies(self, room: int) -> Generator[Round, Answers, bool]:
        """Tell whether other frequencies, shared by all heads, explain some more answers."""
        tuning, claim = self.tuning, self.claim
        assert claim.heads is not None
        theta = claim.heads.frequencies
        assert theta is not None
        count = theta.shape[1] + tuning.spare
        if count > room or np.ptp(theta, axis=0).max(initial=0.0) > _ALIKE:
            return False
        probes = replace(self.probes, random=count, tokens=tuning.turned)
        asked = random_sequences(claim, self.rng, probes)
        seen = yield from self._asked(asked)
        block = Block.of(asked, seen, self.errors)
        if not np.median(np.abs(block.missed) / block.bounds) > 2:
            return False
        path = next(t.path for n, t in claim.model.tensors.items() if n.startswith("freq"))
        shared = {"frequencies": Tensor(path, None, 1.0, theta.shape[1:])}
        tied = replace(self.hypotheses, tensors=shared)
        return tied.fit(block, ["frequencies"]).left <= tuning.explained

    def of_vectors(self) -> Search:
        """Tell the tensors of heads that answer with vectors, with a norm or without."""
        claim, tuning = self.claim, self.tuning
        planes = [self._plane() for _ in range(tuning.planes[claim.ordered])]
        while sum(map(len, planes)) > self.room:
            planes.pop()
        if not planes:
            return Located(None, NO_QUESTIONS)
        every = [X for plane in planes for X in plane]
        seen = yield from self._asked(every)
        blocks, start = [], 0
        for plane in planes:
            blocks.append(Block.of(plane, seen[start : start + len(plane)], self.errors))
            start += len(plane)
        if max(block.share for block in blocks) <= tuning.nothing:
            return Located(None, NEAR)
        tensors = claim.model.tensors
        may = {name: [name] for name, one in tensors.items() if not self._is_before(name)}
        if claim.outputs == claim.dim:
            may[RESIDUAL] = [RESIDUAL]
        names = self._explaining(may, blocks)
        if not names and not claim.ordered:
            pairs = [(f"W of head {h}", f"w of head {h}") for h in range(self._heads)]
            names = self._explaining({", ".join(pair): [*pair] for pair in pairs}, blocks)
        scored = [name for name in names if name.split(" of ")[0] in SCORES]
        if claim.ordered and len(names) > 1 and names == scored:
            h = self._first_head(names)
            own = {name: [name] for name in names}
            found = yield from self.of_one(h, own, blocks, self.room - len(every))
            return found if found.tensor is not None else self._listed(names)
        if names:
            return self._listed(names)
        here = f"{SEVERAL[:-1]}; {NORM}" if claim.before is not None else SEVERAL
        return Located(None, f"{here} {LAYOUT if claim.ordered else VALUE_BIAS}")

    def _first_head(self, names: Sequence[str]) -> int:
        """Return the first head that has one of these tensors."""
        tensors = [self.claim.model.tensors[name] for name in names]
        one = min(tensors, key=lambda t: t.place is None)
        groups = None if self.claim.heads is None else self.claim.heads.groups
        if one.place is None or groups is None or not one.path.endswith(("K", "k_bias")):
            return one.place or 0
        return groups.tolist().index(one.place)

    def _is_before(self, name: str) -> bool:
        return self.claim.before is not None and name.endswith(" of the norm")

    def _plane(self) -> list[Array]:
        """Draw a plane, and sequences in it whose tokens the claim's heads share between."""
        claim, tuning, probes = self.claim, self.tuning, self.probes
        if claim.before is not None:
            return self._circle()
        a, t = self.rng.standard_normal((2, claim.dim)) / np.sqrt(claim.dim)
        u, w = claim.vectors(np.array([t, 0.0 * t]))
        by_query, by_bias = np.abs((u - w) @ a), np.abs(w @ a)
        root = by_bias + np.sqrt(by_bias**2 + 4 * probes.logit * by_query)
        both = self._levels(2 * probes.logit, root, tuning.scored)
        alone = self._levels(probes.logit, by_bias, tuning.unscored)
        turns = np.resize(tuning.factors, tuning.scored)
        singles = np.median(both) * np.linspace(0, 1, tuning.singles)
        rows = [
            *zip(both * turns, both, strict=True),
            *((alpha, 0.0) for alpha in alone * turns[: len(alone)]),
            *((0.0, beta) for beta in singles),
        ]
        sequences = []
        for k, (alpha, beta) in enumerate(np.float64(np.float32(rows)).tolist()):
            more = tuning.fillers[k % len(tuning.fillers)] if claim.ordered else 1
            last = [beta * t] * (more if alpha else 1)
            sequences.append(np.array([*([beta * t + alpha * a] if alpha else []), *last]))
        return sequences

    def _circle(self) -> list[Array]:
        """Draw tokens that a norm before leaves where they are: two directions without a mean."""
        norm, d, tuning = self.claim.before, self.claim.dim, self.tuning
        assert norm is not None
        drawn = self.rng.standard_normal((2, d))
        drawn -= float(norm.centred) * drawn.mean(axis=1, keepdims=True)
        basis = np.linalg.qr(drawn.T)[0].T * np.sqrt(d)
        angles = self.rng.uniform(0, 2 * np.pi, (tuning.scored, 2))
        # near tokens too: heads share between them
        angles[1::2, 0] = angles[1::2, 1] + self.rng.uniform(-0.5, 0.5, len(angles[1::2]))
        tokens = np.stack([np.cos(angles), np.sin(angles)], axis=-1) @ basis
        sequences = [*tokens, *(np.array([x, 0.0 * x]) for x in tokens[: tuning.unscored, 0])]
        return [*sequences, *(x[None] for x in tokens[: tuning.singles, 1])]

    def _levels(self, wanted: float, sizes: Array, count: int) -> Array:
        """Return scales at which one head after the other has the logit wanted, (count,)."""
        scales = np.sort(wanted / sizes[sizes > 0]) if np.any(sizes > 0) else np.ones(1)
        picked = scales[np.arange(count) * len(scales) // count]
        return np.asarray(np.clip(picked, 1 / self.probes.longest, self.probes.longest))

    # -- neurons

    def among_neurons(self) -> Search:
        """Tell c and a norm behind from the neurons, and these from each other along a ray."""
        claim, tuning = self.claim, self.tuning
        asked = [
            X
            for _ in range(tuning.planes[0])
            for X in random_sequences(claim, self.rng, self.probes)
        ]
        seen = yield from self._asked(asked)
        block = Block.of(asked, seen, self.errors)
        if block.share <= tuning.nothing:
            return Located(None, NEAR)
        clear = block.share > tuning.clear
        outside = [n for n in claim.model.tensors if n[0] == "c" or n.endswith(" of the norm")]
        may = {name: [name] for name in outside if not self._is_before(name)}
        if claim.outputs == claim.dim:
            may[RESIDUAL] = [RESIDUAL]
        if names := self._explaining(may, [block]):
            return self._listed(names) if clear else Located(None, NEAR)
        ray = self._ray(self.room - len(asked)) if clear else None
        if ray is None:
            return Located(NEURONS if claim.before is None else f"{NEURONS}, or the norm")
        seen = yield from self._asked(ray)
        whole = Block.of(ray, seen, self.errors)
        near = Block.of(ray[tuning.along :], seen[tuning.along :], self.errors)
        # across a hyperplane a change of A shows by one neuron's share
        if whole.share <= tuning.clear * np.sqrt(self._neurons.B.shape[1]):
            return Located(NEURONS)
        inside = [n for n in claim.model.tensors if n not in outside]
        names = self._explaining({name: [name] for name in inside}, [near, whole])
        # what A cannot be fitted to may look like B, in coarse answers, and behind a norm
        doubted = names == ["B"] and (claim.behind is not None or whole.share < tuning.sure)
        return Located(NEURONS) if doubted or not names else self._listed(names)

    @property
    def _neurons(self) -> Neurons:
        return next(one for one in self.claim.leaves.values() if isinstance(one, Neurons))

    def _ray(self, room: int) -> list[Array] | None:
        """Draw single tokens τe, some along a whole ray, then some in neighbouring cells.

        None where they do not tell A, b and B apart.
        """
        claim, tuning, neurons = self.claim, self.tuning, self._neurons
        tokens, n = tuning.along + tuning.cells * tuning.per_cell, neurons.B.shape[1]
        few = tokens * len(neurons.c) < tuning.least * n
        if claim.bends is None or claim.before is not None:
            return None
        if few or n > tuning.neurons or tokens > room:
            return None
        assert neurons.A is not None
        e = self.rng.standard_normal(claim.dim) / np.sqrt(claim.dim)
        e = e.astype(np.float32).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = -neurons.a / (neurons.A @ e)
        kinks = np.sort(kinks[np.isfinite(kinks) & (kinks != 0)])
        if len(kinks) <= tuning.cells:
            return None
        far = 2 * float(np.quantile(np.abs(kinks), 0.75))
        along = far * (np.arange(tuning.along) + self.rng.random(tuning.along)) / tuning.along
        along = along * self.rng.choice([-1.0, 1.0], tuning.along)
        first = int(np.argmin(np.abs(kinks - np.median(kinks)))) - tuning.cells // 2
        first = min(max(0, first), len(kinks) - tuning.cells - 1)
        ends = kinks[first : first + tuning.cells + 1]
        inner = (np.arange(tuning.per_cell) + 0.5) / tuning.per_cell
        near = (ends[:-1, None] + np.diff(ends)[:, None] * inner).ravel()
        places = np.append(along, near).astype(np.float32).astype(np.float64)
        return [tau * e[None] for tau in places]

    # -- what explains the answers

    @cached_property
    def hypotheses(self) -> Hypotheses:
        """What may have changed."""
        return Hypotheses.of(self.claim)

    def _explaining(self, may: Mapping[str, Sequence[str]], blocks: Sequence[Block]) -> list[str]:
        """Name the hypotheses that explain all blocks, each by itself."""
        found: dict[str, Fit] = {}
        for name, tensors in may.items():
            fit = Fit(0.0)
            for block in blocks:
                fit = fit.beside(self.hypotheses.fit(block, tensors))
                if not fit.left <= self.tuning.explained:
                    break
            else:
                found[name] = fit
        if max(block.share for block in blocks) <= self.tuning.clear:
            return [*found]
        every = found.values()
        return [name for name, x in found.items() if not any(one.simpler(x) for one in every)]

    def _set(self, may: Mapping[str, Sequence[str]], block: Block) -> list[str]:
        """Name the fewest hypotheses that explain a block together."""
        kept = list(may)
        if not self._explains(block, [tensor for some in may.values() for tensor in some]):
            return []
        for name in may:
            others = [tensor for one in kept if one != name for tensor in may[one]]
            if self._explains(block, others):
                kept.remove(name)
        return kept

    def _listed(self, names: Sequence[str]) -> Located:
        if len(names) > self.tuning.most:
            return Located(None, NEAR)
        if len(names) == 3 and not any(" of " in name for name in names):
            return Located(f"{names[0]}, {names[1]} or {names[2]}")
        return Located(" or ".join(names))


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
        if heads == [""] or len(heads) == 1:
            said.append(f"{own} of head {heads[0]}" if heads[0] else own)
        elif len(heads) == sum(name.startswith(f"{own} of head ") for name in every):
            said.append(f"{own} of every head")
        else:
            said.append(f"{own} of heads {', '.join(heads[:-1])} and {heads[-1]}")
    return said

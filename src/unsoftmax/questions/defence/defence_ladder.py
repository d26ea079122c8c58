"""The defences that are tried: how a service answers, from the wrappers of `oracles.defences`.

Strengths are relative to what legitimate clients see: steps and noise to the spread of their
answers, caps to their longest token, budgets to the number of parameters. A defence is a set of
measures; combinations need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from unsoftmax import oracles
from unsoftmax.protocol import Oracle

_Part: TypeAlias = tuple[str, str, Callable[[Oracle, int], Oracle]]


@dataclass(frozen=True, slots=True)
class Measures:
    """What a service does to questions and answers; a client may know all of it."""

    clip: tuple[float, float] | None = None
    """Answers below and above are moved to these."""
    noise: float = 0.0
    """Standard deviation of what is added to every answer, afresh."""
    decimals: int | None = None
    """Places that answers are rounded to."""
    labels: bool = False
    """Only whether an answer is positive is told."""
    radius: float | None = None
    """Sequences with a longer token are refused."""
    queries: int | None = None
    """A client is answered so many."""

    @property
    def step(self) -> float:
        """Distance of two rounded answers; 0 where they are not rounded."""
        return 0.0 if self.decimals is None else 10.0**-self.decimals

    def _parts(self) -> Iterator[_Part]:
        """Yield each measure for a table, as what an owner would do, and as a wrapper."""
        if (clip := self.clip) is not None:
            span = "{:.3g} … {:.3g}".format(*clip)
            said = f"clip {span}", f"clip answers to {span}"
            yield *said, lambda oracle, seed: oracles.clipped(oracle, *clip)
        if noise := self.noise:
            said = f"noise {noise:.2g}", f"add noise of {noise:.2g} to answers"
            yield *said, lambda oracle, seed: oracles.noisy(oracle, noise, seed)
        if (decimals := self.decimals) is not None:
            said = f"round to {self.step:g}", f"round answers to multiples of {self.step:g}"
            yield *said, lambda oracle, seed: oracles.rounded(oracle, decimals)
        if self.labels:
            said = "labels only", "tell only whether an answer is positive"
            yield *said, lambda oracle, seed: oracles.labels(oracle)
        if (radius := self.radius) is not None:
            said = f"tokens ≤ {radius:.3g}", f"refuse tokens longer than {radius:.3g}"
            yield *said, lambda oracle, seed: oracles.norm_capped(oracle, radius)
        if self.queries is not None:  # a budget is kept by whoever counts
            said = f"{self.queries:,} queries", f"answer {self.queries:,} queries per client"
            yield *said, lambda oracle, seed: oracle

    def around(self, oracle: Oracle, seed: int) -> Oracle:
        """Wrap an oracle."""
        for _, _, wrapped in self._parts():
            oracle = wrapped(oracle, seed)
        return oracle

    @property
    def brief(self) -> str:
        """Say it in as few words as a table has room for."""
        return ", ".join(brief for brief, _, _ in self._parts()) or "nothing"

    def __str__(self) -> str:
        """Say it as what an owner would do."""
        return " and ".join(words for _, words, _ in self._parts()) or "do nothing"


@dataclass(frozen=True, slots=True)
class Defence:
    """One defence at one strength."""

    kind: str
    """What the ladder is called that it belongs to."""
    strength: float
    """In the unit of its kind; see `UNITS`."""
    measures: Measures
    beside: str = ""
    """The other measure of a combination, which its strengths share."""


UNITS = {
    "nothing": "",
    "rounding": "step, in spreads of the answers",
    "noise": "deviation, in spreads of the answers",
    "clipping": "range either side, in spreads of the answers",
    "norm cap": "cap, in longest legitimate tokens",
    "labels only": "",
    "query budget": "queries per parameter",
    "rounding with a norm cap": "step, in spreads of the answers",
    "noise with a norm cap": "deviation, in spreads of the answers",
}
"""What the strength of a kind is measured in; a kind of two measures names its first."""


@dataclass(frozen=True, slots=True)
class LadderTuning:
    """The strengths that are tried, weakest first."""

    decimals: tuple[int, ...] = (6, 4, 2, 1, 0)
    """Places beyond the power of ten below the spread."""
    noise: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 0.1, 0.3, 1.0)
    """In spreads."""
    clip: tuple[float, ...] = (4.0, 2.0, 1.0, 0.3)
    """Spreads either side of the mean answer."""
    cap: tuple[float, ...] = (4.0, 1.0, 0.8, 0.6)
    """In longest legitimate tokens."""
    budget: tuple[float, ...] = (0.25, 0.5, 0.9, 1.5)
    """Queries per parameter; learners ask a little more than one."""
    capped_decimals: tuple[int, ...] = (4, 2, 1, 0, -1)
    """Places of rounding with a norm cap, as ``decimals``."""
    capped_noise: tuple[float, ...] = (1e-2, 0.1, 0.2, 0.3, 0.5, 1.0)
    """Deviations of noise with a norm cap, in spreads."""
    both_caps: tuple[float, ...] = (4.0, 1.0)
    """The caps that rounding and noise are tried with."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What strengths are relative to."""

    mean: float
    spread: float
    """Mean and standard deviation of undefended answers to legitimate sequences."""
    longest: float
    """Norm of their longest token."""
    parameters: int
    """Numbers that the model is made of; of vectors, answers that have as many numbers."""
    numbers: bool = True
    """Whether answers are numbers, of which labels can be told."""


def ladder(scale: Scale, tuning: LadderTuning) -> Iterator[Defence]:
    """Yield every defence at every strength, those of a kind together."""
    caps = [Measures(radius=times * scale.longest) for times in tuning.both_caps]
    yield Defence("nothing", 0.0, Measures())
    yield from _rounding("rounding", scale, tuning.decimals, Measures())
    yield from _noise("noise", scale, tuning.noise, Measures())
    for times in tuning.clip:
        half = times * scale.spread
        clip = scale.mean - half, scale.mean + half
        yield Defence("clipping", times, Measures(clip=clip))
    for times in tuning.cap:
        yield Defence("norm cap", times, Measures(radius=times * scale.longest))
    if scale.numbers:
        yield Defence("labels only", 1.0, Measures(labels=True))
    for share in tuning.budget:
        queries = int(np.ceil(share * scale.parameters))
        yield Defence("query budget", share, Measures(queries=queries))
    for cap in caps:
        yield from _rounding("rounding with a norm cap", scale, tuning.capped_decimals, cap)
    for cap in caps:
        yield from _noise("noise with a norm cap", scale, tuning.capped_noise, cap)


def _rounding(kind: str, scale: Scale, places: tuple[int, ...], cap: Measures) -> Iterator[Defence]:
    for beyond in places:
        measures = replace(cap, decimals=beyond - int(np.floor(np.log10(scale.spread))))
        yield Defence(kind, measures.step / scale.spread, measures, _beside(cap))


def _noise(kind: str, scale: Scale, shares: tuple[float, ...], cap: Measures) -> Iterator[Defence]:
    for share in shares:
        yield Defence(kind, share, replace(cap, noise=share * scale.spread), _beside(cap))


def _beside(cap: Measures) -> str:
    return "" if cap.radius is None else f"tokens up to {cap.radius:.3g}"

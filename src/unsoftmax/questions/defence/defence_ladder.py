"""The defences that are tried: how a service answers, from the wrappers of `oracles.defences`.

Strengths are relative to what legitimate clients see: steps and noise to the spread of their
answers, caps to their longest token, budgets to the number of parameters. A defence is a set of
measures; combinations need no code of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from unsoftmax import oracles
from unsoftmax.protocol import Oracle


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

    def around(self, oracle: Oracle, seed: int) -> Oracle:
        """Wrap an oracle; a budget is kept by whoever counts."""
        if self.clip is not None:
            oracle = oracles.clipped(oracle, *self.clip)
        if self.noise:
            oracle = oracles.noisy(oracle, self.noise, seed)
        if self.decimals is not None:
            oracle = oracles.rounded(oracle, self.decimals)
        if self.labels:
            oracle = oracles.labels(oracle)
        if self.radius is not None:
            oracle = oracles.norm_capped(oracle, self.radius)
        return oracle

    @property
    def step(self) -> float:
        """Distance of two rounded answers; 0 where they are not rounded."""
        return 0.0 if self.decimals is None else 10.0**-self.decimals

    @property
    def brief(self) -> str:
        """Say it in as few words as a table has room for."""
        words = []
        if self.clip is not None:
            words.append("clip {:.3g} … {:.3g}".format(*self.clip))
        if self.noise:
            words.append(f"noise {self.noise:.2g}")
        if self.decimals is not None:
            words.append(f"round to {self.step:g}")
        if self.labels:
            words.append("labels only")
        if self.radius is not None:
            words.append(f"tokens ≤ {self.radius:.3g}")
        if self.queries is not None:
            words.append(f"{self.queries:,} queries")
        return ", ".join(words) or "nothing"

    def __str__(self) -> str:
        """Say it as what an owner would do."""
        words = []
        if self.clip is not None:
            words.append("clip answers to {:.3g} … {:.3g}".format(*self.clip))
        if self.noise:
            words.append(f"add noise of {self.noise:.2g} to answers")
        if self.decimals is not None:
            words.append(f"round answers to multiples of {self.step:g}")
        if self.labels:
            words.append("tell only whether an answer is positive")
        if self.radius is not None:
            words.append(f"refuse tokens longer than {self.radius:.3g}")
        if self.queries is not None:
            words.append(f"answer {self.queries:,} queries per client")
        return " and ".join(words) or "do nothing"


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

    def places(self, beyond: int) -> int:
        """Return decimals whose step is 10^-beyond of the power of ten below the spread."""
        return beyond - int(np.floor(np.log10(self.spread)))


def ladder(scale: Scale, tuning: LadderTuning) -> Iterator[Defence]:
    """Yield every defence at every strength, those of a kind together."""
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
    for times in tuning.both_caps:
        cap = Measures(radius=times * scale.longest)
        yield from _rounding("rounding with a norm cap", scale, tuning.capped_decimals, cap)
    for times in tuning.both_caps:
        cap = Measures(radius=times * scale.longest)
        yield from _noise("noise with a norm cap", scale, tuning.capped_noise, cap)


def _rounding(
    kind: str, scale: Scale, places: tuple[int, ...], capped: Measures
) -> Iterator[Defence]:
    for beyond in places:
        measures = replace(capped, decimals=scale.places(beyond))
        yield Defence(kind, measures.step / scale.spread, measures, _cap(capped))


def _noise(
    kind: str, scale: Scale, shares: tuple[float, ...], capped: Measures
) -> Iterator[Defence]:
    for share in shares:
        measures = replace(capped, noise=share * scale.spread)
        yield Defence(kind, share, measures, _cap(capped))


def _cap(measures: Measures) -> str:
    return "" if measures.radius is None else f"tokens up to {measures.radius:.3g}"

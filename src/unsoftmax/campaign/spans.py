"""Spans of probes: what one call of the oracle carries, and how many sequences that are."""

from __future__ import annotations

from dataclasses import dataclass

from unsoftmax.probes import Probes


@dataclass(slots=True)  # two are made for every call, and a frozen one takes twice the time
class Span:
    """Some probes of one part of a round: ``start`` to ``stop``, the latter not included."""

    part: int
    start: int
    stop: int
    probes: Probes

    def __len__(self) -> int:
        return self.stop - self.start

    def first(self, count: int) -> Span:
        """Return its first probes."""
        return Span(self.part, self.start, self.start + count, self.probes)

    def rest(self, count: int) -> Span:
        """Return all but its first probes."""
        return Span(self.part, self.start + count, self.stop, self.probes)

    def within(self, start: int, stop: int) -> Span:
        """Return the probes from ``start`` to ``stop``, counted from its own first."""
        return Span(self.part, self.start + start, self.start + stop, self.probes)

    def __str__(self) -> str:
        shape, phase = f"({self.probes.tokens}, {self.probes.dim})", f"“{self.probes.phase}”"
        if len(self) == 1:
            return f"1 sequence of shape {shape}, number {self.start} of {phase}"
        return f"{len(self)} sequences of shape {shape}, {self.start}–{self.stop - 1} of {phase}"


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How many sequences a call carries."""

    given: int | None = None
    """What the caller asks for. None: as many as the limits below allow."""
    numbers: int = 2**21
    """Most numbers in the questions of a call, or in its answers: 16 MiB. It keeps d = 1024 far
    below 400 MB with everything that an oracle makes of a batch."""
    workers: int = 1
    """Calls at the same time."""
    most: int = 2048
    """Most sequences in all of these: what is in flight is paid again after kill −9."""
    assumed_width: int = 2**16
    """Numbers per answer while none has arrived, for learners of vectors: 32 sequences per call.
    Larger: smaller first calls. Smaller: the first vectors, if long, take more than 16 MiB."""

    def of(self, probes: Probes, width: int | None) -> int:
        """Return how many probes are asked at once; ``width``: numbers per answer, if known."""
        if self.given is not None:
            return self.given
        numbers = max(probes.tokens * probes.dim, width or self.assumed_width)
        return max(1, min(self.numbers // numbers, self.most // self.workers))


def gaps(part: int, probes: Probes, known: list[tuple[int, int]]) -> list[Span]:
    """Return the probes that are not in ``known``: (start, stop) of what is, in order."""
    found, at = [], 0
    for start, stop in [*known, (len(probes), len(probes))]:
        if at < start:
            found.append(Span(part, at, start, probes))
        at = stop
    return found

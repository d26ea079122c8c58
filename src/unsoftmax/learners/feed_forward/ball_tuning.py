"""Knobs of the search for neurons in a ball."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BallTuning:
    """How neurons are searched for where tokens have a longest length: after a norm."""

    looks: int = 8
    """Tokens that tell how large answers are."""
    coarse: float = 1e-12
    """Answers with larger relative errors are refused: what is known is taken off, and what is left
    of it must be small beside neurons that are not known."""
    off: float = 0.1
    """How far the point of all chords is from the middle, in radii: hyperplanes of a layer without
    biases meet there."""
    end: float = 0.96
    """Where the outermost places of a chord are, in halves of it, and the longest tokens of the
    search, in radii: pairs and steps take what is left."""
    outer: int = 5
    """Steps are taken in the widest of so many outermost pieces; kinks beyond it are left."""
    few: float = 0.45
    """A chord that shows fewer new neurons than this, in dimensions, is not read: a reading costs
    two queries per dimension, and hidden neurons are read several chords' together."""
    hidden: float = 0.8
    """Hidden neurons are no more than this, in numbers of an answer, which must tell all."""
    start: int = 4
    exact: float = 1e-8
    tight: float = 0.1
    """Of answers less what is known: places that are asked first; pieces may meet where they are
    known to this share of a value; pairs straddle a kink that meet their neighbours this close to
    their ends. Errors of what is known are larger than those of answers, and kinks fewer."""
    share: float = 0.95
    ends: float = 0.5
    """And the kinks between two places of a chord, in dimensions, and the outermost steps: what is
    read is solved once more from tokens far apart."""
    stated: float = 0.15
    """What is known is off by this share of what its errors say; a tenth to a fortieth was seen.
    More: kinks are taken for errors; less: errors for kinks."""
    beside: float = 0.2
    close: float = 1e-3
    closer: int = 2
    nearer: float = 1 / 8
    """Columns of hidden neurons are read by steps of this share of the way to the next kink, or
    this of half the chord; with shorter steps, so often, where a hidden neuron bends there."""
    straight: float = 10.0
    parallel: float = 1e-6
    """Answers beside a kink are on a line within so many errors, and this share of the bend."""
    one: float = 1e-4
    most_one: float = 0.1
    """Neighbouring kinks are one, straddled by a pair, if their columns differ by no more than
    this, or by their errors, up to the other."""
    rooms: tuple[float, ...] = (0.12, 0.05, 0.02, 0.01)
    """Shares of the way to the next known hyperplane over which each is crossed, until two readings
    agree: in between there may be others that are not known yet."""
    agreed: float = 0.1
    """Columns agree within their errors if these are no more than this."""
    quiet: int = 80
    quiet_share: float = 0.12
    """The search ends when so many tokens, and this share of the neurons, show no other one."""
    batch: int = 8
    """So many of them are asked at a time."""
    idle: int = 6
    """Chords in a row that show nothing new where a token did, before the search is given up."""
    around: float = 0.93
    """Length of a token that others are asked around, in radii."""
    rows: int = 4
    """Rounds of questions for each hidden neuron, at most."""
    weak: float = 10.0
    strengthened: int = 6
    """Neurons whose rows are off by so many times what is usual are asked for again, so often."""

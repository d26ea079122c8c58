"""The knobs of recovering a layer with positions, in the order of the search."""

from __future__ import annotations

from dataclasses import dataclass, field

from unsoftmax.learners.single_head.distances import RotaryTuning


@dataclass(frozen=True, slots=True)
class BiasedLayerTuning:
    """Knobs of a layer whose keys and queries have biases."""

    gate_off: float = 1e-9
    """Gates nearer to 0 or 1 than this are saturated for pilots: key and query bias alone make
    logits, which no length of tokens takes away."""
    pilot_tokens: int = 12
    """Random query tokens in whose span those that open one gate lie, each beside an offset of
    both signs: fewer than without biases, for they cost twice as much."""
    key_share: float = 0.75
    """Keys of a query of the first part, as a share of those that it could have at most. More:
    fewer queries, by a tenth, and weights that are read ten times worse."""
    token_share: float = 1.0
    """Query tokens are so much shorter than keys. With less the query bias hides Q b."""
    pilots: int = 3
    """Query tokens that lengths are found with."""
    spread: float = 1.2
    """Standard deviation of the scores of one query's keys, of the head where it is largest. With
    half of it the signal fades and a few layers are read ten times worse; with twice as much some
    weights are so small that their errors show."""
    much: float = 1.5
    """So many times that may be the biases' own: keys so many times shorter tell, ..."""
    changed: float = 4.0
    """... as they do where scores are hardly apart."""
    alone: float = 1.3
    """Biases that alone make scores differ by more decide the weights."""
    bases: int = 3
    """Tokens around which others are asked, each found from answers around the one before."""
    rough: float = 1e-6
    """Planes that turn less in one token are left out of that one, ..."""
    shown: float = 0.03
    """... and directions of which keys show less than this share."""
    sets: int = 2
    """Sets of key blocks for further query tokens, which each of them takes the best of ..."""
    scales: tuple[float, ...] = (1.0, -1.0, 0.5, -0.5)
    """... at one of these lengths: one system in a hundred is nearly singular by chance."""


@dataclass(frozen=True, slots=True)
class TurnedLayerTuning:
    """Knobs of a layer with rotary positions beside those of layers without."""

    head_queries: int = 16
    """Query tokens of the first round that looks for heads: for 9 heads and a residual
    connection, and 6 that test their columns; more heads get as many again."""
    pilot_tokens: int = 20
    """Random query tokens in whose span those that open one gate lie. Fewer: smaller margins, and
    with 16 one layer of 24 flips so many gates that it takes a fifth more queries."""
    deviations: float = 7.0
    """How many typical logits an offset may differ by, where answers are exact. Of shared values
    just as many offsets are asked as ranks there are: one gate that flips and shows in no other
    vector doubles them. With 5 one layer of 100 took a fifth more queries, with 6.7 none."""
    shared: float = 1e-4
    """Heads whose values have the same row space but for this angle share them, ..."""
    shared_noise: float = 1e6
    """... or for so many times the noise: behind float32 row spaces are off by 0.02 to 0.05, and
    random ones are at right angles."""
    spare_tokens: int = 1
    """First query tokens beyond those that the rank of a group needs. Fewer: the rank is not
    seen; each costs two queries a block."""
    scored: float = 30.0
    """Spare singular values of so many times what may be noise are scores: values have a lower
    rank than keys and queries, and more query tokens are asked."""
    beside_spare: float = 8.0
    """Where answers are coarse singular values above so many times the largest spare one count:
    drawn errors make noise of a trained layer's scores twenty times as large as it is."""
    slow: float = 4.0
    """Where answers are coarse planes that turn, in m tokens, by no more than so many times what
    drawn errors move planes as slow by are taken not to turn. Measured by the worst plane, half of
    the planes of a trained layer would stand still: scores off by a tenth."""
    left_span: float = 0.05
    """Scores farther away may leave the span of those nearer by for this share: errors of float32
    answers make it a hundredth, queries of a lower rank than their planes a tenth and more."""
    longest: int = 65
    """Most tokens between keys and query token. Slow planes are read so many times better; more
    make queries longer, and fast planes go round more often than the first step tells."""
    longest_coarse: int = 257
    """The same where answers are coarser than those of float64: slow planes are the first that
    their errors hide."""
    alike: float = 1e-8
    """Planes whose angles differ by no more at one token are taken to turn alike, which does no
    harm: they need not be apart."""
    nearly: float = 0.9
    """The shortest shift that keeps planes so much apart as the best one is taken."""
    positions: RotaryTuning = field(default=RotaryTuning())
    """Of frequencies, and of the certificate."""
    unread: float = 1e3
    """Planes whose turning differs from none by so many times the noise turn."""
    biased: BiasedLayerTuning = field(default=BiasedLayerTuning())
    """Of layers with biases."""

"""How many queries each theorem promises, and how many parameters there are to find.

Every query gives one number, so the number of free parameters is the floor. Labels are counted
last: those of Theorem B.1, and of the bisection beyond it.
"""

import math


def single_head(dim: int, *, biases: bool = False) -> int:
    """Count the free parameters of one head, which is also what Theorem 4.1 asks.

    d for v and d² for W; with biases d more for w and one for c.

    Examples
    --------
    >>> single_head(384), single_head(384, biases=True)
    (147840, 148225)
    """
    return (dim + 1) ** 2 if biases else dim * dim + dim


def samples_for(eps: float, delta: float) -> int:
    """Count the samples whose largest miss bounds all but a share ε, with confidence 1 − δ.

    n ≥ ln(1/δ)/ε, for (1 − ε)^n ≤ e^{−εn} ≤ δ (question (ii) of section 7.1).

    Examples
    --------
    >>> samples_for(0.05, 0.01), samples_for(0.001, 1e-6)
    (93, 13816)
    """
    return math.ceil(math.log(1 / delta) / eps)


def low_rank_head(dim: int, rank: int, *, biases: bool = False) -> int:
    """Count the free parameters of a head whose W, or [W w] with biases, has rank r.

    d for v and r(2d − r) for W; with biases r(2d + 1 − r) for [W w] and one for c.

    Examples
    --------
    >>> low_rank_head(384, 32), low_rank_head(384, 32, biases=True)
    (23936, 23969)
    """
    return dim + biases + rank * (2 * dim + biases - rank)


def token_head(vocabulary: int, rank: int) -> int:
    """Count the free parameters of a head behind a vocabulary whose table is unknown.

    V values; column j of the logits is (ρ_i − ρ_j)·x_j: r(2V − 1 − r) beside them.

    Examples
    --------
    >>> token_head(1000, 8), token_head(30522, 32)
    (16928, 1982874)
    """
    return vocabulary + rank * (2 * vocabulary - 1 - rank)


def _block_queries(rank: int) -> int:
    """Count about what a block of logits takes that shows a rank: it grows in steps."""
    size = round(1.2 * (rank + 3))
    return size * (size + 1)


def token_head_queries(vocabulary: int, rank: int) -> int:
    """Count about what a head takes behind a vocabulary of V ids whose table is unknown.

    V + 16 lone ids, a block, r + 1 columns of all ids, and all others at r + 1 anchors.

    Examples
    --------
    >>> token_head_queries(200, 4), token_head_queries(1000, 8)
    (2263, 19117)
    """
    pairs = (rank + 1) * (2 * vocabulary - rank - 1)
    return min(vocabulary + 16 + _block_queries(rank) + pairs, vocabulary**2)


def table_head_queries(dimension: int, rank: int) -> int:
    """Count about what a head takes behind a known table of D dimensions.

    D + 17 lone ids, a block, r + 1 columns of 1.1 D + 4 keys, and D − r others at r + 3.

    Examples
    --------
    >>> table_head_queries(383, 32)
    28516
    """
    pilots = (rank + 1) * round(1.1 * dimension + 4)
    others = (dimension - rank) * (rank + 3)
    return dimension + 17 + _block_queries(rank) + pilots + others


def table_layer_queries(dimension: int, heads: int, rank: int) -> int:
    """Count about what a layer of heads of that rank takes behind a table of D dimensions.

    D + 17 lone ids, and counts of r + 8 others beside one, 5H/3 + 6 each; keys, 3r/4 at a time,
    beside r + 4 query tokens and then beside D + 21 − r others, twice.

    Examples
    --------
    >>> table_layer_queries(383, 12, 32), table_layer_queries(16, 2, 8)
    (2770, 288)
    """
    counted = (rank + 8) * (5 * heads / 3 + 6)
    scores = 4 * (dimension + 8) * (rank + 4) / (3 * rank) + 2 * (dimension + 21 - rank)
    return round(dimension + 17 + counted + scores)


def table_head(dimension: int, rank: int) -> int:
    """Count what ids of a known table determine of a head behind it.

    Where the table spans D dimensions D + 1 values, and [A a], (D, D + 1) of rank r, of the scores.

    Examples
    --------
    >>> table_head(383, 32)
    23904
    """
    return dimension + 1 + rank * (2 * dimension + 1 - rank)


def rotary_head(dim: int, rank: int, *, biases: bool = False, still: int = 0) -> int:
    """Count the free parameters of a head with rotary positions, its frequencies apart.

    d for v, and 2dt − t for the t = r − z rows of K and Q whose planes turn, which are free up to
    one complex number per plane; z(2d − z) for the z rows whose planes do not. With biases
    2(d + 1)t − t and z(2d + 1 − z), and one for c. A head of which the frequencies are not known
    has t/2 more.

    Examples
    --------
    >>> rotary_head(8, 8), rotary_head(64, 16), rotary_head(64, 16, biases=True)
    (128, 2096, 2129)
    """
    turning, width = rank - still, dim + biases
    return dim + biases + turning * (2 * width - 1) + still * (dim + width - still)


def rotary_head_queries(dim: int, rank: int, *, biases: bool = False) -> int:
    """Count what a head with rotary positions is asked: d + 2dr; 1 + d + 2dr + 3r with biases.

    Examples
    --------
    >>> rotary_head_queries(64, 16), rotary_head_queries(64, 16, biases=True)
    (2112, 2161)
    """
    return dim + 2 * dim * rank + biases * (1 + 3 * rank)


def rotary_heads_queries(dim: int, heads: int, rank: int, *, biases: bool = False) -> int:
    """Count what several heads with rotary positions take, typically: measured, no theorem.

    H(2dr + 2d + 16) + d + 40; 3r more for each head with biases.

    Examples
    --------
    >>> rotary_heads_queries(16, 4, 4), rotary_heads_queries(16, 4, 4, biases=True)
    (760, 808)
    """
    return heads * (2 * dim * rank + 3 * rank * biases + 2 * dim + 16) + dim + 40


def rotary_layer(
    dim: int,
    heads: int,
    groups: int,
    rank: int,
    *,
    biases: bool = False,
    outputs: int | None = None,
) -> int:
    """Count the free parameters of a layer with rotary positions, its frequencies apart.

    m for c; H m r + G r(d − r) for O and V, which are free up to an invertible matrix per group;
    r(Gd + Hd − G) for K and Q, one complex number per plane and group. With biases r(G + H) more.
    All planes turn, and keys, queries and values have r rows.

    Examples
    --------
    >>> rotary_layer(64, 4, 2, 16), rotary_layer(576, 9, 3, 64)
    (11808, 872832)
    """
    m, width = dim if outputs is None else outputs, dim + biases
    values = heads * m * rank + groups * rank * (dim - rank)
    return m + values + rank * ((groups + heads) * width - groups)


def rotary_layer_queries(
    dim: int, heads: int, groups: int, rank: int, *, biases: bool = False
) -> int:
    """Count what a layer with rotary positions takes, typically: measured, no theorem.

    d + 5 for single tokens, 16 for the number of heads, 27 for query tokens that open one gate,
    (H − 1)r for the values, twice T = ⌈rG/H⌉ + 1 query tokens beside ⌈d/r⌉ blocks of keys, T beside
    one, every other query token once, and 13 that test and pilot.

    With biases 16 more that show them and 3 more for query tokens that open one gate; blocks of
    n = ⌊3r/4⌋ keys, ⌈(d + 2)/n⌉ of them, T beside ⌈(r + 1)/n⌉, and one query token more.

    Examples
    --------
    >>> rotary_layer_queries(64, 4, 2, 16), rotary_layer_queries(576, 9, 3, 64)
    (309, 2139)
    >>> rotary_layer_queries(64, 4, 2, 16, biases=True)
    374
    """
    tokens = min(-(-rank * groups // heads) + 1, dim)
    if biases:
        keys = max(1, 3 * rank // 4)
        blocks = 2 * -(-(dim + 2) // keys) - (-(rank + 1) // keys) - 1
        return 2 * dim + 81 + (heads - 1) * rank + tokens * blocks
    return 2 * dim + 61 + (heads - 1) * rank + 2 * tokens * -(-dim // rank)


def multi_head(dim: int, heads: int, rank: int | None = None, *, biases: bool = False) -> int:
    """Count the free parameters of several heads: those of each, and one c with biases.

    Examples
    --------
    >>> multi_head(32, 8), multi_head(384, 12, 32, biases=True)
    (8448, 287617)
    """
    r = dim if rank is None else rank
    width = dim + biases
    return heads * (r * (dim + width - r) + dim) + biases


def rotary_heads(
    dim: int, heads: int, rank: int, *, told: bool = False, biases: bool = False
) -> int:
    """Count the free parameters of several heads with rotary positions.

    Those of each, and r/2 frequencies each where these are not told; with biases one c for all.

    Examples
    --------
    >>> rotary_heads(16, 4, 16), rotary_heads(16, 4, 4), rotary_heads(16, 4, 4, told=True)
    (2080, 568, 560)
    >>> rotary_heads(16, 4, 16, biases=True), rotary_heads(16, 4, 4, biases=True)
    (2209, 601)
    """
    each = rotary_head(dim, rank, biases=biases) + (0 if told else rank // 2)
    return heads * each - (heads - 1) * biases


def of_rank(dim: int, rank: int) -> int:
    """Count the free parameters of a d×d matrix of rank r: r(2d − r).

    Examples
    --------
    >>> of_rank(384, 32), of_rank(8, 8)
    (23552, 64)
    """
    return rank * (2 * dim - rank)


def sensing(dim: int, rank: int) -> int:
    """Count the Gaussian measurements that find a W of rank r by its nuclear norm in practice.

    3·r(2d − r) + 4d, d² at most: with d² no choice is left. Theorem 5.1 says O(rd). The 4d are
    for low ranks: at r = 1 every second W of d = 32 is lost with 3 measurements per parameter,
    one in 100 with 4, none with 4.5; at r = 2, 3 none with 3 (benchmarks/sensing.py).

    Examples
    --------
    >>> sensing(32, 2), sensing(384, 32), sensing(8, 3)
    (500, 72192, 64)
    """
    return min(dim * dim, 3 * of_rank(dim, rank) + 4 * dim)


def relu_network(dim: int, neurons: int, biases: bool = True) -> int:
    """Count the free parameters of a ReLU network of one hidden layer.

    A, b, w_o and c are m(d + 2) + 1 numbers; without biases A and w_o are m(d + 1). That a positive
    factor may move between a neuron's input and output weights is not taken off.

    Examples
    --------
    >>> relu_network(784, 128), relu_network(16, 16, biases=False)
    (100609, 272)
    """
    return neurons * (dim + 2) + 1 if biases else neurons * (dim + 1)


def relu_network_queries(dim: int, neurons: int, biases: bool = True, polish: bool = False) -> int:
    """Count what a ReLU network of one hidden layer takes, typically: measured, no theorem.

    m·d for the gradients, 6m (5m without biases) for the kinks, whose search tells cells' lines,
    and two tokens beside every hyperplane, 300 (230) for the opening and fresh points, m²d/4000 for
    cells that are too thin; m(d + 1) to polish every cell. Of 400 networks from (d, m) = (4, 9) to
    (32, 128) and of four kinds, medians of 20 were 4 % less to 3 % more.

    Examples
    --------
    >>> relu_network_queries(128, 512), relu_network_queries(128, 512, biases=False)
    (77296, 76714)
    """
    m, thin = neurons, dim * neurons**2 // 4000
    every = m * (dim + 1) if polish else 0
    return m * dim + (6 * m + 300 if biases else 5 * m + 230) + thin + every


def multi_head_transformer(
    dim: int,
    heads: int,
    neurons: int,
    rank: int | None = None,
    *,
    inputs: int | None = None,
    value_rank: int | None = None,
    biases: bool = True,
    residual: bool = False,
) -> int:
    """Count the free parameters of several heads before a ReLU network: the floor of queries.

    H·d² for the W_h, or r(2d − r) each at rank r, and m·H·d for the B_h, of which w_o is a part:
    a positive factor moves between a neuron's rows and its output weight. Where all B_h are A V_h
    of a network of k ``inputs``, their columns span k of m dimensions: k(m − k) for these and, with
    V_h of rank s, s(k + d − s) for each B_h in it. With biases d more for every w_h, of rank r as
    part of [W_h w_h], m for b and one for c. With a residual m·d more, k·d in k dimensions.

    Examples
    --------
    >>> multi_head_transformer(8, 6, 32), multi_head_transformer(8, 6, 32, biases=False)
    (2001, 1920)
    >>> multi_head_transformer(8, 6, 32, inputs=8)
    1041
    >>> multi_head_transformer(64, 8, 256, 8, inputs=64, value_rank=8)
    27969
    >>> multi_head_transformer(8, 6, 32, residual=True)
    2257
    """
    r, most = (dim if given is None else given for given in (rank, value_rank))
    last = dim * residual
    k = min(neurons, heads * most + last, heads * dim + last if inputs is None else inputs)
    s = min(most, k)
    of_scores = heads * r * (2 * dim + biases - r)
    of_values = k * (neurons - k) + heads * s * (k + dim - s) + k * last
    return of_scores + of_values + biases * (neurons + 1)


def multi_head_transformer_queries(
    dim: int, heads: int, neurons: int, *, residual: bool = False
) -> int:
    """Count what several heads before a ReLU network take, typically: measured, no theorem.

    The network's own less 40 fresh tokens, H(d² + 3d) + 5H + 2d + 20 for all heads in the first
    cell, and (H − 1)d + 2 in each of m others. With a residual d more in each, and 2d.

    Examples
    --------
    >>> multi_head_transformer_queries(8, 6, 32), multi_head_transformer_queries(32, 8, 64)
    (2648, 26272)
    """
    first = heads * (dim * dim + 3 * dim) + 5 * heads + 2 * dim * (1 + residual) + 20
    inputs = heads + residual
    cells = neurons * ((inputs - 1) * dim + 2) if inputs > 1 else 0
    return relu_network_queries(dim, neurons) - 40 + first + cells


def attention_layer_queries(dim: int, heads: int, rank: int) -> int:
    """Count what a layer takes from exact answers, typically: measured, no theorem.

    d + 5 for single tokens, 24 for the number of heads, 34 for query tokens that open one gate,
    (H − 1)(r + 3) for the M_h, (r + 4)⌈d/r⌉ and one for each other query token for [W_h w_h], and
    13 that test and pilot. What no algorithm stays below is `information.least_queries`.

    Examples
    --------
    >>> attention_layer_queries(384, 12, 32)
    1626
    """
    tokens = min(rank + 4, dim + 1)
    keys = tokens * -(-dim // rank) + dim + 1 - tokens
    return dim + 5 + 24 + 34 + (heads - 1) * min(rank + 3, dim) + keys + 13


def normalised_layer_queries(dim: int, heads: int, rank: int) -> int:
    """Count what a layer behind a LayerNorm takes from exact answers, typically: measured.

    d + 7 for single tokens, 8 + 2H for the number of heads, 3 + 4H for query tokens that open one
    gate, 2 for lengths, H(⌈rank M / H⌉ + 3) for the M_h, (r + 2)⌈d/n⌉ and one for each other
    query token for [W_h w_h], with n keys, those that single queries leave open, and 3 for eps.

    Examples
    --------
    >>> normalised_layer_queries(384, 12, 32), normalised_layer_queries(64, 4, 16)
    (1744, 332)
    """
    spanned = min(heads * rank, dim - 1)
    offsets = heads * min(-(-(spanned + 1) // heads) + 2, dim)
    dependent = int(heads * rank >= dim)
    keys = min((dim - 2 - (heads - 1) * dependent) // heads, rank - dependent)
    later = min((dim - 2) // heads, rank)
    tokens = min(rank + 2, dim + 1)
    rest = dim + 1 - tokens
    lacking = (rank - later) * rest
    extras = max(4, -(-lacking // 4)) if lacking else 0
    grid = (-(-rank // max(1, later)) - 1) * rest
    columns = tokens * -(-dim // max(1, keys)) + rest + (grid if grid <= 2 * extras else extras)
    gates = min(24, 8 + 2 * heads) + 3 + min(32, dim, 4 * heads)
    return dim + 7 + gates + 2 + offsets + columns + 3


def prenorm_layer_queries(dim: int, heads: int, rank: int) -> int:
    """Count what a layer after a LayerNorm takes from exact answers, typically: measured.

    25 for the norm, d + 4 for single tokens, 40 for the number of heads, and beside each of
    ⌈rank M / H⌉ + 3 offsets H + min(6, H) + 4 for the M_h; then as for a plain layer of d − 1
    dimensions.

    Examples
    --------
    >>> prenorm_layer_queries(384, 12, 32), prenorm_layer_queries(64, 4, 16)
    (2010, 492)
    """
    inner = dim - 1
    offsets = min(-(-min(heads * rank, inner) // heads) + 3, max(inner - 1, 0))
    tokens = min(rank + 4, inner + 1)
    keys = tokens * -(-inner // rank) + inner + 1 - tokens
    maps = 40 + offsets * (heads + min(6, heads) + 4)
    return 25 + inner + 5 + maps + keys + 7


def block_attention(dim: int, heads: int, rank: int, *, centred: bool = True) -> int:
    """Count the free parameters of attention after a norm that answers of a block determine.

    M_h of d rows and [W_h w_h] of k, k = d − 1 after a LayerNorm and d after an RMSNorm.

    Examples
    --------
    >>> block_attention(16, 2, 8), block_attention(64, 4, 16) // 64
    (736, 222)
    """
    k = dim - centred
    return heads * rank * (dim + k - rank + 2 * k + 1 - rank)


def hidden_coordinates(dim: int) -> int:
    """Return of how many coordinates s the far tokens are that show the heads of a block.

    Logits are affine in s − 1 of them: fewer leave heads less apart, more hide more of answers.
    """
    return min(3 + (dim >= 24) + (dim >= 100), max(2, (dim - 1) // 2))


def block_attention_queries(dim: int, heads: int, rank: int) -> int:
    """Count what the attention of a block takes after a LayerNorm, typically: measured, no theorem.

    7 for the norm, two for each far token of the first offset, H + s + 3 for each other offset of
    the same far tokens and twice that for s − 1 of others; or, where that is less, 2H + s + 3 for
    3r/2 offsets and s + 4 for each other one. (r + 2)⌈k/n⌉ + (k − r − 1)⌈(r + 1)/n⌉ and a far token
    each for the scores, 13 for eps, 10 that test; k = d − 1.

    Examples
    --------
    >>> [block_attention_queries(*shape) for shape in ((16, 2, 8), (64, 4, 16), (384, 12, 32))]
    [240, 1009, 6262]
    """
    k, s = dim - 1, hidden_coordinates(dim)
    beside, first = heads + s + 3, max(12, 2 * s + 4)
    while first < beside:
        first *= 2
    others, again = (k - 1) * beside, (s - 1) * beside
    showing, few = min(-(-3 * rank // 2), k - 1), s + 3 + max(1, heads + rank - dim + s)
    by_ranges = showing * (heads + beside) + (k - 1 - showing) * few
    if rank <= -(-dim // heads) + 1 and by_ranges < others:
        others, again = by_ranges, (s - 1) * few + max(0, heads + beside - first)
    maps = 2 * first + others + again
    keys = max(1, min(int(0.85 * (dim - s - 1) / heads), rank))
    whole = min(rank + 2, k + 1)
    scores = whole * -(-k // keys) + (k + 1 - whole) * -(-min(rank + 1, k) // keys) + k + 1
    return 7 + maps + scores + 13 + 10


def rotary_block_tokens(dim: int, heads: int) -> int:
    """Count the far tokens beside which a key shows what heads make of it, behind tokens 0.

    Each gives d − s numbers, for H gates of s unknowns and H vectors of d − s. With as many numbers
    as unknowns gates are found that are none of any head.

    Examples
    --------
    >>> rotary_block_tokens(16, 4), rotary_block_tokens(8, 2), rotary_block_tokens(8, 4)
    (6, 4, 7)
    """
    s = hidden_coordinates(dim)
    return heads + max(2, heads * s // (dim - s) + 1)


def rotary_block_attention_queries(dim: int, heads: int, groups: int, rank: int) -> int:
    """Count what the attention of a block takes with rotary positions: measured, no theorem.

    7 for the norm, 13 for eps, 10 that test; tokens 0 beside s(s + 1)/2 far tokens of s coordinates
    and beside d of one; H + 2 or a few more for each key; keys and queries as of a layer, n keys at
    a time; and every far token by itself.

    Examples
    --------
    >>> rotary_block_attention_queries(16, 4, 2, 4), rotary_block_attention_queries(32, 4, 2, 8)
    (252, 458)
    """
    s = hidden_coordinates(dim)
    forms, most = s * (s + 1) // 2, 8
    while most < heads + 2:
        most *= 2
    beside = rotary_block_tokens(dim, heads)
    own = most + (forms - 1) * (heads + 2) + max(forms, beside) - s
    maps = s + (dim - s) * beside
    keys = max(1, min(int(0.85 * (dim - 1) / heads), rank))
    tokens, blocks = min(dim, -(-rank * groups // heads) + 1), -(-dim // keys)
    scores = 2 * tokens * blocks + dim * -(-rank // keys)
    return 30 + own + maps + 2 * dim + scores


def feed_forward(dim: int, neurons: int, outputs: int) -> int:
    """Count the free parameters of a feed-forward layer with vector answers.

    A, b, B and c, but for a positive factor between row of A and column of B of every neuron. An
    answer tells ``outputs`` of them at most.

    Examples
    --------
    >>> feed_forward(128, 512, 128), feed_forward(128, 512, 128) // 128
    (131200, 1025)
    """
    return neurons * (dim + outputs) + outputs


def feed_forward_after_norm_queries(dim: int, neurons: int) -> int:
    """Count what a feed-forward layer after a norm takes, typically: measured, no theorem.

    Parameters
    ----------
    dim, neurons : int
        d and m, with about d numbers per answer.

    Examples
    --------
    >>> feed_forward_after_norm_queries(128, 512), feed_forward_after_norm_queries(64, 256)
    (4678, 2464)
    """
    return int(6.4 * neurons + 9 * dim + 250)


# Questions for each neuron of a layer with a smooth activation, without gates and with them.
SMOOTH_PER_NEURON = {False: 11, True: 25}


def smooth_feed_forward_queries(neurons: int, gated: bool) -> int:
    """Count what a feed-forward layer that is smooth takes, typically: measured, no theorem.

    Examples
    --------
    >>> smooth_feed_forward_queries(64, gated=False), smooth_feed_forward_queries(42, gated=True)
    (704, 1050)
    """
    return math.ceil(SMOOTH_PER_NEURON[gated] * neurons)


def feed_forward_queries(dim: int, neurons: int, outputs: int) -> int:
    """Count what a feed-forward layer takes, typically: measured, no theorem.

    2.15m for the kinks along a line, 2.07m for crossing every hyperplane again, d for each of the
    places between groups of at most 0.85·d_out kinks, both ends included, and 61 at first.

    Examples
    --------
    >>> feed_forward_queries(128, 512, 128), feed_forward_queries(768, 3072, 768)
    (2996, 17639)
    """
    group = max(1, min(int(0.85 * outputs), outputs - 1))
    places = -(-neurons // group) + 1
    return 61 + math.ceil(4.22 * neurons) + places * (dim + 1)


# Entries of v that are compared with each other at once to find the largest. Larger: fewer rounds,
# but group·(group − 1)/2 labels for every group.
GROUP = 8
# Pairs of tokens, at most, that find the scale of W. Fewer: their entries of W may all be far below
# the others, and the scale is wrong for those.
PILOTS = 16
# Scales tried for each pair in each of 3 rounds: 4 a round cut 125 octaves into fifths three times,
# down to one octave. n scales a round cover (n + 1)³ octaves.
SCALES_AT_ONCE = 4
# Bits after which an entry is tested for being out of range, and starts again at a smaller scale.
# More: a wrong scale wastes more labels; fewer: rounding may look out of range.
FIRST_BITS = 4
# How often one entry may start again. More: entries of W as much as 8 times larger each time are
# still found, at up to four labels each.
RESTARTS = 3


def comparisons(dim: int) -> tuple[int, int]:
    """Count the comparisons, and their rounds, that find the largest of ``dim`` numbers.

    In every group of 8 all are compared with all; the largest of each group go on.

    Examples
    --------
    >>> comparisons(1), comparisons(3), comparisons(64)
    ((0, 0), (3, 1), (252, 2))
    """
    asked, rounds, group = 0, 0, GROUP
    while dim > 1:
        full, rest = divmod(dim, group)
        asked += full * group * (group - 1) // 2 + rest * (rest - 1) // 2
        dim, rounds = full + (rest > 0), rounds + 1
    return asked, rounds


def rough_bits(dim: int) -> int:
    """Say how many bits of v's ratios the offsets need: an error of about 2⁻⁷ of ‖v‖ in all."""
    return 6 + math.ceil(math.log2(dim) / 2)


def label_head(dim: int, bits: int) -> int:
    """Count the labels that bisection asks: ``bits`` and two checks for each of d² + d − 1 numbers.

    On top come d signs and 4 tests of them, `comparisons`, and the pilots; entries that start
    again are counted apart (`label_head_again`).

    Examples
    --------
    >>> label_head(64, 50) <= 1.1 * 50 * (64**2 + 64) + 500
    True
    """
    ratios = (dim - 1) * (max(bits, rough_bits(dim)) + 2)
    once = dim + 4 + comparisons(dim)[0] + label_head_pilots(dim)
    return once + ratios + dim**2 * (bits + 2)


def label_head_pilots(dim: int) -> int:
    """Count the labels that find the scale of W: two thresholds for every pair and scale."""
    return 6 * SCALES_AT_ONCE * min(PILOTS, dim**2)


def label_head_again(dim: int) -> int:
    """Count the labels spent on entries that start again, a quarter of all entries at most."""
    return FIRST_BITS * (dim**2 // 4 + PILOTS)


def label_head_rounds(dim: int, bits: int) -> int:
    """Count the rounds of bisection at most, the hold-out included."""
    before = 1 + comparisons(dim)[1] + rough_bits(dim) + 3
    return before + bits + FIRST_BITS * RESTARTS + 1


def mean_projection(dim: int) -> float:
    """Return R = E|x_1| = Γ(d/2)/(√π Γ((d+1)/2)), x uniform on the unit sphere.

    Examples
    --------
    >>> round(mean_projection(1), 4), round(mean_projection(2), 4)
    (1.0, 0.6366)
    """
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def sphere_samples(dim: int, error: float, failure: float) -> int:
    """Count the samples that Theorem B.1 averages for ‖v̂ − v‖_∞ ≤ ``error``.

    By Hoeffding's inequality for d averages of numbers in [−1, 1], with probability
    1 − ``failure``: k = (2/(error²R²)) ln(2d/failure).
    """
    k = 2 / (error * mean_projection(dim)) ** 2 * math.log(2 * dim / failure)
    return math.ceil(k)


def label_head_paper(
    dim: int, error: float, margin: float, norm_bound: float, failure: float
) -> tuple[int, int]:
    """Count Theorem B.1's samples k and its steps of bisection per entry of W.

    k + d²·steps labels give ‖Ŵ − W‖_F ≤ ``error`` for ‖W‖_F ≤ ``norm_bound``, ‖v‖₂ = 1 and
    all |v_i| ≥ ``margin``, with probability 1 − ``failure``.

    Examples
    --------
    >>> k, steps = label_head_paper(64, 1e-6, 1 / 8, 2.0, 0.01)
    >>> f"{k:.1e}", steps
    ('1.3e+28', 40)
    """
    eps_v = label_value_error(dim, error, margin, norm_bound)
    # L = 1/(σ(½)σ(−½)) = 4.2553 (Lemma A.1) and the proof's other constants make 0.0087
    step = 0.0087 * error / dim * margin**1.5
    step /= math.sqrt(2) * norm_bound**1.5 * (1 + 4 * eps_v / margin)
    width = math.sqrt(1 / (2 * norm_bound * margin)) - math.sqrt(margin / (8 * norm_bound))
    return sphere_samples(dim, eps_v, failure), max(1, math.ceil(math.log2(width / step)))


def label_value_error(dim: int, error: float, margin: float, norm_bound: float) -> float:
    """Return ε_v = ε_W μ³/(40 W d), how well Theorem B.1 must know v."""
    return error * margin**3 / (40 * norm_bound * dim)

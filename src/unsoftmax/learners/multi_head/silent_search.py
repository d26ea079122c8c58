"""One search for all heads with offsets at which other heads are silent, for coarse answers.

Rounding inside a float32 service loses what a short offset adds beside a long one, and windows
that saturate many heads are long (`token_search`). What does not depend on short offsets stays:
on which side of its hyperplane a head is.

1. The crossings of half a circle of far offsets, as in `token_search`, and the gradients of the
   cells between: all v_h (`cell_gradients`).
2. Offsets at which all heads but one are silent, their values being 0, tell all u_h, and far ones
   all v_h again, to the answers' precision (`silent_readings`).
3. A few answers at moderate logits check both. Two heads that the half circle showed as one are
   noticed here.
4. Windows of such offsets (`measure.silent_offsets`) give the columns, as in `token_search`.

Fewer heads than dimensions, and independent v_h, as layers have. About 5·H·d queries before the
columns, and half as many more of these than a rank has: coarse answers tell the weakest direction
of a column space badly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unsoftmax.arrangement.jumps import find_jumps
from unsoftmax.learners.compose import Asking
from unsoftmax.learners.multi_head.cell_gradients import CircleCells, read_cell_values
from unsoftmax.learners.multi_head.multi_head_tuning import SilentSearchTuning
from unsoftmax.learners.multi_head.out_of_plane import SearchPlane
from unsoftmax.learners.multi_head.recovered_heads import RecoveredHeads
from unsoftmax.learners.multi_head.reduced_answers import ReducedAnswers
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps
from unsoftmax.learners.multi_head.silent_readings import SilentReadings
from unsoftmax.learners.multi_head.token_search import SoughtHeads, TokenSearch
from unsoftmax.learners.multi_head.window_sweeps import TokenHeads, read_base
from unsoftmax.measure.silent_offsets import SilentFrame, silent_windows
from unsoftmax.measure.windows import WindowedHeads, predicted
from unsoftmax.probes import Array, Pairs


def silently(
    sought: SoughtHeads, reduced: ReducedAnswers, rng: np.random.Generator
) -> Asking[RecoveredHeads]:
    """Go through all steps with one query token, drawn like all offsets by ``rng``.

    Raises
    ------
    Exception
        One of `search_outcomes.ENDINGS`: nothing was found, another query token may do better.
    """
    tuning = sought.tuning.silence
    length = yield from _query_length(reduced, rng, tuning)
    reduced = replace(reduced, lengths=replace(reduced.lengths, length=length))
    plane = SearchPlane.random(reduced.dim, length, rng)
    one = TokenSearch(sought, reduced, plane, 0.0, rng)
    token = yield from _token_heads(one)
    token, s = yield from read_base(token, None, sought.tuning.columns.sweep)
    columns = replace(sought.tuning.columns, ample=tuning.ample, widest=tuning.widest)
    return (yield from one.heads_from(token, s, columns))


def _query_length(
    reduced: ReducedAnswers, rng: np.random.Generator, tuning: SilentSearchTuning
) -> Asking[float]:
    """Choose the norm of query tokens: longer than offsets of the same length need for logits."""
    room = reduced.lengths.room / tuning.share
    sizes = 2.0 ** np.arange(-tuning.octaves, tuning.octaves + 0.5, 0.5)
    sizes = sizes[sizes <= room] if np.any(sizes <= room) else np.array([room])
    x = rng.standard_normal((2, tuning.pilots, reduced.dim))
    a, b = x / np.linalg.norm(x, axis=2, keepdims=True)
    n = np.tile(np.arange(tuning.pilots), len(sizes))
    scales = np.repeat(sizes, tuning.pilots)
    [y] = yield [Pairs(a, b, n, n, scales, scales, phase="scale", purpose="pilot")]
    reduced_y = reduced.of(y, scales[:, None] * a[n], scales[:, None] * b[n])
    level = np.linalg.norm((reduced_y / scales).reshape(len(sizes), -1), axis=1)
    noise = np.array([reduced.error(size, size) for size in sizes.tolist()]) * reduced.scale
    level[level < tuning.shows * noise] = 0.0  # the constant hides what tiny tokens show
    first = int(np.argmax(level >= tuning.opened * np.max(level)))
    return float(min(tuning.longer * sizes[first], room))


def _token_heads(one: TokenSearch) -> Asking[TokenHeads]:
    """Learn all u_h and v_h of one query token; choose windows."""
    sought, reduced, plane, rng = one.sought, one.reduced, one.plane, one.rng
    tuning, far = sought.tuning.silence, reduced.lengths.far(plane.length)
    error = reduced.error(far, plane.length)
    # room for pieces that are none: they are left out
    circle = one.circle(tuning.noises * error, sought.max_heads + tuning.slack)
    jumps = yield from find_jumps(circle, *tuning.start)
    cells = CircleCells.between(jumps, error, tuning.cells)
    if not 0 < len(cells) <= min(sought.max_heads, reduced.dim - tuning.least_rest):
        raise CoincidentJumps
    v = yield from read_cell_values(reduced, plane, cells, tuning.cells)
    readings = SilentReadings(reduced, plane.b, tuning.readings)
    u, v, v_error = yield from readings.read(v, rng)
    yield from _refuse_merged(one, u, v)
    errors = reduced.errors_at(plane.length, v_error, u)
    step = reduced.lengths.step(plane.length)
    windows = silent_windows(u, SilentFrame.of(v, rng), errors, step, tuning.windows)
    seen = WindowedHeads(u, v, windows, errors, sought.tuning.windows)
    return TokenHeads(reduced, plane.b, seen)


def _refuse_merged(one: TokenSearch, u: Array, v: Array) -> Asking[None]:
    """Give up where a few answers at moderate logits are not what these heads give."""
    tuning, d = one.sought.tuning.silence, one.reduced.dim
    a = one.rng.standard_normal((tuning.checks, d))
    sizes = np.resize(np.linalg.norm(u, axis=1), tuning.checks)
    a *= (tuning.check_logit / sizes)[:, None]
    y = yield from one.reduced.ask(a, one.plane.b, "silent check", "check")
    missed, size = np.linalg.norm(y - predicted(v, u, a)), np.linalg.norm(y)
    if not missed <= tuning.agrees * size:
        raise CoincidentJumps

"""The logit grid by hand: `next` and `send`, answers made from a known W, no runner, no oracle.

Answers are computed from M = z·(W b) itself, so that a reading has a truth to be held against.
"""

import contextlib

import numpy as np
import pytest
from scipy.special import expit

import unsoftmax as us
from unsoftmax.measure.binary_grid import on_one_grid
from unsoftmax.measure.logit_grid import LogitGrid, free, measure
from unsoftmax.measure.precision import Precision
from unsoftmax.measure.single_tokens import Values
from unsoftmax.probes import Grid, Pairs, Probes


class Scene:
    """W, w and v, offsets that all see v, and query tokens."""

    def __init__(self, seed=0, d=6, tokens=4, scale=1.0, precision=None, w=None):
        rng = np.random.default_rng(seed)
        self.rng, self.w = rng, np.zeros(d) if w is None else w
        self.W = scale * rng.standard_normal((d, d))
        self.v = np.ones(d)
        self.Z = np.linalg.qr(rng.standard_normal((d, d)))[0]
        self.Z *= np.sign(self.Z @ self.v)[:, None]
        self.B = rng.standard_normal((tokens, d))
        self.precision = precision or Precision()
        self.values = Values(self.v, 0.0, np.zeros(d), 0.0, self.precision)

    @property
    def M(self):
        return (self.B @ self.W.T) @ self.Z.T

    def grid(self, **changes):
        return LogitGrid(self.Z, self.B, self.values, **{"split": free, "phase": "W", **changes})

    def answer(self, probes):
        """Answers of a family of two-token probes, its logits from M."""
        if isinstance(probes, Grid):
            tokens, offsets = probes.queries.shape[0], probes.offsets.shape[0]
            j, i = np.divmod(np.arange(tokens * offsets), offsets)
            alpha, beta = probes.alpha[j], probes.beta[j]
        else:
            assert isinstance(probes, Pairs)
            j, i, alpha, beta = probes.j, probes.i, probes.alpha, probes.beta
        a, b = np.asarray(probes.offsets)[i], np.asarray(probes.queries)[j]
        logit = alpha * np.sum(a * (beta[:, None] * (b @ self.W.T) + self.w), axis=1)
        return beta * (b @ self.v) + alpha * (a @ self.v) * expit(logit)


def drive(steps, scene, rounds=None):
    """Send answers until the generator returns; return what it returned."""
    answers = None
    try:
        while True:
            [probes] = steps.send(answers)
            if rounds is not None:
                rounds.append(probes)
            answers = [scene.answer(probes)]
    except StopIteration as done:
        return done.value


# -- what is asked


@pytest.mark.parametrize("octaves", [-60, -20, 0, 20, 40])
def test_scales_are_found_for_any_size_of_W(octaves):
    """Saturated or unresolved pilots are asked again, twice at most, and only they."""
    scene, rounds = Scene(scale=2.0**octaves), list[Probes]()
    grid = drive(measure(scene.grid(), 16), scene, rounds)
    truth = scene.M
    assert np.max(np.abs(grid.measured() - truth)) <= 1e-11 * np.max(np.abs(truth))
    pilots = [probes for probes in rounds if probes.phase == "W, again"]
    assert sum(len(probes) for probes in pilots) == grid.again <= 12
    rms = np.sqrt(np.mean((truth * grid.scale)[:, 5:] ** 2))
    assert 0.05 < rms < 5


def test_no_more_than_spare_is_asked_again():
    for spare in (0, 1, 3):
        scene, rounds = Scene(d=12, scale=2.0**30), list[Probes]()
        steps = measure(scene.grid(), spare)
        with contextlib.suppress(us.NotIdentifiable):
            drive(steps, scene, rounds)
        again = [len(probes) for probes in rounds if probes.purpose == "again"]
        assert sum(again) <= spare


# -- what is refused


def test_answers_of_no_head_are_refused():
    scene = Scene()
    exact = scene.answer
    scene.answer = lambda probes: 2 * exact(probes)  # type: ignore[method-assign]
    with pytest.raises(us.ModelMismatch, match="no single attention head"):
        drive(measure(scene.grid(), 4), scene)


def test_hard_attention_is_refused_with_what_is_known():
    scene = Scene()
    scene.W *= 1e300
    with pytest.raises(us.NotIdentifiable, match="as with hard attention") as caught:
        drive(measure(scene.grid(), 12), scene)
    np.testing.assert_array_equal(caught.value.determined["v"], scene.v)


# -- readings


@pytest.mark.parametrize("absolute", [1e-12, 1e-8, 1e-5])
@pytest.mark.parametrize("spread", [0, 3])
def test_readings_are_within_their_errors(absolute, spread, trials):
    """Every answer is off by all that it may be; columns differ by a factor of 10^±spread."""
    for seed in range(trials(3, 200)):
        scene = Scene(seed, precision=Precision(absolute=absolute))
        scene.B = scene.B * 10.0 ** scene.rng.uniform(-spread, spread, (4, 1))
        truth, exact = scene.M, scene.answer
        signs = scene.rng.choice([-1.0, 1.0], 10**4)

        def off(probes, exact=exact, signs=signs, absolute=absolute):
            y = exact(probes)
            return y + (1 - 1e-3) * absolute * signs[: len(y)]

        scene.answer = off  # type: ignore[method-assign]
        grid = drive(measure(scene.grid(), 8), scene)
        lengths = np.linalg.norm(scene.B @ scene.W.T, axis=1)
        read = grid.reading(scene.values, lengths, scene.w, 1.0)
        np.testing.assert_array_equal(read.value, grid.measured())
        assert np.all(np.abs(read.value - truth) <= read.error)
        assert np.linalg.norm(read.value - truth) <= read.total
        assert read.total <= 1.01 * np.linalg.norm(read.error)


def test_readings_under_other_errors_of_v_and_c_are_those_of_a_grid_that_had_them():
    """What was asked while answers were taken for exact is bounded by what they turn out to be."""
    scene = Scene()
    grid = drive(measure(scene.grid(), 4), scene)
    coarse = Values(scene.v, 0.0, np.full(6, 1e-3), 1e-4, Precision(absolute=1e-4))
    now = grid.reading(coarse, np.ones(4), np.zeros(6), 1.0)
    grid.take(coarse)
    as_if = grid.reading(coarse, np.ones(4), np.zeros(6), 1.0)
    np.testing.assert_array_equal(now.error, as_if.error)
    assert now.total == as_if.total > 1e-3


# -- tokens that float32 sees as they are


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e15])
def test_sums_are_exact_in_float32(scale):
    rng = np.random.default_rng(0)
    a, b = on_one_grid(scale * rng.standard_normal((40, 7)), scale * rng.standard_normal(7) / 100)
    for x in (a, b, a + b):
        assert np.array_equal(x.astype(np.float32).astype(np.float64), x)
    assert np.array_equal(a.astype(np.float32) + b.astype(np.float32), (a + b).astype(np.float32))


def test_rounding_is_small_beside_the_largest():
    x = np.random.default_rng(1).standard_normal((3, 50))
    [rounded] = on_one_grid(x)
    assert np.max(np.abs(rounded - x)) <= 2.0**-20 * np.max(np.abs(x))


def test_nothing_stays_nothing():
    [zero] = on_one_grid(np.zeros((2, 3)))
    assert not zero.any()
    assert on_one_grid() == ()

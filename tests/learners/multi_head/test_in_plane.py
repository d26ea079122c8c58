"""The half circle on synthetic heads: u_h in the plane, hidden pairs, gates nowhere steps."""

from __future__ import annotations

import numpy as np
import pytest

from unsoftmax.arrangement.jumps import JumpSearch, find_jumps
from unsoftmax.learners.multi_head import in_plane
from unsoftmax.learners.multi_head.in_plane import Crossings, CrossingStage, measure_in_plane
from unsoftmax.learners.multi_head.reduced_answers import TokenLengths
from unsoftmax.learners.multi_head.search_outcomes import CoincidentJumps

ETA = 4e-16


class HalfCircle:
    """Heads u, v in the plane (H, 2): g(θ) = Σ (v·e) tanh(T e·u / 2) at e = (cos θ, sin θ)."""

    def __init__(self, u, v, eta=ETA, seed=0, lengths=None, shift=0.0):
        self.u, self.v, self.eta, self.shift = np.asarray(u), np.asarray(v), eta, shift
        self.rng = np.random.default_rng([seed, 9])
        self.lengths = lengths or TokenLengths()
        self.asked = self.rounds = 0

    def values(self, theta, T):
        e = np.stack([np.cos(theta), np.sin(theta)], axis=1)
        self.asked, self.rounds = self.asked + len(theta), self.rounds + 1
        g = np.sum((e @ self.v.T) * np.tanh((T[:, None] * (e @ self.u.T) + self.shift) / 2), axis=1)
        return g + self.eta * self.rng.uniform(-1, 1, len(g))

    def ask(self, theta, T):
        """A generator that needs no answers."""
        return self.values(theta, T)
        yield

    def far(self, theta):
        return self.values(theta, np.full(len(theta), self.lengths.far(1.0)))
        yield

    def measured(self):
        circle = JumpSearch(self.far, self.eta, 40, self.lengths.baseline)
        jumps = finished(find_jumps(circle, 1))
        steps = measure_in_plane(
            jumps,
            circle,
            self.ask,
            self.eta,
            self.lengths,
            mirrored=bool(np.any(self.shift)),
        )
        return finished(steps)


def finished(steps):
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def drawn(heads, seed, spread=0.0):
    rng = np.random.default_rng([heads, seed, 4])
    u, v = rng.standard_normal((2, heads, 2))
    return u * 10.0 ** rng.uniform(-spread, spread, (heads, 1)), v


def matched(found, u):
    """Every head found and no other, up to its sign; the largest relative error."""
    assert len(found.u) == len(u)
    worst = 0.0
    for mine in found.u:
        apart = np.minimum(
            np.linalg.norm(u - mine, axis=1), np.linalg.norm(u + mine, axis=1)
        ) / np.linalg.norm(u, axis=1)
        worst = max(worst, float(apart.min()))
    return worst


def test_one_head():
    circle = HalfCircle([[0.3, -2.0]], [[1.0, 0.5]])
    found = circle.measured()
    np.testing.assert_allclose(np.abs(found.u), [[0.3, 2.0]], rtol=1e-6)
    assert abs(found.u[0] @ [np.cos(found.angle[0]), np.sin(found.angle[0])]) < 1e-9
    np.testing.assert_allclose(found.slope, np.hypot(0.3, 2.0), rtol=1e-6)
    assert circle.asked < 70  # most of them bisect the circle from π down


@pytest.mark.parametrize("heads", [2, 5, 12])
def test_heads_in_the_plane(heads, trials):
    for seed in range(trials(1, 50)):
        u, v = drawn(heads, seed)
        assert matched(HalfCircle(u, v, seed=seed).measured(), u) < 1e-3


def test_heads_of_sizes_apart(trials):
    for seed in range(trials(1, 50)):
        u, v = drawn(4, seed, spread=2.0)
        assert matched(HalfCircle(u, v, seed=seed).measured(), u) < 1e-3


@pytest.mark.parametrize(("eta", "most"), [(1e-12, 0), (1e-9, 2), (1e-7, 4)])
def test_coarse_answers_give_what_their_noise_leaves_or_are_refused(eta, most):
    refused = 0
    for seed in range(10):
        u, v = drawn(3, seed)
        try:
            found = HalfCircle(u, v, eta=eta, seed=seed).measured()
        except CoincidentJumps:
            refused += 1
            continue
        assert matched(found, u) < 3 * found.noise.max() + 1e-3
    assert refused <= most


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-5])
def test_two_jumps_side_by_side_are_found_to_be_two(apart):
    """Cut by the reading far out: at first the interval looks like one jump."""
    turn = np.array([[np.cos(apart), np.sin(apart)], [-np.sin(apart), np.cos(apart)]])
    u = np.array([[0.6, 0.9], [0.0, 0.0], [1.0, -0.4]])
    u[1] = 1.3 * turn @ u[0]
    found = HalfCircle(u, [[1.0, 0.2], [0.4, 1.0], [0.5, 0.5]]).measured()
    assert matched(found, u) < 1e-2


@pytest.mark.parametrize("size", [0.1, 2.0, 6.0])
def test_shifts_are_found_beside_the_vectors(size):
    """Gates that confirm are read on both sides: half the difference of their logits is T r(θ)."""
    for seed in range(10):
        u, v = drawn(3, seed)
        shift = size * np.random.default_rng(seed).uniform(-1, 1, 3)
        found = HalfCircle(u, v, shift=shift, seed=seed).measured()
        assert matched(found, u) < 1e-4
        for mine, s in zip(found.u, found.shift, strict=True):
            cosine = u @ mine / np.linalg.norm(u, axis=1) / np.linalg.norm(mine)
            h = np.argmax(np.abs(cosine))
            assert s == pytest.approx(np.sign(cosine[h]) * shift[h], abs=1e-6)


def test_shifts_beyond_what_gates_tell_are_refused():
    u, v = drawn(3, 0)
    with pytest.raises(CoincidentJumps):
        HalfCircle(u, v, shift=np.array([60.0, 0.0, 0.0])).measured()


def test_one_hyperplane_of_two_heads_is_refused():
    """u and 2u jump together: the gate is no sigmoid, and no cut divides the interval."""
    with pytest.raises(CoincidentJumps):
        HalfCircle([[0.6, 0.9], [1.2, 1.8]], [[1.0, 0.2], [0.4, 1.0]]).measured()


def test_too_few_rounds_are_refused(monkeypatch):
    u, v = drawn(3, 0)
    monkeypatch.setattr(in_plane, "ROUNDS", 2)
    with pytest.raises(CoincidentJumps):
        HalfCircle(u, v).measured()


def test_a_head_too_steep_for_any_length_is_refused(monkeypatch):
    """A step at every scale: the guessed slope grows without end."""
    u = np.array([[1e40, 0.5e40], [1.0, -0.4]])
    monkeypatch.setattr(in_plane, "STEEPEST", 1e6)
    with pytest.raises(CoincidentJumps):
        HalfCircle(u, [[1.0, 0.2], [0.4, 1.0]]).measured()


# -- the table of crossings


def jumps_of(u, v):
    circle = HalfCircle(u, v)
    return finished(find_jumps(JumpSearch(circle.far, ETA, 40, circle.lengths.baseline), 1))


def put(crossings, k, stage, **known):
    for name, value in {"stage": stage, **known}.items():
        crossings.rows[name][k] = value


def test_intervals_that_were_cut_begin_anew_and_others_stay():
    u, v = drawn(3, 2)
    jumps = jumps_of(u, v)
    crossings = Crossings.unread(jumps, 5.0)
    put(crossings, 0, CrossingStage.MEASURED, u=[1.0, 2.0], T=3.0)
    put(crossings, 2, CrossingStage.ESTIMATED, u=[0.0, 4.0], missed=2)
    moved = crossings.moved(jumps.take(np.array([False, True, True])))
    assert moved.rows["stage"].tolist() == [CrossingStage.BRACKETED, CrossingStage.ESTIMATED]
    np.testing.assert_array_equal(moved.rows[1], crossings.rows[2])
    crossings.reset(np.array([True, False, False]))
    begun = crossings.rows[0]
    assert begun["stage"] == CrossingStage.BRACKETED
    assert (begun["low"], begun["high"], begun["slope"]) == (jumps.low[0], jumps.high[0], 5.0)
    # the new ones take the slope that is usual
    fewer = Crossings.unread(jumps.take(np.array([True, False, False])), 5.0)
    assert fewer.moved(jumps).rows["slope"].tolist() == [5.0] * 3
    assert crossings.moved(jumps_of(*drawn(3, 4))).rows["slope"].tolist() == [4.0] * 3


def test_brackets_stay_within_narrower_intervals():
    u, v = drawn(2, 3)
    jumps = jumps_of(u, v)
    low, high = jumps.low[0], jumps.high[0]
    third = (high - low) / 3
    narrower = jumps.changed(high=jumps.high - third)

    def moved(**known):
        crossings = Crossings.unread(jumps, 1.0)
        put(crossings, 0, **known)
        row = crossings.moved(narrower).rows[0]
        return CrossingStage(row["stage"]), row["low"], row["high"]

    once = {"stage": CrossingStage.READ_ONCE, "T": 2.0, "theta": low + third, "r": 0.5}
    inside = (low + third, high - third)
    assert moved(stage=CrossingStage.BRACKETED, low=low + third) == (
        CrossingStage.BRACKETED,
        *inside,
    )
    assert moved(low=low + third, **once) == (CrossingStage.READ_ONCE, *inside)
    beyond = moved(stage=CrossingStage.BRACKETED, low=high - third / 2)
    assert beyond == (CrossingStage.BRACKETED, low, high - third)


def test_known_heads_say_how_far_out_they_are_saturated():
    u, v = drawn(3, 2)
    crossings = Crossings.unread(jumps_of(u, v), 1.0)
    every, theta = np.arange(3), np.array([0.1, 0.2, 0.3])
    assert np.all(crossings.others_saturated(every, theta, 45.0) == 0)
    put(crossings, 1, CrossingStage.ESTIMATED, u=[3.0, 0.0])
    quiet = crossings.others_saturated(every, theta, 45.0)
    np.testing.assert_allclose(quiet, [15 / np.cos(0.1), 0.0, 15 / np.cos(0.3)])
